"""``rankscope alerts replay``. What needs an extra is imported when it is used."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

import click
import msgspec

from rankscope.alerts.watch.options import budgets, judging_options
from rankscope.base.options import Duration, format_option
from rankscope.base.progress import progress_line


@click.command(short_help="Show which alerts the watcher would have sent about a run.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--rule", "rules", multiple=True, metavar="NAME", help="Alert to replay. Repeatable.  [default: all of the watcher's]"
)
@click.option(
    "--interval", type=Duration(), metavar="DURATION", default="5s", show_default=True, help="Time between evaluations."
)
@click.option("--fire-after", type=click.IntRange(1), default=3, show_default=True, help="Consecutive evaluations to fire.")
@click.option("--resolve-after", type=click.IntRange(1), default=3, show_default=True, help="Consecutive evaluations to resolve.")
@judging_options
@format_option("json: one object, of the schema that `rankscope schema replay` prints.")
def replay(
    run: Path,
    *,
    rules: tuple[str, ...],
    interval: float,
    fire_after: int,
    resolve_after: int,
    least_firing: float,
    silent_after: float,
    silent_steps: float,
    budget: tuple[str, ...],
    format_: Literal["text", "json"],
) -> None:
    """Replay the watcher over a recorded RUN: which alerts would have fired and ended, when, and for which rank.

    A copy of the run grows as the run did when it was recorded. Nothing is delivered, and nothing is written into the run.
    --least-firing, --silent-after, --silent-steps and --budget are those of `rankscope alerts watch`.

    Prometheus rules are not replayed: test thresholds with `promtool test rules`, or query the rule's expression in Grafana.

    \b
    Examples:
      rankscope alerts replay runs/llama
      rankscope alerts replay runs/llama --budget input=40%
      rankscope alerts replay runs/llama --rule TrainingStraggler --format json

    Exit status: 0 done, whether anything would have fired or not, 2 no such alert, 3 the run cannot be read.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.replay.replay import replay_run
    from rankscope.alerts.replay.replay_result import replay_text
    from rankscope.alerts.watch.ledger import FiringPolicy
    from rankscope.alerts.watch.liveness.monitor import Patience
    from rankscope.alerts.watch.watcher_settings import WatcherSettings
    from rankscope.alerts.watcher_alerts import WATCHER_ALERTS

    for number in (signal.SIGTERM, signal.SIGHUP):  # as for Ctrl-C: the copy of the run is removed
        signal.signal(number, signal.default_int_handler)
    if unknown := [rule for rule in rules if rule not in WATCHER_ALERTS]:
        raise click.UsageError(f"the watcher has no alert {unknown[0]!r}; it has {', '.join(WATCHER_ALERTS)}")
    with progress_line() as show:
        options = WatcherSettings(
            policy=FiringPolicy(fire_after, resolve_after, least_firing),
            patience=Patience(silent_after_s=silent_after, silent_steps=silent_steps),
            budgets=budgets(budget),
            interval_s=interval,
        )
        result = replay_run(
            run, rules, options=options, progress=lambda percent: show(f"replaying the watcher: {percent} % of the run")
        )
    click.echo(msgspec.json.encode(result).decode() if format_ == "json" else replay_text(result))

"""``rankscope alerts replay``. What needs an extra is imported when it is used."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec
from click.core import ParameterSource

from rankscope.alerts.judging_options import JUDGING, budgets, judging_options
from rankscope.alerts.options import format_option, http_url, prometheus_access, seconds
from rankscope.alerts.printing import progress_line
from rankscope.alerts.rules_command import thresholds_option
from rankscope.analysis.locations import Location, location

if TYPE_CHECKING:
    from rankscope.alerts.replay_result import Replay

DEFAULT_START: Final = "1d"


def _source(_context: click.Context, _option: click.Parameter, written: str) -> Location:
    place = location(written)
    return place if isinstance(place, Path) else http_url(place)


@click.command()
@click.argument("source", metavar="RUN|PROMETHEUS_URL", callback=_source)
@click.option(
    "--rule", "rules", multiple=True, metavar="NAME", help="Alert to replay. Repeatable.  [default: all of rankscope's]"
)
@click.option("--by", type=click.Choice(["watcher", "prometheus"]), help="RUN: whose alerts.  [default: those of both]")
@click.option("--interval", type=seconds, metavar="DURATION", help="RUN: time between the watcher's evaluations.  [default: 5s]")
@click.option("--fire-after", type=click.IntRange(1), help="RUN: consecutive evaluations to fire.  [default: 3]")
@click.option("--resolve-after", type=click.IntRange(1), help="RUN: consecutive evaluations to resolve.  [default: 3]")
@judging_options
@thresholds_option
@click.option("--start", metavar="TIME", help="PROMETHEUS_URL: 2026-01-31T12:00:00Z, or 6h for so long ago.  [default: 1d]")
@click.option("--end", metavar="TIME", help="PROMETHEUS_URL: likewise.  [default: now]")
@prometheus_access
@format_option("json: one object, of the schema that `rankscope schema replay` prints.")
@click.pass_context
def replay(
    ctx: click.Context,
    source: Path | str,
    *,
    rules: tuple[str, ...],
    by: Literal["watcher", "prometheus"] | None,
    interval: float | None,
    fire_after: int | None,
    resolve_after: int | None,
    least_firing: float,
    silent_after: float,
    silent_steps: float,
    budget: tuple[str, ...],
    thresholds: Path | None,
    start: str | None,
    end: str | None,
    prometheus_token_file: Path | None,
    prometheus_ca: Path | None,
    format_: Literal["text", "json"],
) -> None:
    """Would an alert have fired, when, for whom, and when would it have ended?

    Over a RUN: alerts of the watcher, before which the run grows as it did when it was recorded, and the rules about ranks, over
    the metrics that the ranks would have shown; a Prometheus that is started for it evaluates them (apt-get install prometheus).
    Over a Prometheus: its own alerting rules, over what it remembers; with --thresholds, rankscope's with these. Nobody is told,
    and nothing is written into the run.

    --least-firing, --silent-after, --silent-steps and --budget are those of `rankscope alerts watch`, for a RUN.

    \b
    Examples:
      rankscope alerts replay runs/llama
      rankscope alerts replay runs/llama --by watcher --budget input=40%
      rankscope alerts replay runs/llama --rule RankSilent --format json
      rankscope alerts replay http://127.0.0.1:9090 --rule GpuDown --start 7d
      rankscope alerts replay http://127.0.0.1:9090 --thresholds ours.toml

    Exit status: 0 done, whether anything would have fired or not, 2 no such alert, 3 the run or the server cannot be read, 4 no
    program is here that evaluates the rules asked for.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.replay_text import replay_text

    of_run = ("by", "interval", "fire_after", "resolve_after", *JUDGING)
    of_server = ("start", "end", "prometheus_token_file", "prometheus_ca")
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: the copy of the run and the Prometheus over it go, too
        signal.signal(number, signal.default_int_handler)
    for parameter in of_server if isinstance(source, Path) else of_run:
        if ctx.get_parameter_source(parameter) is not ParameterSource.DEFAULT:
            kind = "a Prometheus" if isinstance(source, Path) else "a run"
            raise click.UsageError(f"--{parameter.replace('_', '-')} is for {kind}, which this is not")
    if isinstance(source, Path):
        from rankscope.alerts.hysteresis import Policy
        from rankscope.alerts.replay import INTERVAL_S, WATCHER_RULES, How
        from rankscope.alerts.run_replay import KNOWN, replay_alerts
        from rankscope.alerts.thresholds import thresholds as read
        from rankscope.alerts.watched_life import Patience

        known = WATCHER_RULES if by == "watcher" else KNOWN
        if unknown := [rule for rule in rules if rule not in known]:
            among = f" with --by {by}" if by else ""
            raise click.UsageError(f"there is no alert {unknown[0]!r}{among}; there are {', '.join(known)}")
        with progress_line() as say:
            how = How(
                interval_s=interval or INTERVAL_S,
                policy=Policy(fire_after or 3, resolve_after or 3, least_firing),
                patience=Patience(silent_after_s=silent_after, silent_steps=silent_steps),
                budgets=budgets(budget),
                progress=lambda percent: say(f"replaying the watcher: {percent} % of the run"),
            )
            result = replay_alerts(
                source,
                rules,
                by=by,
                how=how,
                settings=read(thresholds),
                progress=lambda what: say(f"replaying the rules: {what}"),
            )
    else:
        now = time.time_ns()
        span = (_moment("--start", start or DEFAULT_START, now), now if end is None else _moment("--end", end, now))
        if span[0] >= span[1]:
            raise click.UsageError("--start is not before --end")
        result = _over_server(source, rules, span, thresholds, access=(prometheus_token_file, prometheus_ca))
    click.echo(msgspec.json.encode(result).decode() if format_ == "json" else replay_text(result))


def _over_server(
    url: str, rules: tuple[str, ...], span: tuple[int, int], thresholds: Path | None, *, access: tuple[Path | None, Path | None]
) -> Replay:
    from rankscope.alerts.prometheus import Prometheus, Server
    from rankscope.alerts.prometheus_replay import replay_server
    from rankscope.alerts.rules import runbooks
    from rankscope.alerts.threshold_replay import replay_thresholds
    from rankscope.alerts.thresholds import DEFAULTS
    from rankscope.alerts.thresholds import thresholds as read

    prometheus = Prometheus(Server(url=url, token_file=access[0], ca_file=access[1]))
    with progress_line() as say:

        def progress(rule: str) -> None:
            say(f"replaying {rule}")

        if thresholds is None:
            return replay_server(prometheus, rules, span, progress=progress)
        known = [name for name in runbooks() if name in DEFAULTS]
        if unknown := [rule for rule in rules if rule not in known]:
            raise click.UsageError(f"there is no rule {unknown[0]!r} with thresholds; there are {', '.join(known)}")
        return replay_thresholds(prometheus, rules, span, settings=read(thresholds), progress=progress)


def _moment(option: str, text: str, now_unix_ns: int) -> int:
    """A time, or how long ago it was, in unix ns; of the future nothing is remembered. Raises ``click.BadParameter``."""
    if not text.isdecimal():  # a year, or seconds? Neither is meant for sure
        with suppress(click.BadParameter):
            return max(0, now_unix_ns - int(seconds(text) * 1e9))
    try:
        moment = datetime.fromisoformat(text).timestamp()  # without a zone, this machine's
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r} is neither a time such as 2026-01-31T12:00:00Z nor a duration such as 6h", param_hint=option
        ) from error
    return max(0, min(now_unix_ns, int(moment * 1e9)))

"""``rankscope alerts replay``. What needs an extra is imported when it is used."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import click

from rankscope.alerts.http_url import http_url
from rankscope.alerts.seconds import seconds
from rankscope.analysis.locations import location

DEFAULT_START: Final = "1d"
_REPORT_S: Final = 2.0


@click.command()
@click.argument("source", metavar="RUN|PROMETHEUS_URL", callback=lambda _context, _option, value: location(value))
@click.option("--rule", "rules", multiple=True, metavar="NAME", help="Alert to replay. Repeatable; default: all that can be.")
@click.option("--by", type=click.Choice(["watcher", "prometheus"]), help="RUN: whose alerts.  [default: those of both]")
@click.option("--interval", type=seconds, metavar="DURATION", help="RUN: time between the watcher's evaluations.  [default: 5s]")
@click.option("--fire-after", type=click.IntRange(1), help="RUN: consecutive evaluations to fire.  [default: 3]")
@click.option("--resolve-after", type=click.IntRange(1), help="RUN: consecutive evaluations to resolve.  [default: 3]")
@click.option("--start", metavar="TIME", help="PROMETHEUS_URL: 2026-01-31T12:00:00Z, or 6h for so long ago.  [default: 1d]")
@click.option("--end", metavar="TIME", help="PROMETHEUS_URL: likewise.  [default: now]")
@click.option(
    "--prometheus-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="One line: a bearer token, or USER:PASSWORD.  [default: $RANKSCOPE_PROMETHEUS_TOKEN]",
)
@click.option(
    "--prometheus-ca", type=click.Path(path_type=Path, dir_okay=False), help="Certificate of the authority of an https address."
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one object, of the schema that `rankscope schema replay` prints.",
)
def replay(
    source: Path | str,
    *,
    rules: tuple[str, ...],
    by: Literal["watcher", "prometheus"] | None,
    interval: float | None,
    fire_after: int | None,
    resolve_after: int | None,
    start: str | None,
    end: str | None,
    prometheus_token_file: Path | None,
    prometheus_ca: Path | None,
    format_: Literal["text", "json"],
) -> None:
    """Would an alert have fired, when, for whom, and when would it have ended?

    Over a RUN: those of the watcher, which watches the run grow as it did when it was recorded, and the rules about ranks, which
    a Prometheus of this machine evaluates over the metrics that the ranks would have shown. Over a Prometheus: its own alerting
    rules, over what it remembers. Nobody is told, and nothing is written into the run.

    \b
    Examples:
      rankscope alerts replay runs/llama
      rankscope alerts replay runs/llama --by watcher --fire-after 6
      rankscope alerts replay runs/llama --rule RankSilent --format json
      rankscope alerts replay http://127.0.0.1:9090 --rule GpuDown --start 7d

    Exit status: 0 done, 3 the run or the server cannot be read, 4 there is no program that evaluates the rules asked for.
    """  # noqa: D301 - \b is for click
    import msgspec

    from rankscope.alerts.replay_text import replay_text

    of_run = {"--by": by, "--interval": interval, "--fire-after": fire_after, "--resolve-after": resolve_after}
    of_server = {
        "--start": start,
        "--end": end,
        "--prometheus-token-file": prometheus_token_file,
        "--prometheus-ca": prometheus_ca,
    }
    for option, value in (of_server if isinstance(source, Path) else of_run).items():
        if value is not None:
            raise click.UsageError(
                f"{option} is for {'a Prometheus' if isinstance(source, Path) else 'a run'}, which this is not"
            )
    progress = _Progress()
    if isinstance(source, Path):
        from rankscope.alerts.hysteresis import Policy
        from rankscope.alerts.replay import INTERVAL_S, WATCHER_RULES, How
        from rankscope.alerts.run_replay import KNOWN, replay_alerts

        known = WATCHER_RULES if by == "watcher" else KNOWN
        if unknown := [rule for rule in rules if rule not in known]:
            raise click.UsageError(f"there is no alert {unknown[0]!r}; there are {', '.join(known)}")
        how = How(
            interval_s=interval or INTERVAL_S,
            policy=Policy(fire_after=fire_after or 3, resolve_after=resolve_after or 3),
            progress=progress.moment,
        )
        result = replay_alerts(source, rules, by=by, how=how, progress=progress.rule)
    else:
        from rankscope.alerts.prometheus import Prometheus, Server
        from rankscope.alerts.prometheus_replay import replay_server

        now = time.time_ns()
        span = (_moment(start or DEFAULT_START, now), now if end is None else _moment(end, now))
        if span[0] >= span[1]:
            raise click.UsageError("--start is not before --end")
        server = Server(url=http_url(source), token_file=prometheus_token_file, ca_file=prometheus_ca)
        result = replay_server(Prometheus(server), rules, span, progress=progress.rule)
    progress.end()
    click.echo(msgspec.json.encode(result).decode() if format_ == "json" else replay_text(result))


def _moment(text: str, now_unix_ns: int) -> int:
    """A time, or how long ago it was, in unix ns. Raises ``click.BadParameter``."""
    try:
        return now_unix_ns - int(seconds(text) * 1e9)
    except click.BadParameter:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither a time such as 2026-01-31T12:00:00Z nor a duration such as 6h") from error
    return int(moment.timestamp() * 1e9)  # without a zone, this machine's


class _Progress:
    """One line on a terminal's standard error that says how far it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = sys.stderr.isatty()
        self._clock = clock
        self._said = clock()
        self._began: int | None = None

    def moment(self, unix_ns: int, end_unix_ns: int) -> None:
        """Of a run."""
        self._began = unix_ns if self._began is None else self._began
        if self._clock() - self._said >= _REPORT_S:
            whole = max(1, end_unix_ns - self._began)
            self._say(f"{min(99, max(0, 100 * (unix_ns - self._began) // whole))} % of the run")

    def rule(self, name: str) -> None:
        """Of a server."""
        self._say(name)

    def end(self) -> None:
        """Leave nothing behind."""
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)

    def _say(self, text: str) -> None:
        self._said = self._clock()
        if self._shown:
            click.echo(f"\r\033[Kreplaying: {text}", nl=False, err=True)

"""Output of the watcher: one line per event, as text or JSON, and the options of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import click
import msgspec

from rankscope.alerts.alert import rfc3339
from rankscope.base.line_writer import discard_output
from rankscope.base.logs import FORMATS, LEVELS
from rankscope.base.text import one_line

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of the watcher.

    ``verdict`` is the conclusion about a run that is over or evaluated once; ``firing`` and ``resolved`` are changes of an alert.
    """

    event: Literal["verdict", "firing", "resolved"]
    time_unix_ns: int
    run: str
    """Folder of the run."""
    run_id: str
    summary: str
    fingerprint: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    kind: str | None = None
    """Kind of a verdict; ``None`` for an alert."""


def as_json(event: Event) -> str:
    """Format an event as one JSON object on one line."""
    return msgspec.json.encode(event).decode()


def as_text(event: Event) -> str:
    """Format an event as one line; indented lines with the next steps and the dashboard link follow a firing alert."""
    head = f"{rfc3339(event.time_unix_ns)} {event.event.upper():<8}"
    if event.event == "verdict":
        return one_line(f"{head} {event.run_id}: {event.summary}")
    lines = [alert_line(head, event.labels, event.annotations)]
    if event.event == "firing":
        lines += [f"    next: {one_line(step)}" for step in event.annotations.get("next", "").splitlines()]
        lines += [f"    {name}: {one_line(event.annotations[name])}" for name in ("dashboard_url",) if name in event.annotations]
    return "\n".join(lines)


def alert_line(head: str, labels: dict[str, str], annotations: dict[str, str]) -> str:
    """Format an alert as one line: name, run, rank, host, summary, cause."""
    where = [f"{name} {labels[name]}" for name in ("rank", "host") if labels.get(name)]
    run = labels.get("run") or labels.get("run_id")
    details = [
        f"{name} {annotations[name]}" for name in ("cause", "phase", "confidence", "ended_because") if annotations.get(name)
    ]
    parts = [head, labels.get("alertname", "(no alertname)"), *([f"run {run}"] if run else []), *where]
    tail = f" [{', '.join(details)}]" if details else ""
    return one_line(f"{' '.join(parts)}: {annotations.get('summary') or '(no summary)'}{tail}")


def print_line(line: str) -> OSError | None:
    """Print a line and flush it; return the error if that fails. The failed line is lost, later lines are still tried."""
    try:
        click.echo(line)
    except OSError as error:
        discard_output()
        return error
    return None


def log_options(command: _Command) -> _Command:
    """Add ``--log-level`` and ``--log-format`` to a command."""
    level = click.option(
        "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Least severe level to log."
    )
    style = click.option(
        "--log-format", type=click.Choice(FORMATS), help="Format of the log.  [default: text on a terminal, else logfmt]"
    )
    return level(style(command))

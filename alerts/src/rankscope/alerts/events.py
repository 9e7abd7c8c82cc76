"""What the watcher says on standard output: one line per event, for people or for programs."""

from __future__ import annotations

from typing import Literal

import msgspec

from rankscope.alerts.alert import rfc3339


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``verdict``: the conclusion about a run that is over or evaluated once; ``firing`` and ``resolved``: an alert changed."""

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
    """Of a verdict."""


def as_json(event: Event) -> str:
    """One JSON object on one line."""
    return msgspec.json.encode(event).decode()


def as_text(event: Event) -> str:
    """One line; an alert that fires is followed by what to do next, indented."""
    head = f"{rfc3339(event.time_unix_ns)} {event.event.upper():<8}"
    if event.event == "verdict":
        return plain(f"{head} {event.run_id}: {event.summary}")
    lines = [alert_line(head, event.labels, event.annotations)]
    if event.event == "firing":
        lines += [f"    next: {plain(step)}" for step in event.annotations.get("next", "").splitlines()]
        lines += [f"    {name}: {plain(event.annotations[name])}" for name in ("dashboard_url",) if name in event.annotations]
    return "\n".join(lines)


def alert_line(head: str, labels: dict[str, str], annotations: dict[str, str]) -> str:
    """An alert in one line: name, run, rank, host, summary, cause."""
    where = [f"{name} {labels[name]}" for name in ("rank", "host") if labels.get(name)]
    run = labels.get("run") or labels.get("run_id")
    details = [
        f"{name} {annotations[name]}" for name in ("cause", "phase", "confidence", "ended_because") if annotations.get(name)
    ]
    parts = [head, labels.get("alertname", "(no alertname)"), *([f"run {run}"] if run else []), *where]
    tail = f" [{', '.join(details)}]" if details else ""
    return plain(f"{' '.join(parts)}: {annotations.get('summary') or '(no summary)'}{tail}")


def plain(text: str) -> str:
    """Without control characters: text that arrived from elsewhere must not steer a terminal or break a line."""
    return "".join(char if char.isprintable() else " " for char in text)

"""What every template says about an alert: severity, rank, host and GPU, cause, cost, what to do next, where the evidence is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from rankscope.alerts.events import plain
from rankscope.alerts.message import cut
from rankscope.alerts.payload import Payload, PayloadAlert

MAX_BODY_BYTES: Final = 20_000
_CAPS: Final = (1000, 400, 150, 60)
"""Characters of each text, the first with which everything fits."""
_PLACE: Final = (
    ("run", ("run", "run_id")),
    ("rank", ("rank", "verdict_rank")),
    ("host", ("host", "verdict_host", "node", "instance")),
    ("GPU", ("gpu", "gpu_uuid", "uuid")),
)
_TEXTS: Final = (
    ("verdict", ("verdict",)),
    ("no verdict", ("no_verdict",)),
    ("cause", ("cause",)),
    ("explained by", ("explained_by",)),
    ("phase", ("phase",)),
    ("slowdown", ("slowdown",)),
    ("confidence", ("confidence",)),
    ("cost", ("cost",)),
    ("GPU-hours lost", ("gpu_hours_lost",)),
    ("waiting", ("imposed_wait",)),
    ("overlap", ("overlap",)),
    ("missing", ("missing",)),
    ("capture", ("capture_asked",)),
    ("dump", ("dump_asked",)),
)
_LINKS: Final = (("evidence", "dashboard_url"), ("runbook", "runbook_url"))
_STEPS: Final = 8
_LONGEST_LINK: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One alert in words, none of them longer than was asked for, on one line each except ``description``."""

    status: Literal["firing", "resolved"]
    name: str
    severity: str
    simulated: bool
    summary: str
    description: str
    place: tuple[tuple[str, str], ...]
    details: tuple[tuple[str, str], ...]
    evidence: str
    next: tuple[str, ...]
    """What to do, one step each."""
    links: tuple[tuple[str, str], ...]
    """Words and address; only http and https."""

    @property
    def where(self) -> str:
        """``run llama, rank 2, host node1``."""
        return ", ".join(f"{name} {text}" for name, text in self.place)

    @property
    def heading(self) -> str:
        """``FIRING warning TrainingStraggler: run llama, rank 2, host node1``, marked where GPUs were simulated."""
        words = [self.status.upper(), *([self.severity] if self.severity else []), self.name]
        return ("[simulated] " if self.simulated else "") + " ".join(words) + (f": {self.where}" if self.where else "")


def facts(alert: PayloadAlert, cap: int) -> Facts:
    """The words for an alert."""
    known = {**alert.annotations, **alert.labels}
    summary = alert.annotations.get("summary", "")
    return Facts(
        status=alert.status,
        name=_line(alert.labels.get("alertname", "(no alertname)"), cap),
        severity=_line(alert.labels.get("severity", ""), cap),
        simulated=known.get("simulated", "").lower() in ("true", "1", "yes") or summary.startswith("[simulated"),
        summary=_line(summary, cap),
        description="\n".join(_line(line, cap) for line in cut(alert.annotations.get("description", ""), cap).splitlines()),
        place=_found(_PLACE, known, cap),
        details=_found(_TEXTS, alert.annotations, cap),
        evidence=_line(alert.annotations.get("evidence", ""), cap),
        next=tuple(_line(step, cap) for step in alert.annotations.get("next", "").splitlines()[:_STEPS] if step.strip()),
        links=tuple((words, known[name]) for words, name in _LINKS if _is_link(known.get(name, ""))),
    )


def fitted(build: Callable[[Payload, int], object], payload: bytes) -> bytes:
    """What ``build`` makes of a payload and a number of characters, as JSON that no receiver refuses for its size."""
    whole = msgspec.json.decode(payload, type=Payload)
    count = len(whole.alerts)
    while True:
        part = msgspec.structs.replace(
            whole, alerts=whole.alerts[:count], truncated_alerts=whole.truncated_alerts + len(whole.alerts) - count
        )
        for cap in _CAPS:
            body = msgspec.json.encode(build(part, cap))
            if len(body) <= MAX_BODY_BYTES:
                return body
        assert count > 1, "one alert with short texts fits"
        count = (count + 1) // 2


def headline(payload: Payload, cap: int) -> str:
    """A whole payload in one line."""
    first = facts(payload.alerts[0], cap)
    more = len(payload.alerts) + payload.truncated_alerts - 1
    return first.heading + (f" and {more} more" if more else "")


def _found(table: tuple[tuple[str, tuple[str, ...]], ...], known: dict[str, str], cap: int) -> tuple[tuple[str, str], ...]:
    found = ((words, next((known[name] for name in names if known.get(name)), "")) for words, names in table)
    return tuple((words, _line(text, cap)) for words, text in found if text)


def _line(text: str, cap: int) -> str:
    return cut(plain(text), cap)


def _is_link(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    usable = text.isascii() and text.isprintable() and len(text) <= _LONGEST_LINK and not set(text) & set(" <>|\"'`\\^{}[]()")
    return usable and parts.scheme in ("http", "https") and bool(parts.hostname)

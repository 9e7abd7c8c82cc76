"""Content of an alert for every template: severity, place, time, cause, cost, next steps, links to the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from rankscope.alerts.alert import UPDATED_AT, host_of, rfc3339, unix_ns
from rankscope.alerts.payload import Payload, PayloadAlert
from rankscope.analysis.result.text import first_of
from rankscope.base.text import one_line, shortened, span

MAX_BODY_BYTES: Final = 20_000
_CAPS: Final = (1000, 400, 150, 60)
"""Characters per text: the first value with which the body fits is used."""
_PLACE: Final = (
    ("run", ("run", "run_id")),
    ("rank", ("rank", "culprit", "verdict_rank", "verdict_ranks", "ranks")),
    ("host", ("host", "culprit_host", "verdict_host", "hosts", "node", "instance")),
    ("GPU", ("gpu", "gpu_uuid", "uuid")),
)
_SEVERAL: Final = frozenset({"culprit", "culprit_host", "verdict_ranks", "ranks", "hosts"})
"""Names of values that may be lists, separated by commas."""
_TEXTS: Final = (
    ("verdict", ("verdict",)),
    ("no verdict", ("no_verdict",)),
    ("cause", ("cause",)),
    ("explained by", ("explained_by",)),
    ("phase", ("phase",)),
    ("collective", ("collective", "collectives")),
    ("group", ("group", "process_group")),
    ("wait chain", ("chain",)),
    ("slowdown", ("slowdown",)),
    ("confidence", ("confidence",)),
    ("cost", ("cost",)),
    ("GPU-hours lost", ("gpu_hours_lost",)),
    ("waiting", ("imposed_wait",)),
    ("overlap", ("overlap",)),
    ("missing", ("missing",)),
    ("capture", ("capture_request",)),
    ("dump", ("dump_request",)),
)
_LINKS: Final = (("evidence", "dashboard_url"), ("runbook", "runbook_url"))
_STEPS: Final = 8
_LONGEST_LINK: Final = 1000
_LONGEST_WHY: Final = 60
_SHOWN: Final = 4
"""Number of ranks or hosts that are listed before "and N more"."""
_DECIDING: Final = 3
"""Pieces of evidence shown in a chat: the first ones decide."""
_COMMANDS: Final = ("rankscope", "py-spy", "nvidia-smi", "dmesg", "scontrol", "kubectl")
"""A step that begins with one of these programs is a command. Any other step is prose."""

NoticeState = Literal["firing", "update", "follow_up", "still_firing", "resolved", "ended"]
"""``ended``: no recovery was observed; ``update``: more became known; ``follow_up``: result of a capture or dump."""
_WORDS: Final[dict[NoticeState, str]] = {
    "firing": "FIRING",
    "update": "UPDATE",
    "follow_up": "FOLLOW-UP",
    "still_firing": "STILL FIRING",
    "resolved": "RESOLVED",
    "ended": "ENDED",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTexts:
    """One alert as texts. Every text is truncated to the requested length, and on one line except ``description``."""

    state: NoticeState
    over: bool
    """The alert no longer fires."""
    why_ended: str
    """Reason of an end without an observed recovery."""
    name: str
    severity: str
    simulated: bool
    summary: str
    description: str
    when: str
    """Start, or start, end and duration; empty if the sender gives no start."""
    place: tuple[tuple[str, str], ...]
    run_id: str
    """Only if the run's name differs from it: two runs may share a name."""
    details: tuple[tuple[str, str], ...]
    evidence: str
    deciding: str
    """The evidence, shortened for a chat."""
    next: tuple[str, ...]
    """Steps to take."""
    links: tuple[tuple[str, str], ...]
    """Link text and address; only http and https."""

    @property
    def brief(self) -> bool:
        """True for a resolved or ended alert, which needs no advice. A follow-up is never brief."""
        return self.state in ("resolved", "ended")

    @property
    def where(self) -> str:
        """``run llama (llama-20231114-221320-7f53a2), rank 2, host node1``."""
        return _joined((name, f"{text} ({self.run_id})" if name == "run" and self.run_id else text) for name, text in self.place)

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Pairs of label and text: place, time and, unless brief, all details."""
        about = (("where", self.where), ("when", self.when), *(() if self.brief else self.details))
        return tuple((name, text) for name, text in about if text)

    @property
    def heading(self) -> str:
        """``FIRING warning TrainingStraggler: run llama, rank 2, host node1``, prefixed if GPUs were simulated."""
        state = _WORDS[self.state] + (f" ({shortened(self.why_ended, _LONGEST_WHY)})" if self.why_ended else "")
        words = [state, *([self.severity] if self.severity else []), self.name]
        where = _joined(self.place)
        return ("[simulated] " if self.simulated else "") + " ".join(words) + (f": {where}" if where else "")


def alert_texts(alert: PayloadAlert, cap: int) -> AlertTexts:
    """Convert an alert to texts of at most ``cap`` characters per text."""
    values = {**alert.annotations, **alert.labels}
    if "instance" in values:
        values["instance"] = host_of({"instance": values["instance"]})
    summary, evidence = (alert.annotations.get(name, "") for name in ("summary", "evidence"))
    links = tuple((words, values[name]) for words, name in _LINKS if _is_link(values.get(name, "")))
    return AlertTexts(
        state=_state(alert),
        over=alert.status == "resolved",
        why_ended=_line(alert.annotations.get("ended_because", ""), cap) if alert.status == "resolved" else "",
        name=_line(alert.labels.get("alertname", "(no alertname)"), cap),
        severity=_line(alert.labels.get("severity", ""), cap),
        simulated=values.get("simulated", "").lower() in ("true", "1", "yes") or summary.startswith("[simulated"),
        summary=_line(summary, cap),
        description="\n".join(_line(line, cap) for line in shortened(alert.annotations.get("description", ""), cap).splitlines()),
        when=_when(alert),
        place=_first_values(_PLACE, values, cap),
        run_id=_line(values.get("run_id", ""), cap) if values.get("run", "") not in ("", values.get("run_id")) else "",
        details=_first_values(_TEXTS, alert.annotations, cap),
        evidence=_line(evidence, cap),
        deciding=_deciding(evidence, cap, paged="evidence" in dict(links)),
        next=tuple(_line(step, cap) for step in alert.annotations.get("next", "").splitlines()[:_STEPS] if step.strip()),
        links=links,
    )


def command_in(step: str) -> str:
    """Return the command in a step, with remarks as a comment: ``py-spy dump --pid 7  # rank 2``; empty for prose."""
    command, _, remark = step.partition("   ")
    if command.split(" ", 1)[0] not in _COMMANDS:
        return ""
    return f"{command}  # {remark.strip(' ()')}" if remark else command


def fitted(build: Callable[[Payload, int], object], payload: bytes) -> bytes:
    """Encode ``build(payload, cap)`` as JSON of at most ``MAX_BODY_BYTES``.

    Texts are shortened first. If that is not enough, alerts are left out and counted as truncated.
    """
    full_payload = msgspec.json.decode(payload, type=Payload)
    count = len(full_payload.alerts)
    while True:
        part = msgspec.structs.replace(
            full_payload,
            alerts=full_payload.alerts[:count],
            truncated_alerts=full_payload.truncated_alerts + len(full_payload.alerts) - count,
        )
        for cap in _CAPS:
            body = msgspec.json.encode(build(part, cap))
            if len(body) <= MAX_BODY_BYTES:
                return body
        assert count > 1, "one alert with short texts fits"
        count = (count + 1) // 2


def headline(payload: Payload, cap: int) -> str:
    """Summarize a payload in one line."""
    first = alert_texts(payload.alerts[0], cap)
    more = len(payload.alerts) + payload.truncated_alerts - 1
    return first.heading + (f" and {more} more" if more else "")


def _state(alert: PayloadAlert) -> NoticeState:
    annotations = alert.annotations
    if "capture_outcome" in annotations or "dump_outcome" in annotations:
        return "follow_up"
    if alert.status == "resolved":
        return "ended" if annotations.get("ended_because") else "resolved"
    return "still_firing" if "reminder" in annotations else "update" if UPDATED_AT in annotations else "firing"


def _when(alert: PayloadAlert) -> str:
    began, ended = unix_ns(alert.starts_at), unix_ns(alert.ends_at)
    if began <= 0:
        return ""
    if alert.status == "firing" or ended < began:
        return f"since {_moment(began)} UTC"
    return f"{_moment(began)} to {_moment(ended)} UTC, {span((ended - began) / 1e9)}"


def _moment(moment_unix_ns: int) -> str:
    """``2023-11-14 22:13:20``."""
    return rfc3339(moment_unix_ns)[:19].replace("T", " ")


def _first_values(
    table: tuple[tuple[str, tuple[str, ...]], ...], values: Mapping[str, str], cap: int
) -> tuple[tuple[str, str], ...]:
    chosen = ((words, next((name for name in names if values.get(name)), "")) for words, names in table)
    return tuple((words, _line(_few(values[name]) if name in _SEVERAL else values[name], cap)) for words, name in chosen if name)


def _deciding(evidence: str, cap: int, *, paged: bool) -> str:
    pieces = evidence.split("; ")
    if len(pieces) <= _DECIDING + 1:
        return _line(evidence, cap)
    more_figures = f" … and {len(pieces) - _DECIDING} more figures{' on the page' if paged else ''}"
    return _line("; ".join(pieces[:_DECIDING]), cap) + more_figures


def _few(text: str) -> str:
    """``0, 1, 2, 3 and 40 more``."""
    return first_of([item.strip() for item in text.split(",")], _SHOWN)


def _joined(place: Iterable[tuple[str, str]]) -> str:
    """``run llama, ranks 2, 3, host node1``."""
    return ", ".join(f"{name}{'s' if ', ' in text and name in ('rank', 'host') else ''} {text}" for name, text in place)


def _line(text: str, cap: int) -> str:
    return shortened(one_line(text), cap)


def _is_link(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    usable = text.isascii() and text.isprintable() and len(text) <= _LONGEST_LINK and not set(text) & set(" <>|\"'`\\^{}[]()")
    return usable and parts.scheme in ("http", "https") and bool(parts.hostname)

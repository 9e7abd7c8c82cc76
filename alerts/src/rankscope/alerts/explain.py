"""What an Xid or an alert means, where it comes from, and what is done about it: ``rankscope.explain/1``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from rankscope.alerts.alerted import EVERY
from rankscope.alerts.rules import runbooks
from rankscope.alerts.thresholds import DEFAULTS
from rankscope.alerts.xid_policy import policy_of
from rankscope.exporter.xids import SOURCE, XIDS
from rankscope.runs.errors import RankscopeError

EXPLAIN_SCHEMA: Final = "rankscope.explain/1"
_CODE: Final = re.compile(r"(?:xid[ _-]?)?([0-9]{1,9})", re.IGNORECASE | re.ASCII)


class AlertExplained(msgspec.Struct, frozen=True, kw_only=True, tag="alert", tag_field="kind"):
    """An alert, with the defaults of what it compares with."""

    name: str
    severity: str
    settings: dict[str, bool | int | float | str]
    xids: list[int]
    """Codes that it tells of."""
    runbook: str
    """Markdown."""


class XidExplained(msgspec.Struct, frozen=True, kw_only=True, tag="xid", tag_field="kind"):
    """A code. What is ``None`` is not known about it."""

    code: int
    name: str | None
    meaning: str | None
    cause: str | None
    action: str | None
    source: str | None
    source_url: str | None
    read_on: str | None
    """When the source was read, year first."""
    alert: str
    """The alert that tells of it; ``none``: nobody is told of a single one."""
    severity: str | None
    drain: bool
    """Whether the node is to be taken out of service."""
    why: str
    """The reason for this policy."""
    runbook: str | None
    """Markdown."""
    also: list[AlertExplained] = []
    """Alerts that may tell of it instead."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """In the order of the questions."""

    schema: str = EXPLAIN_SCHEMA
    explained: list[XidExplained | AlertExplained]


class UnknownAlertError(RankscopeError):
    """There is no alert of this name."""


def explain(questions: Sequence[str]) -> Explanation:
    """Each a code (``79``, ``xid79``) or the name of an alert, in any case. Raises ``UnknownAlertError``."""
    return Explanation(explained=[_one(question.strip()) for question in questions])


def _one(question: str) -> XidExplained | AlertExplained:
    if match := _CODE.fullmatch(question):
        return _xid(int(match[1]))
    names = {name.lower(): name for name in runbooks()}
    if question.lower() in names:
        return _alert(names[question.lower()])
    close = difflib.get_close_matches(question.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]}?" if close else "a number is an Xid, and docs/rules.md lists the alerts"
    raise UnknownAlertError(f"there is no alert {question!r}; {hint}")


def _xid(code: int) -> XidExplained:
    known = XIDS.get(code)
    policy = policy_of(code)
    alert = None if policy.alert == "none" else policy.alert
    return XidExplained(
        code=code,
        name=None if known is None else known.name,
        meaning=None if known is None else known.meaning,
        cause=None if known is None else known.cause,
        action=None if known is None else known.action,
        source=None if known is None else SOURCE.title,
        source_url=None if known is None else SOURCE.url,
        read_on=None if known is None else SOURCE.read_on.isoformat(),
        alert=policy.alert,
        severity=None if alert is None else str(DEFAULTS[alert]["severity"]),
        drain=policy.drain,
        why=policy.why,
        runbook=None if alert is None else runbooks()[alert],
        also=[_alert(name) for name in policy.also],
    )


def _alert(name: str) -> AlertExplained:
    codes = [code for code in XIDS if name in (policy_of(code).alert, *policy_of(code).also)]
    # Of what only the watcher tells there are no thresholds of a rule.
    settings = dict(DEFAULTS[name]) if name in DEFAULTS else {}
    severity = str(settings["severity"]) if settings else next(one.severity for one in EVERY if one.alertname == name)
    return AlertExplained(name=name, severity=severity, settings=settings, xids=codes, runbook=runbooks()[name])

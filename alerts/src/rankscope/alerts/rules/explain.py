"""Meaning, source and policy of Xids and alerts: ``rankscope.explain/1``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from rankscope.alerts.rules.rule_file import runbooks
from rankscope.alerts.rules.thresholds import DEFAULTS, SEVERITY_OF
from rankscope.alerts.rules.xid_policy import Severity, XidPolicy, policy_of
from rankscope.base.errors import RankscopeError
from rankscope.base.text import did_you_mean
from rankscope.exporter.xids import GRADED, SOURCE, SOURCES, XIDS

_SEVERITIES: Final[tuple[Severity, ...]] = ("fatal", "non_fatal")
EXPLAIN_SCHEMA: Final = "rankscope.explain/1"
_CODE: Final = re.compile(r"(?:xid[ _-]?)?([0-9]{1,9})", re.IGNORECASE | re.ASCII)


class AlertExplanation(msgspec.Struct, frozen=True, kw_only=True, tag="alert", tag_field="kind"):
    """An alert with its default thresholds."""

    name: str
    severity: str
    settings: dict[str, bool | int | float | str]
    xids: list[int]
    """Codes that raise this alert."""
    runbook: str
    """Markdown."""


class SeverityPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Policy of an Xid's errors of one severity, which the line of the kernel log has."""

    severity: str
    """``fatal`` or ``non_fatal``."""
    alert: str
    drain: bool
    why: str


class XidExplanation(msgspec.Struct, frozen=True, kw_only=True, tag="xid", tag_field="kind"):
    """An Xid code with its meaning and its policy. Unknown fields are ``None``."""

    code: int
    name: str | None
    meaning: str | None
    cause: str | None
    action: str | None
    source: str | None
    source_url: str | None
    read_on: str | None
    """Date on which the source was read, ISO 8601."""
    alert: str
    """Alert that the code raises (with ``by_severity``: an error of unknown severity); ``none``: a single one raises no alert."""
    severity: str | None
    drain: bool
    """The node must be taken out of service."""
    why: str
    """The reason for this policy."""
    runbook: str | None
    """Markdown."""
    also: list[AlertExplanation] = []
    """Alerts that it may raise instead."""
    by_severity: list[SeverityPolicy] = []
    """Policy of errors whose severity is known; empty for a code without severities."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Answers in the order of the questions."""

    schema: str = EXPLAIN_SCHEMA
    explained: list[XidExplanation | AlertExplanation]


class UnknownAlertError(RankscopeError):
    """No alert has this name."""


def explanation_of(questions: Sequence[str]) -> Explanation:
    """Explain Xid codes (``79``, ``xid79``) and alerts by name, in upper or lower case. Raises ``UnknownAlertError``."""
    return Explanation(explained=[_explain(question.strip()) for question in questions])


def _explain(question: str) -> XidExplanation | AlertExplanation:
    if match := _CODE.fullmatch(question):
        return _xid(int(match[1]))
    names = {name.lower(): name for name in runbooks()}
    if question.lower() in names:
        return _alert(names[question.lower()])
    hint = did_you_mean(question, runbooks(), otherwise="a number is an Xid, and docs/rules.md lists the alerts")
    raise UnknownAlertError(f"there is no alert {question!r}; {hint}")


def _xid(code: int) -> XidExplanation:
    xid = XIDS.get(code)
    policy = policy_of(code)
    alert = None if policy.alert == "none" else policy.alert
    source = None if xid is None else SOURCES[xid.source]
    return XidExplanation(
        code=code,
        name=None if xid is None else xid.name,
        meaning=None if xid is None else xid.meaning,
        cause=None if xid is None else xid.cause,
        action=None if xid is None else xid.action,
        source=None if source is None else source.title,
        source_url=None if source is None else source.url,
        read_on=None if source is None else source.read_on.isoformat(),
        alert=policy.alert,
        severity=None if alert is None else SEVERITY_OF[alert],
        drain=policy.drain,
        why=policy.why,
        runbook=None if alert is None else runbooks()[alert],
        also=[_alert(name) for name in policy.also],
        by_severity=[_of_severity(code, severity) for severity in _SEVERITIES] if code in GRADED else [],
    )


def _of_severity(code: int, severity: Severity) -> SeverityPolicy:
    policy = policy_of(code, severity)
    return SeverityPolicy(severity=severity, alert=policy.alert, drain=policy.drain, why=policy.why)


def _alert(name: str) -> AlertExplanation:
    codes = [code for code in XIDS if any(name in (policy.alert, *policy.also) for policy in _policies(code))]
    # Options of `alerts watch` configure the watcher's alerts; they have no thresholds here.
    settings = dict(DEFAULTS.get(name, {}))
    return AlertExplanation(name=name, severity=SEVERITY_OF[name], settings=settings, xids=codes, runbook=runbooks()[name])


def _policies(code: int) -> list[XidPolicy]:
    return [policy_of(code), *(policy_of(code, severity) for severity in _SEVERITIES if code in GRADED)]


_ACTIONS: Final = {
    "none": "nothing at once",
    "restart_app": "restart the application",
    "restart_vm": "restart the virtual machine",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the machine",
    "check_nvlink": "find the failing end of the NVLink, then reset the GPU",
    "check_power": "look at the power cables",
    "update_software": "update driver or firmware",
    "contact_vendor": "have the vendor examine it",
    "see_recovery_action": "see gpu_recovery_action, the action that the driver requires",
}


def explain_text(explanation: Explanation) -> str:
    """Format a paragraph and the runbook of each answer; a shared runbook follows the last answer that needs it."""
    parts: list[str] = []
    later = [_pages(item) for item in explanation.explained]
    for item in explanation.explained:
        pages = later.pop(0)
        new = [page.rstrip() for page in pages if not any(page in others for others in later)]
        parts.append("\n\n".join([_xid_text(item) if isinstance(item, XidExplanation) else _alert_text(item), *new]))
    return "\n\n\n".join(parts)


def _pages(item: XidExplanation | AlertExplanation) -> list[str]:
    also: list[str] = []
    if isinstance(item, XidExplanation):
        also = [*(alert.runbook for alert in item.also), *(runbooks()[policy.alert] for policy in item.by_severity)]
    return [page for page in dict.fromkeys((item.runbook, *also)) if page is not None]


def _xid_text(xid: XidExplanation) -> str:
    if xid.meaning is None or xid.action is None:
        rows = {
            "means": "unknown: not in the sources of the table",
            "do": f"look it up in {SOURCE.url}, keep the kernel log (dmesg -T | grep -i xid), ask the vendor",
        }
    else:
        rows = {
            "means": xid.meaning,
            "cause": f"mostly {xid.cause}",
            "do": _ACTIONS[xid.action],
            "source": f"{xid.source}, read on {xid.read_on}: {xid.source_url}",
        }
    alerts = "a single one raises no alert" if xid.severity is None else f"alert {xid.alert} ({xid.severity})"
    alerts += "".join(f", or {alert.name} ({alert.severity})" for alert in xid.also)
    name = "severity unknown" if xid.by_severity else "policy"
    rows[name] = f"{alerts}{'; drain the node' if xid.drain else ''}. {xid.why}"
    for policy in xid.by_severity:
        drain = "; drain the node" if policy.drain else ""
        rows[policy.severity.replace("_", "-")] = f"alert {policy.alert}{drain}. {policy.why}"
    return _table(f"Xid {xid.code}{f': {xid.name}' if xid.name else ''}", rows)


def _alert_text(alert: AlertExplanation) -> str:
    rows = {name: str(value) for name, value in alert.settings.items() if name not in ("severity", "enabled") and value != ""}
    if alert.xids:
        rows["Xids"] = ", ".join(map(str, alert.xids))
    return _table(f"{alert.name} ({alert.severity})", rows)


def _table(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {text}" for name, text in rows.items())])

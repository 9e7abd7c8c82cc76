"""Explanations for people."""

from __future__ import annotations

from typing import Final

from rankscope.alerts.explain import AlertExplained, Explanation, XidExplained
from rankscope.exporter.xids import SOURCE

_ACTIONS: Final = {
    "none": "nothing at once",
    "restart_app": "restart the application",
    "restart_vm": "restart the virtual machine",
    "reset_gpu": "reset the GPU",
    "reboot": "reboot the machine",
    "check_nvlink": "find the failing end of the NVLink, then reset the GPU",
    "check_power": "look at the power cables",
    "update_software": "update driver or firmware",
    "contact_vendor": "have it looked at by the vendor",
    "see_recovery_action": "see what the driver asks for: gpu_recovery_action",
}


def explain_text(explanation: Explanation) -> str:
    """A paragraph about each, and its runbook; a runbook that several share stands behind the last of them."""
    parts: list[str] = []
    later = [_pages(one) for one in explanation.explained]
    for one in explanation.explained:
        pages = later.pop(0)
        new = [page.rstrip() for page in pages if not any(page in others for others in later)]
        parts.append("\n\n".join([_xid_text(one) if isinstance(one, XidExplained) else _alert_text(one), *new]))
    return "\n\n\n".join(parts)


def _pages(one: XidExplained | AlertExplained) -> list[str]:
    also = [alert.runbook for alert in one.also] if isinstance(one, XidExplained) else []
    return [page for page in (one.runbook, *also) if page is not None]


def _xid_text(xid: XidExplained) -> str:
    if xid.meaning is None or xid.action is None:
        rows = {
            "means": "not known here: it is in no source that was read, or none says anything certain",
            "do": f"look it up in {SOURCE.url}, keep the kernel's words (dmesg -T | grep -i xid), ask the vendor",
        }
    else:
        rows = {
            "means": xid.meaning,
            "cause": f"mostly {xid.cause}",
            "do": _ACTIONS[xid.action],
            "source": f"{xid.source}, read on {xid.read_on}: {xid.source_url}",
        }
    told = "nobody is told of a single one" if xid.severity is None else f"alert {xid.alert} ({xid.severity})"
    told += "".join(f", or {alert.name} ({alert.severity})" for alert in xid.also)
    rows["policy"] = f"{told}{'; drain the node' if xid.drain else ''}. {xid.why}"
    return _table(f"Xid {xid.code}{f': {xid.name}' if xid.name else ''}", rows)


def _alert_text(alert: AlertExplained) -> str:
    rows = {name: str(value) for name, value in alert.settings.items() if name not in ("severity", "enabled")}
    if alert.xids:
        rows["Xids"] = ", ".join(map(str, alert.xids))
    return _table(f"{alert.name} ({alert.severity})", rows)


def _table(title: str, rows: dict[str, str]) -> str:
    width = max(map(len, rows), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {text}" for name, text in rows.items())])

"""One attempt to deliver a message through Apprise, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import msgspec

from rankscope.alerts.deliver.retrying import AttemptResult, not_answered
from rankscope.alerts.deliver.secret import SecretUnavailableError
from rankscope.alerts.deliver.targets import Target
from rankscope.alerts.deliver.templates.alert_texts import AlertTexts, alert_texts, headline
from rankscope.alerts.payload import Payload

_CAP: Final = 300
_MOST_BYTES: Final = 15_000
_START_S: Final = 15.0
"""Time to load Apprise on a busy machine, added to the time for an attempt."""
_REFUSED: Final = 3
_CHILD: Final = """
import sys, msgspec, logging
logging.disable(logging.CRITICAL)
order = msgspec.json.decode(sys.stdin.buffer.read())
import apprise
service = apprise.Apprise()
if not service.add(order["url"]):
    sys.exit(3)
kind = {
    "firing": apprise.NotifyType.WARNING,
    "critical": apprise.NotifyType.FAILURE,
    "resolved": apprise.NotifyType.SUCCESS,
    "ended": apprise.NotifyType.INFO,
}
done = service.notify(
    title=order["title"], body=order["body"], notify_type=kind[order["kind"]], body_format=apprise.NotifyFormat.TEXT
)
sys.exit(0 if done else 1)
"""


class AppriseCourier:
    """Deliver messages through Apprise to the service that the target's address names."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def attempt(self, message_id: str, payload: bytes) -> AttemptResult:
        """Hand the message to Apprise once. Apprise reports only success or failure, not the service's answer."""
        del message_id
        try:
            url = self._target.url.read()
        except SecretUnavailableError as error:
            return not_answered(str(error), sent=False)
        order = {"url": url, **text_message(payload)}
        try:
            completed = subprocess.run(
                # -P: do not import an ``apprise`` module from the current folder.
                [sys.executable, "-P", "-c", _CHILD],
                input=msgspec.json.encode(order),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=self._target.timeout_s + _START_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return not_answered("no answer in time", sent=True, late=True)
        except OSError as error:
            return not_answered(f"cannot start a process: {error.strerror or error}", sent=False)
        if completed.returncode == 0:
            return AttemptResult(kind="delivered", reason="accepted by Apprise", received=True)
        if completed.returncode == _REFUSED:
            return AttemptResult(kind="dead", reason="Apprise supports no service with such an address")
        return not_answered("Apprise could not deliver it", sent=True)


def text_message(payload: bytes) -> dict[str, str]:
    """Convert a payload to plain text: ``title``, ``body`` and ``kind`` (firing, critical, resolved or ended)."""
    content = msgspec.json.decode(payload, type=Payload)
    parts = [_text(alert_texts(alert, _CAP)) for alert in content.alerts]
    critical = any(alert.status == "firing" and alert.labels.get("severity") == "critical" for alert in content.alerts)
    mended = not any(alert.annotations.get("ended_because") for alert in content.alerts)
    over = "resolved" if mended else "ended"
    kind = over if content.status == "resolved" else "critical" if critical else "firing"
    body = "\n\n".join(parts)
    while len(body.encode(errors="replace")) > _MOST_BYTES:
        parts.pop()
        body = "\n\n".join([*parts, f"… and {len(content.alerts) - len(parts)} more"])
    return {"title": headline(content, 100), "body": body, "kind": kind}


def _text(content: AlertTexts) -> str:
    lines = [content.heading, content.summary, *(f"{name}: {text}" for name, text in content.fields)]
    if not content.brief:
        lines += [f"next: {step}" for step in content.next]
        lines += [content.description, content.deciding]
    lines += [f"{words}: {address}" for words, address in content.links]
    return "\n".join(line for line in lines if line)

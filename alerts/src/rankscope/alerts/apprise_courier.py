"""Services that have no template here, through Apprise: in a process of its own, because its network calls know no end of time.

The address goes to that process by its standard input, never by its command line or its environment.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Final

import msgspec

from rankscope.alerts.payload import Payload
from rankscope.alerts.retrying import Judgement, not_answered
from rankscope.alerts.secret import SecretUnavailableError
from rankscope.alerts.target import Target
from rankscope.alerts.templates.facts import Facts, facts, headline
from rankscope.runs.errors import MissingError

_CAP: Final = 300
_MOST_BYTES: Final = 15_000
_START_S: Final = 15.0
"""Loading Apprise may take that long on a busy machine, on top of the time for an attempt."""
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


def require_apprise() -> None:
    """Raises ``MissingError`` where Apprise is not installed."""
    if importlib.util.find_spec("apprise") is None:
        raise MissingError("Apprise is not installed; run: pip install 'rankscope[apprise]'")


class AppriseCourier:
    """Brings messages to the service that an Apprise address names."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def attempt(self, message_id: str, payload: bytes) -> Judgement:
        """Hand it to Apprise once. What the service answered is not known, only whether it took it."""
        del message_id
        try:
            url = self._target.url.read()
        except SecretUnavailableError as error:
            return not_answered(str(error), sent=False)
        order = {"url": url, **text_message(payload)}
        try:
            done = subprocess.run(
                # -P: a module of its name in the current folder is not Apprise.
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
        if done.returncode == 0:
            return Judgement(kind="delivered", reason="taken by Apprise", heard=True)
        if done.returncode == _REFUSED:
            return Judgement(kind="dead", reason="Apprise knows no service of such an address")
        return not_answered("Apprise could not deliver it", sent=True)


def text_message(payload: bytes) -> dict[str, str]:
    """Title, body and kind of a payload in plain text."""
    told = msgspec.json.decode(payload, type=Payload)
    parts = [_text(facts(alert, _CAP)) for alert in told.alerts]
    critical = any(alert.status == "firing" and alert.labels.get("severity") == "critical" for alert in told.alerts)
    mended = not any(alert.annotations.get("ended_because") for alert in told.alerts)
    over = "resolved" if mended else "ended"
    kind = over if told.status == "resolved" else "critical" if critical else "firing"
    body = "\n\n".join(parts)
    while len(body.encode(errors="replace")) > _MOST_BYTES:
        parts.pop()
        body = "\n\n".join([*parts, f"… and {len(told.alerts) - len(parts)} more"])
    return {"title": headline(told, 100), "body": body, "kind": kind}


def _text(told: Facts) -> str:
    lines = [told.heading, told.summary, *(f"{name}: {text}" for name, text in told.said)]
    if not told.brief:
        lines += [f"next: {step}" for step in told.next]
        lines += [told.description, told.deciding]
    lines += [f"{words}: {address}" for words, address in told.links]
    return "\n".join(line for line in lines if line)

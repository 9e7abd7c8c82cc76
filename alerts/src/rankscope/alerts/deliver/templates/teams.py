"""Microsoft Teams: an Adaptive Card in the envelope that the webhook of a workflow takes.

Texts of alerts are ``TextRun`` elements, which Teams shows literally. Only ``TextBlock`` elements are parsed as Markdown.
"""

from __future__ import annotations

from typing import Any, Final

from rankscope.alerts.deliver.templates.alert_texts import AlertTexts, NoticeState, alert_texts, command_in, fitted, headline
from rankscope.alerts.payload import Payload

_COLOUR: Final = {"critical": "attention", "warning": "warning", "info": "accent"}
_COLOUR_OF_STATE: Final[dict[NoticeState, str]] = {"resolved": "good", "ended": "default"}
_MOST_ACTIONS: Final = 6


def teams(payload: bytes, _routing_key: str = "") -> bytes:
    """Build the message for a payload."""
    return fitted(_message, payload)


def _message(payload: Payload, cap: int) -> dict[str, Any]:
    content = [alert_texts(alert, cap) for alert in payload.alerts]
    body = [block for alert in content for block in _blocks(alert)]
    if payload.truncated_alerts:
        body.append(_text(f"… and {payload.truncated_alerts} more"))
    links = [(f"{words}: {alert.name}", address) for alert in content for words, address in alert.links]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": _inert(headline(payload, cap)),
        "msteams": {"width": "Full"},
        "body": body,
        "actions": [
            {"type": "Action.OpenUrl", "title": title, "url": address}
            for title, address in list(dict.fromkeys(links))[:_MOST_ACTIONS]
        ],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _blocks(content: AlertTexts) -> list[dict[str, Any]]:
    colour = _COLOUR_OF_STATE.get(content.state) or _COLOUR.get(content.severity, "default")
    blocks = [_text(content.heading, weight="bolder", color=colour), _text(content.summary)]
    blocks += [_text(f"{name}: {text}") for name, text in content.fields]
    if not content.brief:
        for step in content.next:
            command = command_in(step)
            blocks.append(_text(command, fontType="monospace") if command else _text(f"next: {step}"))
        blocks += [_text(content.description), _text(content.deciding)]
    return [block for block in blocks if block["inlines"][0]["text"]]


def _text(text: str, **how: str) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": _inert(text), **how}]}


def _inert(text: str) -> str:
    """Break up the braces of ``{{DATE(…)}}``, the only expression that is evaluated everywhere in a card."""
    return text.replace("{{", "{ {")

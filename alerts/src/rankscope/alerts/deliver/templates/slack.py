"""Slack's incoming webhooks: Block Kit. Texts of alerts are plain text, without links, mentions or formatting.

Only commands and our own links use Slack's markup. Commands are code, in which only a backtick has a meaning.
"""

from __future__ import annotations

from typing import Any, Final

from rankscope.alerts.deliver.templates.alert_texts import AlertTexts, NoticeState, alert_texts, command_in, fitted, headline
from rankscope.alerts.payload import Payload
from rankscope.base.text import shortened

_MOST_OF_BLOCK: Final = 2_900
"""Slack takes 3,000 characters."""
_MOST_OF_HEADER: Final = 150
_SIGN: Final = {"critical": "🔴", "warning": "🟠", "info": "🔵"}
_SIGN_OF_STATE: Final[dict[NoticeState, str]] = {"resolved": "✅", "ended": "⬜"}


def slack(payload: bytes, _routing_key: str = "") -> bytes:
    """Build the message for a payload."""
    return fitted(_message, payload)


def _message(payload: Payload, cap: int) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for alert in payload.alerts:
        blocks += _blocks(alert_texts(alert, cap))
    if payload.truncated_alerts:
        blocks.append(_section(_plain(f"… and {payload.truncated_alerts} more", _MOST_OF_BLOCK)))
    # Shown in notifications. Escaped for clients that parse it as markup in spite of ``mrkdwn``.
    text = _escaped(headline(payload, cap))
    return {"text": text, "mrkdwn": False, "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def _blocks(content: AlertTexts) -> list[dict[str, Any]]:
    sign = _SIGN_OF_STATE.get(content.state) or _SIGN.get(content.severity, "⚪")
    lines = [content.summary, *(f"{name}: {text}" for name, text in content.fields)]
    commands: list[str] = []
    if not content.brief:
        for step in content.next:
            if command := command_in(step):
                commands.append(f"`{_escaped(command)}`")
            else:
                lines.append(f"next: {step}")
        # Long texts come last, because the end is truncated.
        lines += [content.description, content.deciding]
    links = " · ".join(f"<{address.replace('&', '&amp;')}|{words}>" for words, address in content.links)
    texts = (_plain("\n".join(filter(None, lines)), _MOST_OF_BLOCK), _links_and_commands(commands, links))
    return [
        {"type": "header", "text": _plain(f"{sign} {content.heading}", _MOST_OF_HEADER)},
        *(_section(text) for text in texts if text["text"]),
    ]


def _section(text: dict[str, Any]) -> dict[str, Any]:
    return {"type": "section", "text": text}


def _plain(text: str, most: int) -> dict[str, Any]:
    return {"type": "plain_text", "text": shortened(text, most), "emoji": False}


def _links_and_commands(commands: list[str], links: str) -> dict[str, Any]:
    """Build a section of the links and as many whole commands as fit: a truncated command would be wrong."""
    lines, room = [], _MOST_OF_BLOCK - len(links)
    for command in commands:
        room -= len(command) + 1
        if room >= 0:
            lines.append(command)
    return {"type": "mrkdwn", "text": "\n".join(filter(None, [*lines, links])), "verbatim": True}


def _escaped(text: str) -> str:
    """Escape Slack's control characters, and replace backticks, which would end a code span."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "ˋ")  # noqa: RUF001

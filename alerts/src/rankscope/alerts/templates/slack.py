"""Slack's incoming webhooks: Block Kit. Text of alerts is escaped, so that it can neither link, nor mention anybody."""

from __future__ import annotations

from typing import Any, Final

from rankscope.alerts.message import cut
from rankscope.alerts.payload import Payload
from rankscope.alerts.templates.facts import Facts, facts, fitted, headline

_MOST_OF_BLOCK: Final = 2_900
"""Slack takes 3,000 characters."""
_MOST_OF_HEADER: Final = 150
_SIGN: Final = {"critical": "🔴", "warning": "🟠", "info": "🔵"}


def slack(payload: bytes, _routing_key: str = "") -> bytes:
    """A message for the payload."""
    return fitted(_message, payload)


def _message(payload: Payload, cap: int) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    for alert in payload.alerts:
        blocks += _blocks(facts(alert, cap))
    if payload.truncated_alerts:
        blocks.append(_section(f"… and {payload.truncated_alerts} more"))
    return {"text": _escaped(headline(payload, cap)), "blocks": blocks, "unfurl_links": False, "unfurl_media": False}


def _blocks(told: Facts) -> list[dict[str, Any]]:
    sign = "✅" if told.status == "resolved" else _SIGN.get(told.severity, "⚪")
    header = {"type": "header", "text": {"type": "plain_text", "text": cut(f"{sign} {told.heading}", _MOST_OF_HEADER)}}
    lines = [_escaped(told.summary)]
    if told.status == "firing":
        lines += [f"*{name}:* {_escaped(text)}" for name, text in (("where", told.where), *told.details)]
        lines += [f"next: `{_escaped(step)}`" for step in told.next]
        # What may be long comes last: it is the end that is cut.
        lines += [_escaped(told.description), _escaped(told.evidence)]
    links = " · ".join(f"<{address.replace('&', '&amp;')}|{words}>" for words, address in told.links)
    # In a block of their own: cut, one would not be a link any more.
    return [header, *(_section(text) for text in ("\n".join(line for line in lines if line), links) if text)]


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(text, _MOST_OF_BLOCK)}}


def _escaped(text: str) -> str:
    """As Slack asks; and no backtick, which would end the code that a step is shown as."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "ˋ")  # noqa: RUF001

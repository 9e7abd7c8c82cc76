"""Request bodies: the payload unchanged, or in the format of a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rankscope.alerts.deliver.templates.pagerduty import pagerduty
from rankscope.alerts.deliver.templates.slack import slack
from rankscope.alerts.deliver.templates.teams import teams

if TYPE_CHECKING:
    from rankscope.alerts.deliver.targets import TemplateName

Template = Callable[[bytes, str], bytes]
"""Converts payload and routing key to a request body. Raises ``msgspec.DecodeError`` for an invalid payload."""


def _generic(payload: bytes, _routing_key: str) -> bytes:
    return payload


TEMPLATES: Final[dict[TemplateName, Template]] = {
    "generic": _generic,
    "slack": slack,
    "teams": teams,
    "pagerduty": pagerduty,
}
"""Templates for HTTP targets. For Apprise see ``apprise_courier.text_message``."""

"""The destinations of alerts: targets of the outbox, and Alertmanagers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankscope.alerts.deliver.endpoint import Endpoint
from rankscope.alerts.deliver.post import opaque_name, redact
from rankscope.alerts.deliver.retrying import RETRY_FOR_S
from rankscope.alerts.deliver.secret import Secret
from rankscope.alerts.payload import MAX_ALERTS

TemplateName = Literal["generic", "slack", "teams", "pagerduty", "apprise"]


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` deliveries per ``per_s`` seconds. A burst of ``count`` is allowed after ``per_s`` without any."""

    count: float
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Endpoint):
    """One target of the outbox."""

    name: str
    """Name in the outbox."""
    label: str
    """Name in messages to users."""
    template: TemplateName = "generic"
    secrets: tuple[Secret, ...] = ()
    """Signing secrets; each of them adds a signature."""
    routing_key: Secret | None = None
    """For PagerDuty only."""
    retry_for_s: float = RETRY_FOR_S
    rate: Rate | None = None

    @property
    def most_alerts(self) -> int:
        """Maximum number of alerts in one message."""
        return 1 if self.template == "pagerduty" else MAX_ALERTS


def webhook_target(url: str) -> Target:
    """Build the target for ``--webhook URL``."""
    name = opaque_name("webhook", url)
    # The name distinguishes webhooks on one host, and appears in outbox listings, too.
    return Target(name=name, label=f"{name} {redact(url)}", url=Secret(value=url))

"""A target of alerts: where it is, how it is spoken to, how patient we are with it. Needs no extra."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from rankscope.alerts.deliver.post import receiver_key, redact
from rankscope.alerts.deliver.retrying import RETRY_FOR_S
from rankscope.alerts.deliver.signing import Secret
from rankscope.alerts.payload import MAX_ALERTS

ATTEMPT_S: Final = 15.0
"""For one attempt, from the name server to the head of the answer."""

TemplateName = Literal["generic", "slack", "teams", "pagerduty", "apprise"]


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` deliveries per ``per_s`` seconds; as many may come at once when there were none for so long."""

    count: float
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One place that is told. Nothing of what may be secret is in its ``repr``."""

    name: str
    """As the outbox knows it."""
    key: str
    """As the watcher's state file knows it, in which there are Alertmanagers, too."""
    label: str
    """For people."""
    url: Secret
    template: TemplateName = "generic"
    secrets: tuple[Secret, ...] = ()
    """To sign with, all of them."""
    bearer: Secret | None = None
    basic: Secret | None = None
    """``USER:PASSWORD``."""
    routing_key: Secret | None = None
    """PagerDuty's."""
    retry_for_s: float = RETRY_FOR_S
    rate: Rate | None = None
    ca_file: Path | None = None
    proxy: str | None = field(default=None, repr=False)
    """Its address; empty for none; ``None`` for what the environment says."""
    timeout_s: float = ATTEMPT_S

    @property
    def most_alerts(self) -> int:
        """So many alerts fit into one message to it."""
        return 1 if self.template == "pagerduty" else MAX_ALERTS


def webhook_target(url: str) -> Target:
    """The target that ``--webhook URL`` means."""
    name = receiver_key("webhook", url)
    # Two of one host are told apart by the name, which lists of what waits for it have, too.
    return Target(name=name, key=name, label=f"{name} {redact(url)}", url=Secret(value=url))

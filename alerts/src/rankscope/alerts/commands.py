"""``rankscope alerts``: the group of its commands. What needs an extra is imported when it is used."""

from __future__ import annotations

import click

from rankscope.alerts.deliver.outbox_command import outbox
from rankscope.alerts.deliver.trial import test_webhook
from rankscope.alerts.receive.command import serve
from rankscope.alerts.replay.command import replay
from rankscope.alerts.rules.command import explain, rules
from rankscope.alerts.watch.command import watch


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def alerts() -> None:
    """Send, receive and explain alerts: Prometheus rules, the watcher, webhooks."""


for command in (explain, replay, rules, serve, outbox, test_webhook, watch):
    alerts.add_command(command)

"""A webhook receiver, and a sender that delivers to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.alerts.deliver.sender_world import SenderWorld
from tests.webhook_receiver import WebhookReceiver, receiving


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def world(receiver: WebhookReceiver) -> SenderWorld:
    return SenderWorld(receiver)

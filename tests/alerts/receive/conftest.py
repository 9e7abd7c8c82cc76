"""Fixtures shared by the tests of the receiver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.store.database import AlertStore


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with AlertStore(None) as store:
        yield Inbox(store)

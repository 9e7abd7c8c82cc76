"""Fixtures shared by the tests of the receiver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.alerts.receive.receiver_process import CONFIG, ListeningTarget, ReceiverProcess
from tests.alerts.receive.worker_world import WorkerWorld

from rankscope.alerts.receive.inbox import Inbox
from rankscope.alerts.store.database import AlertStore


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with AlertStore(None) as store:
        yield Inbox(store)


@pytest.fixture
def receiver(tmp_path: Path, target: ListeningTarget) -> Iterator[ReceiverProcess]:
    with ReceiverProcess(tmp_path, CONFIG.format(url=target.url)) as receiver:
        yield receiver


@pytest.fixture
def world() -> WorkerWorld:
    return WorkerWorld()

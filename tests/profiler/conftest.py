"""Fixtures shared by tests of real ranks."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.profiler.ranks import PreloadedTorch


@pytest.fixture(scope="session")
def torch_ranks(require_torch: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreloadedTorch]:
    """Process with torch imported: ``torch_ranks.command(2, script)`` is the command that trains on two ranks."""
    with PreloadedTorch(tmp_path_factory.mktemp("torch")) as torch:
        yield torch


@pytest.fixture
def refusing_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections until the test listens on it; no other process gets it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]

"""What tests of real ranks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.profiler.ranks import PreloadedTorch


@pytest.fixture(scope="session")
def torch_ranks(require_torch: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreloadedTorch]:
    """``torch_ranks.command(2, script)`` is the command that trains on two ranks."""
    with PreloadedTorch(tmp_path_factory.mktemp("torch")) as torch:
        yield torch

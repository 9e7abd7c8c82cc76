from __future__ import annotations

from pathlib import Path

import pytest
from tests.exporter.xid.journal_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "state")

"""The node of the golden pages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankscope.exporter.source import FleetState

GOLDEN = Path(__file__).parents[1] / "golden"
H100, A100, DIVIDED, HUNG = (f"GPU-{index}0000000-aaaa-bbbb-cccc-000000000000" for index in range(4))


def node() -> FleetState:
    """Return an H100, an A100 with an unreadable clock and a failing collector, an H100 divided by MIG, and a GPU that hangs."""
    return msgspec.json.decode((GOLDEN / "node.json").read_bytes(), type=FleetState)

"""Traces of jobs with several slow ranks: half of all, on one host; and delays that move from rank to rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.nccl.device import Rank
from tests.nccl.layouts import FAULTS, Layout, LayoutJob
from tests.nccl.traces import write_traces

from rankscope.analysis.engine import analyze

Slowness = Callable[[int, int], float]
"""Function from rank and step to the factor by which its kernels take longer."""


class SeveralSlow(LayoutJob):
    """Job whose kernels take longer on several ranks."""

    def __init__(self, layout: Layout, slow: Slowness) -> None:
        self.slow = slow
        super().__init__(layout, FAULTS["none"], steps=12)

    def slowness(self, rank: Rank, name: str) -> float:
        """Return the factor by which a kernel takes longer than usual."""
        return super().slowness(rank, name) * self.slow(rank.rank, rank.step)


def write(folder: Path, layout: Layout, slow: Slowness) -> Path:
    """Write the traces of ten steps."""
    write_traces(SeveralSlow(layout, slow), folder, steps=range(1, 11))
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_host_with_half_of_all_ranks_is_slow_by_its_devices(tmp_path: Path, kind: str) -> None:
    verdict = analyze([write(tmp_path, Layout(kind, 16), lambda rank, _step: 1.3 if rank >= 8 else 1.0)]).verdict
    assert (verdict.kind, verdict.ranks, verdict.hosts) == ("straggler", list(range(8, 16)), ["node1"]), verdict.summary
    assert verdict.cause == "compute", verdict.summary
    assert verdict.slowdown == pytest.approx(1.25, abs=0.06)

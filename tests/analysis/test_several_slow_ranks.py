"""Traces and dumps of jobs with several slow ranks: half of all, on one host; and delays that move from rank to rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.nccl.device import Rank
from tests.nccl.dumps import write_dumps
from tests.nccl.faults import FAULTS
from tests.nccl.layouts import Layout, LayoutJob
from tests.nccl.traces import write_traces

from rankscope.analysis.engine import analyze

Slowness = Callable[[int, int], float]
"""Function from rank and step to the factor by which its kernels take longer."""


class SeveralSlow(LayoutJob):
    """Job whose kernels take longer on several ranks."""

    def __init__(self, layout: Layout, slow: Slowness, steps: int = 12) -> None:
        self.slow = slow
        super().__init__(layout, FAULTS["none"], steps=steps)

    def slowness(self, rank: Rank, name: str) -> float:
        """Return the factor by which a kernel takes longer than usual."""
        return super().slowness(rank, name) * self.slow(rank.rank, rank.step)


def write(folder: Path, layout: Layout, slow: Slowness) -> Path:
    """Write the traces of ten steps."""
    write_traces(SeveralSlow(layout, slow), folder, steps=range(1, 11))
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_host_with_half_of_all_ranks_is_slow_by_its_devices(tmp_path: Path, kind: str) -> None:
    verdict = analyze([write(tmp_path, Layout(kind, 16), lambda rank, _step: 1.3 if rank >= 8 else 1.0)]).verdict
    assert (verdict.kind, verdict.ranks, verdict.hosts) == ("straggler", list(range(8, 16)), ["node1"]), verdict.summary
    assert verdict.cause == "compute", verdict.summary
    assert verdict.slowdown == pytest.approx(1.25, abs=0.06)


def test_delays_that_move_between_ranks_are_a_rotating_straggler(tmp_path: Path) -> None:
    # given a job in whose every step another rank is slower by two fifths
    layout = Layout("ddp", 8)
    result = analyze([write(tmp_path, layout, lambda rank, step: 1.4 if rank == step % 8 else 1.0)])
    verdict = result.verdict
    assert (verdict.kind, verdict.pattern, verdict.rank, verdict.cause) == ("straggler", "rotating", None, "compute")
    assert verdict.slowdown == pytest.approx(1.38, abs=0.05)
    assert result.waterfall is not None
    assert (result.waterfall.share("straggler_wait") or 0.0) > 0.2


def test_few_steps_with_waiting_ranks_are_not_balanced(tmp_path: Path) -> None:
    job = SeveralSlow(Layout("ddp", 8), lambda rank, step: 1.4 if rank == step % 8 else 1.0)
    write_traces(job, tmp_path, steps=range(1, 4))
    verdict = analyze([tmp_path]).verdict
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", []), verdict.summary
    assert "wait for each other" in verdict.summary


def test_moving_delays_in_dumps_are_not_balanced(tmp_path: Path) -> None:
    job = SeveralSlow(Layout("ddp", 8), lambda rank, step: 1.4 if rank == step % 8 else 1.0, steps=20)
    write_dumps(job, tmp_path)
    verdict = analyze([tmp_path]).verdict
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", []), verdict.summary
    assert "wait for each other at least" in verdict.summary


def test_durations_in_another_unit_give_no_cost(tmp_path: Path) -> None:
    # given dumps of which one has microseconds in place of milliseconds
    write_dumps(SeveralSlow(Layout("ddp", 8), lambda rank, _step: 1.3 if rank == 3 else 1.0, steps=20), tmp_path)
    path = tmp_path / "dump_2.json"
    dump = msgspec.json.decode(path.read_bytes())
    for entry in dump["entries"]:
        entry["duration_ms"] *= 1000
    path.write_bytes(msgspec.json.encode(dump))
    verdict = analyze([tmp_path]).verdict
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", []), verdict.summary
    assert "times are wrong" in verdict.summary

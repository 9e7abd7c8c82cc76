"""Real messages between two gloo ranks: sizes, pairs, and who waited for whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.engine import analyze
from rankscope.analysis.result import Analysis

SCRIPT = Path(__file__).with_name("gloo_exchange.py")
PAUSE_US = 60_000
ROUNDS = 5
BYTES = 4 << 20


def exchange(folder: Path, late_rank: int) -> Analysis:
    environment = {**os.environ, "KINETO_LOG_LEVEL": "6", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(rank), str(late_rank), str(PAUSE_US / 1e6)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], errors
    return analyze([folder])


@pytest.mark.slow
@pytest.mark.parametrize("late_rank", [0, 1])
def test_the_late_end_of_each_message_is_charged(require_torch: None, tmp_path: Path, late_rank: int) -> None:
    analysis = exchange(tmp_path, late_rank)
    waits = {(row.op, row.waiter, row.origin): row for row in analysis.collectives.waits}
    planted = waits["send", 1 - late_rank, late_rank]
    assert planted.count == ROUNDS
    assert planted.wait_us > 0.8 * ROUNDS * PAUSE_US
    assert sum(row.wait_us for row in waits.values()) < 1.2 * planted.wait_us
    assert analysis.collectives.excluded == {}
    rows = {row.op: row for row in analysis.collectives.by_op}
    assert {op: (row.bytes, row.matched) for op, row in rows.items()} == {
        "all_reduce": (BYTES, ROUNDS),
        "send": (BYTES, ROUNDS),
    }
    # The pause is waiting, so none of it is in the transfer.
    assert rows["send"].transfer_us is not None
    assert rows["send"].transfer_us < PAUSE_US
    assert rows["send"].bus_gb_s == pytest.approx(BYTES / rows["send"].transfer_us / 1000, rel=0.2)
    assert {row.expected_gb_s for row in rows.values()} == {None}

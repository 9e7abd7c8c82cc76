"""Signals of a slow rank in step records, against few or thousands of peers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.step_files import table_of_records

from rankscope.analysis.causes import cause_of
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.inference.reasons.step_signals import MOST_PEERS, signals_of
from rankscope.runs.records import PhaseTimes, StepRecord

SLOW, STEPS, EXCESS_US = 3, 6, 50.0


def table_of(ranks: int) -> StepTable:
    """Return a table in which forward takes as many us as the rank's number, the slow rank ``EXCESS_US`` above the median."""

    def record(rank: int, step: int) -> StepRecord:
        forward = (ranks - 1) / 2 + EXCESS_US if rank == SLOW else float(rank)
        phases, blocked = PhaseTimes(forward=forward, backward=100.0), PhaseTimes(backward=0.0)
        return StepRecord(step=step, start_unix_ns=1, wall_us=forward + 100, phases_us=phases, blocked_us=blocked)

    return table_of_records({rank: [record(rank, step) for step in range(STEPS)] for rank in range(ranks)})


@pytest.mark.parametrize("ranks", [9, MOST_PEERS + 1, 5 * MOST_PEERS])
def test_excess_is_over_the_median_peer_for_any_number_of_ranks(ranks: int) -> None:
    peers = [rank for rank in range(ranks) if rank != SLOW]
    signals = signals_of(table_of(ranks), SLOW, np.ones(STEPS, dtype=bool), peers, device_busy_us=None)
    # With thousands of peers a sample is taken, whose median is at most one stride away.
    assert signals.phases_us["forward"] == pytest.approx(EXCESS_US, abs=max(1.0, ranks / MOST_PEERS))
    assert signals.phases_us["backward"] == pytest.approx(0)
    assert signals.phase == "forward"


def test_only_the_affected_steps_count() -> None:
    table = table_of(9)
    affected = np.zeros(STEPS, dtype=bool)
    assert signals_of(table, SLOW, affected, [1, 2], device_busy_us=None).phases_us == {}
    affected[2] = True
    assert signals_of(table, SLOW, affected, [4], device_busy_us=None).phases_us["forward"] == pytest.approx(EXCESS_US)


def test_agreement_is_the_share_of_resamples_with_the_same_cause() -> None:
    # given a rank that waits for its data in some steps, and sleeps in forward in the others
    def table(of_data: int) -> StepTable:
        def record(rank: int, step: int) -> StepRecord:
            data, forward = ((50.0, 10.0) if step % 16 < of_data else (10.0, 70.0)) if rank == SLOW else (10.0, 10.0)
            phases = PhaseTimes(data=data, forward=forward, backward=100.0)
            return StepRecord(
                step=step,
                start_unix_ns=1,
                wall_us=data + forward + 100,
                phases_us=phases,
                blocked_us=PhaseTimes(backward=0.0),
                cpu_us=20.0,
                run_queue_us=0.0,
            )

        return table_of_records({rank: [record(rank, step) for step in range(16)] for rank in range(8)})

    peers = [rank for rank in range(8) if rank != SLOW]
    always = np.ones(16, dtype=bool)
    causes = {}
    for of_data in (0, 9, 16):
        signals = signals_of(table(of_data), SLOW, always, peers, device_busy_us=None)
        causes[of_data] = cause_of(signals).cause, signals.agreement
    assert causes[0] == ("host", 1.0)
    assert causes[16] == ("input", 1.0)
    # then the cause is doubtful where it depends on the steps that happen to be there
    assert causes[9][1] is not None
    assert 0.4 < causes[9][1] < 0.8


@pytest.mark.parametrize(
    ("slow", "peers", "cause"),
    [
        # The rank sleeps, and the others use the CPU while they wait for their devices.
        ((20.0, 0.0), (95.0, 0.0), "host"),
        # All threads use the CPU while they wait, this one for its slow device.
        ((95.0, 0.0), (95.0, 0.0), "unknown"),
        # Nobody's wait uses the CPU.
        ((20.0, 0.0), (20.0, 0.0), "unknown"),
        # It queues for a CPU.
        ((20.0, 75.0), (95.0, 0.0), "compute"),
    ],
)
def test_cpu_time_distinguishes_a_sleeping_host_from_a_slow_device(
    slow: tuple[float, float], peers: tuple[float, float], cause: str
) -> None:
    """Own times of a device are as long whichever of the two is late."""

    def record(rank: int, step: int) -> StepRecord:
        own, (cpu, queue) = (80.0, slow) if rank == SLOW else (20.0, peers)
        return StepRecord(
            step=step,
            start_unix_ns=1,
            wall_us=100.0,
            phases_us=PhaseTimes(forward=20.0),
            device_us=PhaseTimes(forward=100.0),
            device_blocked_us=PhaseTimes(forward=100 - own),
            cpu_us=cpu,
            run_queue_us=queue,
        )

    table = table_of_records({rank: [record(rank, step) for step in range(STEPS)] for rank in range(4)})
    others = [rank for rank in range(4) if rank != SLOW]
    signals = signals_of(table, SLOW, np.ones(STEPS, dtype=bool), others, device_busy_us=None)
    signals = replace(signals, device_unseen=True)
    assert signals.own_us == pytest.approx(60)
    assert (cause_of(signals).cause, signals.sleeps) == (cause, cause == "host")

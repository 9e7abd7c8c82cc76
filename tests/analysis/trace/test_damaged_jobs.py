"""Traces of a job with one slow rank whose device events are damaged: that rank is named, or none, and why."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.trace_events import Event, annotation, kernel, launch, written

from rankscope.analysis.engine import analyze
from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.base.errors import InputError

RANKS: Final = 4
SLOW: Final = 2
STEPS: Final = 10
KERNELS: Final = 10
KERNEL_US: Final = 7_000.0
TRANSFER_US: Final = 3_000.0
LATE_US: Final = 60_000.0
"""Time for which the slow rank makes the others wait in a step of 136 ms."""
START_US: Final = 5e12
NCCL: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def job(fault: str, *, numbered: bool) -> list[list[Event]]:
    """Return the events of each rank. Two all-reduces in a step, after half of its kernels and after the other half."""
    events: list[list[Event]] = [[] for _ in range(RANKS)]
    rng = random.Random(1)
    at, number = START_US, 0
    for step in range(STEPS):
        begin, free = at, [at + (LATE_US if fault == "host" and rank == SLOW else 0.0) for rank in range(RANKS)]
        for half in range(2):
            for rank in range(RANKS):
                took = KERNEL_US + (LATE_US / KERNELS if fault == "device" and rank == SLOW else 0.0)
                for place in range(KERNELS // 2):
                    length = round(took * rng.uniform(0.99, 1.01), 3)
                    events[rank] += launched(number + place + 1, f"gemm_{place}", free[rank], length, 7)
                    free[rank] += length + 5
            number += KERNELS // 2 + 1
            end = max(free) + TRANSFER_US
            output = collective(2 * step + half if numbered else None)
            for rank in range(RANKS):
                events[rank] += launched(
                    number, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", free[rank], end - free[rank], 20, **output
                )
            free = [end + 5] * RANKS
        at = max(free) + 20
        for event in events:
            event.append(annotation(f"ProfilerStep#{step}", begin, at - begin))
    return events


def launched(number: int, name: str, ts: float, dur: float, stream: int, **args: Any) -> list[Event]:
    times = {"ts": round(ts, 3), "dur": round(dur, 3)}
    return [launch(number, round(ts - 12, 3)), kernel(name, 0, 0, stream, number, **args) | times]


def collective(sequence: int | None) -> dict[str, Any]:
    if sequence is None:
        return {}
    by_key = {"Collective_name": "allreduce", "Process_Group_Name": "0", "Group_size": RANKS, "dtype": "Float"}
    return by_key | {"In_msg_nelems": 1 << 20, "Out_msg_nelems": 1 << 20, "Seq": sequence}


def untimed(_rng: random.Random, event: Event) -> None:
    event |= {"ts": 0, "dur": 0}


def far(rng: random.Random, event: Event) -> None:
    event["ts"] += rng.choice((-1, 1)) * rng.choice((2e7, 3.6e9, 1e12))


def overlong(rng: random.Random, event: Event) -> None:
    event["dur"] += rng.choice((4e5, 5e5, 3e7))


def dropped(_rng: random.Random, event: Event) -> None:
    event["ph"] = "dropped"


WAYS: Final[dict[str, Callable[[random.Random, Event], None]]] = {
    "untimed": untimed,
    "far": far,
    "overlong": overlong,
    "dropped": dropped,
}


def damaged(events: list[Event], way: str, share: float, seed: int | None) -> list[Event]:
    """Damage a share of the kernels: the first ones, or with a ``seed`` at random."""
    rng = random.Random(seed)
    kernels = sorted((event for event in events if event["cat"] == "kernel"), key=lambda event: event["ts"])
    count = round(share * len(kernels))
    for event in kernels[:count] if seed is None else rng.sample(kernels, count):
        WAYS[way](rng, event)
    return [event for event in events if event["ph"] == "X"]


def write(folder: Path, events: list[list[Event]]) -> Path:
    for rank, event in enumerate(events):
        about = {"rank": rank, "world_size": RANKS, "backend": "nccl"}
        path = folder / f"rank-{rank}.json"
        written(path, event, distributedInfo=about, host_name="node0", baseTimeNanoseconds=1_700_000_000_000_000_000)
    return folder


def lost_s(hours: float | None) -> float:
    """Return the lost time of a step, in seconds of the job."""
    return (hours or 0.0) * 3600 / RANKS / STEPS


def check(analysis: Analysis) -> None:
    """Check that the slow rank is named, or that data are insufficient and their quality shows why."""
    verdict = analysis.verdict
    if verdict.kind == "straggler":
        assert verdict.ranks == [SLOW], verdict.summary
        assert lost_s(verdict.gpu_hours_lost) < 1
    else:
        assert (verdict.kind, verdict.ranks) == ("insufficient_data", []), verdict.summary
        qualities = [row.data_quality for row in analysis.ranks if row.data_quality is not None]
        assert any(quality.problem or quality.damaged_steps for quality in qualities) or "device events" in verdict.summary


def check_all(folder: Path) -> None:
    check(analyze([folder]))
    try:
        answer = whatif([folder])
    except InputError as error:
        if "no trace can be used" not in error.reason:
            raise
    else:
        if answer.status == "ok":
            worst = max(answer.by_rank, key=lambda row: row.saved_seconds)
            assert worst.rank == SLOW or worst.saved_seconds < 0.01, answer.summary
            # Without annotations, the whole file is one step.
            steps = answer.source.steps + answer.source.steps_left_out
            assert (answer.saved_seconds or 0.0) < STEPS / steps, answer.summary
    written = bytearray()
    export_perfetto([folder], written.extend)
    assert written


@pytest.mark.parametrize("fault", ["device", "host"])
@pytest.mark.parametrize("numbered", [True, False])
def test_slow_rank_of_an_undamaged_job_is_named(tmp_path: Path, fault: str, *, numbered: bool) -> None:
    folder = write(tmp_path, job(fault, numbered=numbered))
    verdict = analyze([folder]).verdict
    assert (verdict.kind, verdict.ranks) == ("straggler", [SLOW])
    assert lost_s(verdict.gpu_hours_lost) == pytest.approx(LATE_US / 1e6, rel=0.05)
    assert whatif([folder]).saved_seconds == pytest.approx(LATE_US / 1e6, rel=0.05)


class Damage(NamedTuple):
    """Damage to a job."""

    way: str
    share: float
    rank: int | None
    """The only rank with damage; ``None`` for all."""
    seed: int | None
    """Seed of the random choice; ``None`` for the first kernels."""


DAMAGES: Final = st.builds(
    Damage,
    st.sampled_from(list(WAYS)),
    st.sampled_from([0.01, 0.1, 0.4]),
    st.none() | st.integers(0, RANKS - 1),
    st.none() | st.integers(0, 1000),
)


@pytest.mark.full
@settings(max_examples=50, derandomize=True)
@given(fault=st.sampled_from(["device", "host"]), numbered=st.booleans(), has_steps=st.booleans(), damage=DAMAGES)
@pytest.mark.slow
def test_no_other_rank_of_a_damaged_job_is_named(
    tmp_path_factory: pytest.TempPathFactory, fault: str, damage: Damage, *, numbered: bool, has_steps: bool
) -> None:
    events = job(fault, numbered=numbered)
    if not has_steps:
        events = [[event for event in item if event["cat"] != "user_annotation"] for item in events]
    for rank in range(RANKS):
        if damage.rank in (None, rank):
            seed = None if damage.seed is None else damage.seed + rank
            events[rank] = damaged(events[rank], damage.way, damage.share, seed)
    check_all(write(tmp_path_factory.mktemp("job"), events))

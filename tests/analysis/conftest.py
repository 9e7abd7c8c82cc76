"""Synthetic runs with known ground truth, written with the real writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.step_files import append

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis
from rankscope.runs.paths import host_dir, rank_dir
from rankscope.runs.records import (
    PHASES,
    AttemptInfo,
    CollectiveRecord,
    DeviceKind,
    EndReason,
    HardwareSample,
    Phase,
    PhaseTimes,
    Pipeline,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.small_files import create_attempt, create_run, write_record

USUAL_US: dict[Phase, float] = {"data": 5_000, "forward": 30_000, "backward": 50_000, "optimizer": 10_000, "between_steps": 5_000}
"""Phase durations of a step of 100 ms."""


@dataclass
class Extra:
    """Extra time of one rank in one phase of one step, and its symptoms in the record."""

    phase: Phase = "forward"
    us: float = 0.0
    cpu: bool = False
    run_queue: bool = False
    gc: bool = False
    elements: float = 1.0
    tags: list[str] = field(default_factory=list)


Plan = Callable[[int, int], dict[str, Any] | None]
"""(rank, step) to the fields of the ``Extra`` planted in that step."""


def plan_for(rank: int, **extra: Any) -> Plan:
    """Return the plan that plants the same ``Extra`` in every step of one rank."""
    return lambda planned_rank, _step: extra if planned_rank == rank else None


@dataclass
class SyntheticRun:
    """Run whose ranks synchronise in backward: the rank with the shortest own time is blocked the longest."""

    path: Path
    ranks: int = 4
    steps: int = 40
    noise: float = 0.05
    seed: int = 0
    plan: Plan = lambda _rank, _step: None
    signals: bool = True
    """False: no blocked time is recorded, so own time is unknown."""
    device_kind: DeviceKind = "cuda"
    simulated: bool = False
    price: float | None = None
    phases: dict[Phase, float] = field(default_factory=lambda: dict(USUAL_US))
    transfer_us: float = 4_000
    lost_after: dict[int, int] = field(default_factory=dict)
    """Rank to the number of steps that it recorded before it was lost."""
    dropped: dict[int, set[int]] = field(default_factory=dict)
    """Rank to the steps whose records are missing."""
    end_reasons: dict[int, EndReason] = field(default_factory=dict)
    coordinates: dict[int, dict[str, int]] = field(default_factory=dict)
    """Rank to its coordinates in the parallel layout."""
    pipeline: Pipeline | None = None
    gpus: bool = False
    """True if each rank trains on the GPU ``GPU-RANK``."""
    fields: Callable[[int, int], dict[str, Any]] = lambda _rank, _step: {}
    """(rank, step) to additional or overriding fields of the step record."""
    rank_fields: dict[str, Any] = field(default_factory=dict)
    """Additional fields of every ``rank.json``."""

    def write(self) -> Path:
        rng = np.random.default_rng(self.seed)
        create_run(
            self.path,
            RunInfo(
                run_id=f"{self.path.name}-1",
                name="synthetic",
                start_unix_ns=10**18,
                simulated=self.simulated,
                price_per_gpu_hour=self.price,
                currency="EUR",
            ),
        )
        create_attempt(
            self.path, AttemptInfo(attempt=0, start_unix_ns=10**18, world_size=self.ranks, backend="nccl", pipeline=self.pipeline)
        )
        rows = self._records(rng)
        for rank in range(self.ranks):
            kept = rows[rank][: self.lost_after.get(rank, self.steps)]
            kept = [record for record in kept if record.step not in self.dropped.get(rank, ())]
            if not kept:
                continue
            folder = rank_dir(self.path, 0, rank)
            info = RankInfo(
                rank=rank,
                world_size=self.ranks,
                pid=100 + rank,
                device_kind=self.device_kind,
                start_unix_ns=10**18,
                end_reason=self.end_reasons.get(rank, "exit"),
                coordinates=self.coordinates.get(rank, {}),
                **{"host": f"n{rank // 2}"}
                | ({"gpu_uuid": f"GPU-{rank}", "gpu_name": "H100"} if self.gpus else {})
                | self.rank_fields,
            )
            write_record(folder / "rank.json", info)
            append(folder, "steps", *kept)
        return self.path

    def _records(self, rng: np.random.Generator) -> list[list[StepRecord]]:
        rows: list[list[StepRecord]] = [[] for _ in range(self.ranks)]
        start = 10**18
        for step in range(self.steps):
            own: list[dict[Phase, float]] = []
            extras: list[Extra] = []
            for rank in range(self.ranks):
                extra = Extra(**(self.plan(rank, step) or {}))
                times = {phase: us * float(rng.lognormal(0, self.noise)) for phase, us in self.phases.items()}
                times[extra.phase] = times.get(extra.phase, 0.0) + extra.us
                own.append(times)
                extras.append(extra)
            wall = max(sum(times.values()) for times in own) + self.transfer_us
            for rank, (times, extra) in enumerate(zip(own, extras, strict=True)):
                total = sum(times.values())
                blocked = wall - total
                phases = {**times, "backward": times.get("backward", 0.0) + blocked}
                usual: dict[str, Any] = {
                    "step": step,
                    "start_unix_ns": start,
                    "wall_us": wall,
                    "phases_us": PhaseTimes(**{name: phases.get(name) for name in PHASES}),
                    "blocked_us": PhaseTimes(backward=blocked) if self.signals else None,
                    "cpu_us": 0.9 * (total - (0 if extra.cpu else extra.us)),
                    "run_queue_us": 500.0 + (extra.us if extra.run_queue else 0.0),
                    "gc_us": extra.us if extra.gc else 0.0,
                    "samples": 8,
                    "input_elements": int(4096 * extra.elements),
                    "tags": extra.tags,
                }
                rows[rank].append(StepRecord(**(usual | self.fields(rank, step))))
            start += int(wall * 1000)
        return rows


def analyse(run: SyntheticRun) -> Analysis:
    """Write a run and analyse it."""
    return analyze([run.write()])


AddWindows = Callable[[Path, int, list[StepBreakdown], list[CollectiveRecord]], None]
AddHardware = Callable[[Path, str, list[HardwareSample]], None]


@pytest.fixture
def add_windows() -> AddWindows:
    """Function ``add_windows(run, rank, breakdowns, collectives)``, which adds profiled steps to a rank of a run."""

    def add(run: Path, rank: int, breakdowns: list[StepBreakdown], collectives: list[CollectiveRecord]) -> None:
        append(rank_dir(run, 0, rank), "windows", *breakdowns)
        append(rank_dir(run, 0, rank), "collectives", *collectives)

    return add


@pytest.fixture
def add_hardware() -> AddHardware:
    """Function ``add_hardware(run, host, samples)``, which adds hardware samples of a host to a run."""
    return lambda run, host, samples: append(host_dir(run, host), "gpu", *samples)


@pytest.fixture
def synthetic(tmp_path: Path) -> Callable[..., SyntheticRun]:
    """Factory of ``SyntheticRun``: ``synthetic(plan=…).write()`` returns the run folder; several runs need a ``folder`` each."""

    def make(folder: str = "run", **options: Any) -> SyntheticRun:
        return SyntheticRun(path=tmp_path / folder, **options)

    return make

"""Simulated fleet: own times of ranks, with and without a fault, written as the run directory that the recorder would leave.

Ranks meet once a step, or once in several. A step ends together: it takes the longest own time of all ranks, plus the transfer.
All other ranks wait for that in backward. Own times are microseconds, [ranks, steps].
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from benchmarks.common.make_run import RANKS_PER_HOST, START_NS, with_checksums
from numpy.typing import NDArray

from rankscope.analysis.result.cause import Cause
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import AttemptInfo, RankInfo, RunInfo, StepEvent
from rankscope.runs.segment_writer import JsonLinesWriter, RowWriter
from rankscope.runs.small_files import create_attempt, create_run, write_record
from rankscope.runs.step_columns import HAS_BLOCKED, unknown_rows

STEP_US = 80_000.0
"""Own time of a healthy step."""
TRANSFER_US = 4_000.0
PARTS = {"data": 0.01, "forward": 0.35, "backward": 0.5, "optimizer": 0.12, "between_steps": 0.02}
"""Share of the healthy own time by phase, in the order of the phases in a step."""
CPU_SHARE = 0.98
"""CPU time of the training thread as a share of the healthy own time. Pauses and faults use none."""

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class ExpectedAnswer(NamedTuple):
    """Right answer about a fleet."""

    answer: Literal["names", "none", "rotating", "rare"]
    """``none``: no rank is at fault. ``rotating``: the same, and the ranks wait for each other in turn. ``rare``: what few steps
    cost is reported, with the cause and the rank (``ranks``; none: of no single one)."""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    undecided: bool = False
    """True if "not enough data" is right, too."""
    or_rotating: bool = False
    """True if the slowness may also be reported as rotating, without a rank."""
    cause: Cause | None = None
    """Cause that must be given; ``None``: any."""

    @property
    def must_name(self) -> bool:
        """True if only an answer that names ranks is right."""
        return self.answer == "names" and not self.undecided and not self.or_rotating


@dataclass(frozen=True)
class PlantedFleet:
    """Own times of a job with a fault, and everything else that its run directory shows."""

    base: Floats
    """Healthy own times, spread over the phases."""
    expected: ExpectedAnswer
    fault: Floats | float = 0.0
    """Additional own time by the fault, in ``fault_phase``."""
    pauses: Floats | float = 0.0
    """Additional time in forward that is there without the fault, too."""
    fault_phase: Literal["forward", "between_steps"] = "forward"
    of_collections: bool = False
    """True if the pauses are garbage collections."""
    missing: Mask | None = None
    """Records that are not in the files."""
    absent: tuple[int, ...] = ()
    """Ranks that left nothing at all."""
    tags: dict[tuple[int, int], str] = field(default_factory=dict)
    """(rank, step) to its tag."""
    rare: Mask | None = None
    """Steps [steps] that are not typical."""
    earlier: PlantedFleet | None = None
    """Attempt before this one."""
    meets_every: int = 1
    """Number of steps after which the ranks meet; divides the number of steps."""
    waits_known: bool = True
    """False if steps in which the ranks do not meet are recorded without blocked time, instead of none."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of ranks and steps."""
        ranks, steps = self.base.shape
        return ranks, steps

    @property
    def healthy(self) -> Floats:
        """Own times without the fault."""
        return self.base + self.pauses

    @property
    def own(self) -> Floats:
        """Own times with the fault."""
        return self.healthy + self.fault

    def without_fault(self) -> PlantedFleet:
        """Return the same fleet, of the same noise, without its fault."""
        # Without any record of a rank, whether that rank is slow may stay unknown.
        undecided = self.expected.undecided and set(self.expected.ranks) <= set(self.absent)
        return replace(self, fault=0.0, tags={}, rare=None, expected=ExpectedAnswer("none", undecided=undecided))

    @property
    def recorded(self) -> Mask:
        """Records [ranks, steps] that are in the files."""
        recorded = np.ones(self.shape, bool) if self.missing is None else ~self.missing
        recorded[list(self.absent)] = False
        return recorded

    @property
    def blocked(self) -> Floats:
        """Time that each rank is blocked in each step."""
        return blocked_times(self.own, self.meets_every)

    @property
    def saving(self) -> float:
        """Share of the typical step that healing the fault saves."""
        typical = slice(None) if self.rare is None else ~self.rare
        return 1 - job_us(self.healthy[:, typical], self.meets_every) / job_us(self.own[:, typical], self.meets_every)

    @property
    def rare_share(self) -> float | None:
        """Share of the job's time that its rare steps take beyond as many typical ones."""
        if self.rare is None:
            return None
        walls = self.own.max(axis=0) + TRANSFER_US
        typical = float(np.median(walls[~self.rare]))
        return float((walls[self.rare] - typical).sum() / walls.sum())

    @property
    def waiting(self) -> float:
        """Share of the job's time that the ranks wait for each other."""
        transfers = self.own.size / self.meets_every * TRANSFER_US
        return float((self.blocked.sum() - transfers) / (self.own + self.blocked).sum())


def host_of(rank: int) -> str:
    """Return the host of a rank."""
    return f"node{rank // RANKS_PER_HOST:04d}"


def _by_meeting(own: Floats, every: int) -> Floats:
    """Return the own time of each rank between two meetings, [ranks, meetings]."""
    arrivals: Floats = own.reshape(len(own), -1, every).sum(axis=2)
    return arrivals


def blocked_times(own: Floats, every: int = 1) -> Floats:
    """Return how long each rank is blocked in each step, [ranks, steps]: until the last one arrives, and during the transfer."""
    arrivals = _by_meeting(own, every)
    blocked = np.zeros_like(own)
    blocked[:, every - 1 :: every] = arrivals.max(axis=0) - arrivals + TRANSFER_US
    return blocked


def job_us(own: Floats, every: int = 1) -> float:
    """Return the time of the whole job."""
    return float((_by_meeting(own, every).max(axis=0) + TRANSFER_US).sum())


def phase_times(fleet: PlantedFleet) -> dict[str, Floats]:
    """Return the own time in each phase, [ranks, steps], in the order of the phases."""
    times = {phase: share * fleet.base for phase, share in PARTS.items()}
    times["forward"] = times["forward"] + fleet.pauses
    times[fleet.fault_phase] = times[fleet.fault_phase] + fleet.fault
    return times


def write_fleet(fleet: PlantedFleet, run: Path) -> None:
    """Write the run directory of a fleet."""
    create_run(run, RunInfo(run_id="fleet", name="fleet", start_unix_ns=START_NS))
    start = START_NS
    for attempt, part in enumerate((fleet,) if fleet.earlier is None else (fleet.earlier, fleet)):
        start = _write_attempt(part, run, attempt, start) + 60_000_000_000


def _write_attempt(fleet: PlantedFleet, run: Path, attempt: int, start: int) -> int:
    """Write an attempt that starts at ``start`` (Unix ns) and return its end."""
    ranks, steps = fleet.shape
    create_attempt(run, AttemptInfo(attempt=attempt, start_unix_ns=start, world_size=ranks, backend="nccl"))
    times, blocked, recorded = phase_times(fleet), fleet.blocked, fleet.recorded
    end = start + round(job_us(fleet.own, fleet.meets_every) * 1000)
    rng = np.random.default_rng(steps)
    waits_us, switches = rng.exponential(150, steps), rng.integers(20, 60, steps)
    for rank in range(ranks):
        if rank in fleet.absent:
            continue
        folder = rank_dir(run, attempt, rank)
        write_record(
            folder / "rank.json",
            RankInfo(
                rank=rank,
                world_size=ranks,
                attempt=attempt,
                host=host_of(rank),
                pid=1000 + rank,
                local_rank=rank % RANKS_PER_HOST,
                device_kind="cuda",
                gpu_uuid=f"GPU-{rank:08x}-0000-4000-8000-{rank:012x}",
                gpu_name="NVIDIA H100 80GB HBM3",
                start_unix_ns=start,
                end_unix_ns=end,
                end_reason="exit",
            ),
        )
        rows = _rows(fleet, rank, {phase: of_ranks[rank] for phase, of_ranks in times.items()}, blocked[rank], start)
        rows["run_queue_us"], rows["voluntary_switches"] = np.roll(waits_us, rank), np.roll(switches, rank)
        _append(folder, rank, attempt, with_checksums(rows)[recorded[rank]], fleet.tags)
    return end


def _rows(fleet: PlantedFleet, rank: int, times: dict[str, Floats], blocked: Floats, start: int) -> NDArray[Any]:
    """Return the step records of a rank as rows, without checksums."""
    rows = unknown_rows(len(blocked))
    walls = sum(times.values()) + blocked
    rows["step"], rows["wall_us"] = np.arange(len(rows)), walls
    rows["start_unix_ns"] = start + np.concatenate([[0], np.cumsum((walls * 1000).astype(np.int64))[:-1]])
    for phase, of_phase in times.items():
        rows[f"{phase}_us"] = of_phase + blocked if phase == "backward" else of_phase
        rows[f"blocked_{phase}_us"] = blocked if phase == "backward" else 0.0
    pauses = np.broadcast_to(fleet.pauses, fleet.shape)[rank]
    rows["gc_us"] = pauses if fleet.of_collections else 0.0
    rows["cpu_us"] = CPU_SHARE * fleet.base[rank] + (pauses if fleet.of_collections else 0.0)
    rows["involuntary_switches"] = 0
    rows["samples"], rows["input_elements"] = 32, 65_536
    sampled = rows["step"] % 10 == 0
    rows["allocated_bytes"], rows["resident_bytes"] = np.where(sampled, 30 << 30, -1), np.where(sampled, 9 << 30, -1)
    meets = np.arange(len(rows)) % fleet.meets_every == fleet.meets_every - 1
    rows["flags"] = np.where(meets | fleet.waits_known, HAS_BLOCKED, 0)
    for phase in PARTS:
        rows[f"blocked_{phase}_us"][rows["flags"] == 0] = np.nan
    return rows


def _append(folder: Path, rank: int, attempt: int, rows: NDArray[Any], tags: dict[tuple[int, int], str]) -> None:
    """Write the recorded rows of a rank, and the events of those with a tag."""
    writer, events = RowWriter(folder, rank=rank, attempt=attempt), JsonLinesWriter(folder, "events")
    if len(rows):
        writer.append(rows.tobytes())
    tagged = {step: tag for (of_rank, step), tag in tags.items() if of_rank == rank}
    for row in rows[np.isin(rows["step"], list(tagged))] if tagged else ():
        end = int(row["start_unix_ns"]) + round(float(row["wall_us"]) * 1000)
        events.append(StepEvent(step=int(row["step"]), end_unix_ns=end, tags=[tagged[int(row["step"])]]))
    writer.close()
    events.close()

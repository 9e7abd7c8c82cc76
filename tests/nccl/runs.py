"""Run directory of a simulated NCCL job: what the recorder would know of it, and the durations of its collectives.

- A step ends when the optimizer has stepped. The host reads the loss after that, so it waits for its device between steps, and
  torch's wait uses the CPU.
- Pauses, data loading and checkpoints use no CPU of the training thread, launches of forward and the optimizer do. Autograd
  launches on a thread of its own.
- The device's phases lie between events at the bounds of those of the host. Its blocked time is known for one
  process, and under plain DistributedDataParallel from the end of the own backward pass to the end of the reduction.
- Work as given to the model is known where DistributedDataParallel or FSDP wraps it.
- A replayed CUDA graph has no backward pass for the recorder, and no collective for either source of durations.
- Each host has a clock of its own; durations have the times of that clock, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from tests.nccl.device import Cut, Rank
from tests.nccl.dumps import write_dumps
from tests.nccl.inspector import host_and_pid, write_logs
from tests.nccl.layouts import TOKENS, LayoutJob
from tests.nccl.traces import BASE_NS, ON_HOST, clocks
from tests.step_files import append

from rankscope.analysis.durations.blocks import blocks_of
from rankscope.analysis.durations.flight_recorder import calls_of_dump
from rankscope.analysis.hang.files import find_dumps, read_dump
from rankscope.profiler.helper.collectives.log_follower import LogFollower
from rankscope.runs.durations import DurationBlock, DurationSource
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import AttemptInfo, PhaseTimes, Pipeline, RankInfo, RunInfo, StepRecord
from rankscope.runs.small_files import create_attempt, create_run, write_record

_INNER: Final = {"hsdp": "shard", "cp": "cp", "moe": "ep", "ring attention": "cp"}
"""Layout to the name of its innermost dimension; of all others it is tensor parallel."""
_SCHEDULES: Final = {
    "pp": ("Schedule1F1B", 1),
    "pp x tp": ("Schedule1F1B", 1),
    "pp interleaved": ("ScheduleLoopedBFS", 2),
    "pp gpipe": ("ScheduleGPipe", 1),
}
_WITHOUT_WRAPPER: Final = ("tp", *_SCHEDULES)
_GRAPHED: Final = "ddp in a CUDA graph"


def write_run(job: LayoutJob, run: Path, source: DurationSource = "flight_recorder", *, seed: int = 0) -> Path:
    """Write the run of a job, and return its folder."""
    layout, kind, inner = job.layout, job.layout.kind, _INNER.get(job.layout.kind, "tp")
    sizes = {"dp": layout.replicas, "pp": layout.stages, inner: layout.inner}
    schedule, chunks = _SCHEDULES.get(kind, (None, 1))
    create_run(run, RunInfo(run_id=f"{run.name}-1", name=kind, start_unix_ns=BASE_NS))
    attempt = AttemptInfo(
        attempt=0,
        start_unix_ns=BASE_NS,
        world_size=job.world,
        backend="nccl",
        layout={name: size for name, size in sizes.items() if size > 1},
        pipeline=None if schedule is None else Pipeline(schedule=schedule, microbatches=8, chunks=chunks),
    )
    create_attempt(run, attempt)
    ahead_us = [clock.offset_us for clock in clocks(job.world, seed=seed)]
    with tempfile.TemporaryDirectory() as folder:
        blocks = dumped(job, Path(folder)) if source == "flight_recorder" else logged(job, Path(folder))
        for rank, rows in zip(job.ranks, blocks, strict=True):
            place = dict(zip(sizes, layout.place(rank.rank), strict=True))
            into, ahead_ns = rank_dir(run, 0, rank.rank), round(1000 * ahead_us[rank.rank])
            info = RankInfo(
                rank=rank.rank,
                world_size=job.world,
                host=f"node{rank.rank // ON_HOST}",
                pid=host_and_pid(rank.rank)[1],
                local_rank=rank.rank % ON_HOST,
                device_kind="cuda",
                gpu_uuid=f"GPU-{rank.rank}",
                gpu_name="NVIDIA H100 80GB HBM3",
                coordinates={name: place[name] for name in attempt.layout},
                start_unix_ns=BASE_NS + ahead_ns,
                end_reason="exit",
            )
            write_record(into / "rank.json", info)
            append(into, "steps", *step_records(job, rank, ahead_ns))
            if kind != _GRAPHED:
                append(into, "durations", *(_later(block, ahead_ns) for block in rows))
    return run


def step_records(job: LayoutJob, rank: Rank, ahead_ns: int = 0) -> Iterator[StepRecord]:
    """Yield the step records of a rank. ``ahead_ns``: how far the clock of its host is ahead."""
    kind = job.layout.kind
    work = job.fault.work if rank.rank == job.late else 1.0
    ends = [at for at, cut in enumerate(rank.cuts) if cut.phase == "between_steps"]
    for step, (first, last) in enumerate(pairwise([0, *ends])):
        cuts = _as_recorded(rank.cuts[first : last + 1], graphed=kind == _GRAPHED)
        begin, end = cuts[0], cuts[-1]
        gc_us = _noted_us(rank, "Python GC", begin, end)
        launching = sum(
            launch.host_us
            for launch in rank.launches
            if begin.host_us <= launch.launched_us < end.host_us and not launch.autograd
        )
        blocked = sum(after.device_us - cut.device_us for cut, after in pairwise(cuts) if cut.phase == "reduction")
        yield StepRecord(
            step=step,
            start_unix_ns=BASE_NS + ahead_ns + round(1000 * begin.host_us),
            wall_us=end.host_us - begin.host_us,
            phases_us=_phases([(cut.phase, after.host_us - cut.host_us) for cut, after in pairwise(cuts)]),
            cpu_us=launching + gc_us + (begin.device_us - begin.host_us),
            run_queue_us=0.0,
            gc_us=gc_us,
            input_elements=round(TOKENS * work),
            model_elements=None if kind in _WITHOUT_WRAPPER else round(TOKENS * work),
            device_us=_phases([(cut.phase, after.device_us - cut.device_us) for cut, after in pairwise(cuts)]),
            device_blocked_us=PhaseTimes(backward=blocked) if kind == "ddp" or job.world == 1 else None,
            tags=["gc"] * (gc_us > 0) + ["checkpoint"] * (_noted_us(rank, "save_checkpoint", begin, end) > 0),
        )


def _as_recorded(cuts: list[Cut], *, graphed: bool) -> list[Cut]:
    """Return the cuts of a step that the recorder sees: after the last backward pass is the optimizer's time."""
    if graphed:
        return [cut for cut in cuts if cut.phase not in ("backward", "reduction")]
    last = max(at for at, cut in enumerate(cuts) if cut.phase == "backward")
    return [cut._replace(phase="optimizer") if at > last and cut.phase == "forward" else cut for at, cut in enumerate(cuts)]


def _phases(times: list[tuple[str, float]]) -> PhaseTimes:
    phases: dict[str, float] = {}
    for phase, us in times:
        name = "backward" if phase == "reduction" else phase
        phases[name] = phases.get(name, 0.0) + us
    return PhaseTimes(**phases)


def _noted_us(rank: Rank, name: str, begin: Cut, end: Cut) -> float:
    """Return the time of the annotations ``name`` that begin between two cuts."""
    return sum(
        note.end_us - note.start_us for note in rank.notes if note.name == name and begin.host_us <= note.start_us < end.host_us
    )


def _later(block: DurationBlock, by_ns: int) -> DurationBlock:
    return msgspec.structs.replace(block, start_unix_ns=block.start_unix_ns + by_ns, end_unix_ns=block.end_unix_ns + by_ns)


def logged(job: LayoutJob, folder: Path, *, verbose: bool = True) -> Iterator[list[DurationBlock]]:
    """Yield the blocks of each rank, from its log of NCCL Inspector."""
    write_logs(job, folder, verbose=verbose)
    for rank in range(job.world):
        host, pid = host_and_pid(rank)
        follower = LogFollower(folder / f"{host}-pid{pid}.log", pid=pid, is_own=True)
        while follower.read():
            pass
        yield list(blocks_of("nccl_inspector", follower.take()))


def dumped(job: LayoutJob, folder: Path) -> Iterator[list[DurationBlock]]:
    """Yield the blocks of each rank, from its dump."""
    folder.mkdir(exist_ok=True)
    write_dumps(job, folder)
    for file in sorted(find_dumps([folder])[0], key=lambda found_dump: found_dump.rank):
        dump = read_dump(file.path, backend=None, whole_history=True)
        yield list(blocks_of("flight_recorder", calls_of_dump(dump, dump.records)))

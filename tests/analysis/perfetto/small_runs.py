"""Small runs to export, and the model of Perfetto's trace processor that the export gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tests.analysis.breakdowns import breakdown
from tests.perfetto_model import Model, Slice, load
from tests.step_files import append

from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.export_result import ExportResult
from rankscope.analysis.perfetto.selection import Selection
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    DeviceKind,
    KernelRecord,
    PhaseTimes,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.small_files import create_attempt, create_run, write_record

START = 1_790_000_000_000_000_000
STEP_US = 10_000.0
SKEW_NS = {"a": 0, "b": 250_000_000}
"""The clock of host b is a quarter of a second ahead."""


def make_run(
    path: Path,
    *,
    ranks: int = 4,
    steps: int = 6,
    profiled: tuple[int, ...] = (2, 3),
    late: int = 3,
    on_cpu: bool = False,
    simulated: bool = False,
    skew_ns: Mapping[str, int] = SKEW_NS,
) -> Path:
    """Write a run: ranks 0 and 1 on host a, others on b; in profiled steps ``late`` is 3 ms late to one all-reduce."""
    create_run(path, RunInfo(run_id="run-1", name="small", start_unix_ns=START, simulated=simulated))
    create_attempt(path, AttemptInfo(attempt=0, start_unix_ns=START, world_size=ranks, backend="nccl"))
    for rank in range(ranks):
        folder, host = rank_dir(path, 0, rank), "ab"[rank * 2 // ranks]
        kind: DeviceKind = "cpu" if on_cpu else "cuda"
        info = RankInfo(
            rank=rank, world_size=ranks, host=host, pid=100 + rank, device_kind=kind, start_unix_ns=START, end_reason="exit"
        )
        write_record(folder / "rank.json", info if rank else msgspec.structs.replace(info, gpu_uuid="GPU-8a1b", local_rank=0))
        skew = skew_ns[host]
        starts = [START + skew + step * round(STEP_US * 1000) for step in range(steps)]
        append(folder, "steps", *(step_record(step, at, profiled=step in profiled) for step, at in enumerate(starts)))
        for step in profiled:
            arrival = starts[step] + 4_000_000 + 1_000 * rank + (3_000_000 if rank == late else 0)
            end = starts[step] + 8_000_000
            collective = CollectiveRecord(
                step=step,
                group="0",
                group_ranks=list(range(ranks)),
                index=0,
                sequence=7 + step,
                op="all_reduce",
                dtype="float",
                bytes=4096,
                enqueue_unix_ns=arrival if on_cpu else arrival - 500_000,
                start_unix_ns=arrival + 20_000 if on_cpu else arrival,
                end_unix_ns=end,
                stream=None if on_cpu else 20,
                compute_spans_us=[(0.0, 100.0)],
            )
            append(folder, "collectives", collective)
            append(folder, "windows", profile(step, starts[step] + 100_000, kind))
            append(folder, "kernels", KernelRecord(step=step, name="gemm", kind="compute", total_us=900.5, calls=3))
    return path


def boot(run: Path, boots: list[str], *, host: str | None = None) -> None:
    """Give each rank a boot id, and all of them ``host`` as the name of their host."""
    for rank, boot_id in enumerate(boots):
        path = rank_dir(run, 0, rank) / "rank.json"
        info = json.loads(path.read_text())
        path.write_text(json.dumps({**info, "boot_id": boot_id, "host": host or info["host"]}))


def step_record(step: int, start: int, *, profiled: bool = False) -> StepRecord:
    return StepRecord(
        step=step,
        start_unix_ns=start,
        wall_us=STEP_US,
        phases_us=PhaseTimes(data=1000.0, forward=3000.0, backward=4500.0, optimizer=1000.0, between_steps=500.0),
        blocked_us=PhaseTimes(backward=1500.0),
        gc_us=250.0 if step == 1 else 0.0,
        samples=8,
        tags=["checkpoint"] if step == 1 else [],
        profiled=profiled,
    )


def profile(step: int, start: int, kind: DeviceKind) -> StepBreakdown:
    times = {"compute": 5_000.0, "exposed": 3_900.0, "idle": 1_000.0, "communication_us": 4_000.0, "overlap_us": 100.0}
    return breakdown(step, **times, start_unix_ns=start, device_kind=kind, events=30)


def exported(*paths: Path, raw: bool | None = None, verdict: bool = True, **selection: Any) -> tuple[Model, ExportResult]:
    data = bytearray()
    export = export_perfetto(paths, data.extend, selection=Selection(**selection), raw=raw, verdict=verdict)
    model = load(bytes(data))
    assert model.dropped == []
    assert model.lost_arrows == 0
    assert len(model.arrows) >= export.arrows
    assert model.document["otherData"]["left_out"] == export.left_out
    return model, export


def by_step(slices: list[Slice]) -> dict[int, list[Slice]]:
    by_key: dict[int, list[Slice]] = {}
    for slice_ in slices:
        by_key.setdefault(slice_.args["step"], []).append(slice_)
    return by_key

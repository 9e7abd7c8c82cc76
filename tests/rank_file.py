"""Text file of a rank with every metric, written by the recorder's own code."""

from __future__ import annotations

from msgspec.structs import replace

from rankscope.profiler.helper.publishing.metrics_publisher import render, samples
from rankscope.profiler.helper.publishing.totals import Totals
from rankscope.runs.metrics import MAX_SECTIONS, STEP_TAGS
from rankscope.runs.records import PhaseTimes, RankInfo, RunInfo, StepBreakdown, StepRecord

RUN = RunInfo(run_id="llama-20260101-7", name="llama", start_unix_ns=1)
RANK = RankInfo(
    rank=3,
    world_size=8,
    host="node1",
    pid=1,
    start_unix_ns=1,
    local_rank=3,
    gpu_uuid="GPU-3",
    recorder_cost_us=250_000.0,
    window_cost_us=200_000.0,
    windows=1,
    budget=0.01,
)
EACH = PhaseTimes(data=1e5, h2d=1e5, forward=2e5, backward=4e5, optimizer=1e5, between_steps=1e5)
STEP = StepRecord(
    step=0,
    start_unix_ns=10**18,
    wall_us=1e6,
    phases_us=EACH,
    blocked_us=PhaseTimes(backward=2e5),
    device_us=EACH,
    device_blocked_us=PhaseTimes(backward=1e5),
    sections_us={f"section {number}": 1e3 for number in range(MAX_SECTIONS + 3)},
    metrics={"loss": 2.5},
    cpu_us=9e5,
    run_queue_us=1e4,
    gc_us=1e3,
    samples=4,
    tokens=4096,
    input_elements=40,
    flops=1e12,
    allocated_bytes=2**30,
    reserved_bytes=2**31,
    peak_allocated_bytes=3 * 2**29,
    allocator_retries=2,
    resident_bytes=2**32,
    profiled=True,
    tags=list(STEP_TAGS),
)
WINDOW = StepBreakdown(
    step=0,
    start_unix_ns=1,
    device_kind="cuda",
    window_us=1e6,
    compute_us=6e5,
    communication_us=4e5,
    overlap_us=3e5,
    exposed_communication_us=1e5,
    memcpy_us=5e4,
    exposed_memcpy_us=5e4,
    idle_us=2.5e5,
    events=1,
)


def totals_of(steps: int) -> Totals:
    """Return the totals after this many steps of one second, the first of them profiled."""
    totals = Totals()
    for step in range(steps):
        totals.add_step(replace(STEP, step=step, start_unix_ns=STEP.start_unix_ns + step * 10**9, profiled=step == 0))
    totals.add_window(WINDOW)
    return totals


def rank_text(steps: int = 40, *, run: str = "llama", run_id: str = RUN.run_id, rank: int = 3) -> str:
    """Return the file after this many steps."""
    values = samples(replace(RUN, name=run, run_id=run_id), replace(RANK, rank=rank), totals_of(steps))
    return render({"run": run, "rank": str(rank), "slot": "0"}, values)

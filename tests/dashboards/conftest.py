"""Runs written as the recorder writes them, and a source of runs that has everything in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dash
import msgspec
import numpy as np
import pytest

from rankscope.analysis.result import (
    Analysis,
    CollectiveMatching,
    Cost,
    Evidence,
    Finding,
    ImposedWait,
    RankResult,
    Source,
    Verdict,
)
from rankscope.analysis.steps import StepTable
from rankscope.dashboards.data.source import RunSummary, StepMatrices, UnknownRunError
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    EndReason,
    PhaseTimes,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.writer import JsonLinesWriter, create_attempt, create_run, write_record

START_NS = 1_790_000_000_000_000_000
SLOW_RANK = 2
PROFILED = range(20, 23)
NORMAL_DATA_US, SLOW_DATA_US, COMPUTE_US = 4_000.0, 44_000.0, 30_000.0


def step_record(rank: int, step: int, *, slow_rank: int | None, noise: float) -> StepRecord:
    """One step of 80 ms or so; the others wait in backward for the one whose data comes late."""
    late = SLOW_DATA_US - NORMAL_DATA_US
    data = (SLOW_DATA_US if rank == slow_rank else NORMAL_DATA_US) + noise * 400
    forward = COMPUTE_US / 3 + noise * 500
    waiting = late if slow_rank is not None and rank != slow_rank else 0.0
    backward = 2 * COMPUTE_US / 3 + waiting + 800
    phases = PhaseTimes(data=data, forward=forward, backward=backward, optimizer=1_500.0, between_steps=200.0)
    wall = data + forward + backward + 1_700.0
    return StepRecord(
        step=step,
        start_unix_ns=START_NS + step * 80_000_000,
        wall_us=wall,
        phases_us=phases,
        blocked_us=PhaseTimes(backward=waiting + 800),
        cpu_us=wall - waiting - data,
        run_queue_us=100.0,
        samples=32,
        input_elements=32 * 128,
        profiled=step in PROFILED,
    )


def window(rank: int, record: StepRecord, *, slow_rank: int | None) -> tuple[StepBreakdown, CollectiveRecord]:
    """The profiled step that belongs to a step record: compute, one all-reduce partly hidden, idle while data is loaded."""
    blocked = record.blocked_total_us or 0.0
    data = record.phases_us.data or 0.0
    hidden = 2_000.0
    communication = blocked + hidden + 1_000.0
    exposed = communication - hidden
    compute = record.wall_us - exposed - data - 60.0
    arrival = START_NS + record.step * 80_000_000 + int((data + COMPUTE_US) * 1e3)
    end = (
        START_NS + record.step * 80_000_000 + int(((SLOW_DATA_US if slow_rank is not None else data) + COMPUTE_US + 1_800) * 1e3)
    )
    return (
        StepBreakdown(
            step=record.step,
            start_unix_ns=record.start_unix_ns,
            device_kind="cpu",
            window_us=record.wall_us,
            compute_us=compute,
            communication_us=communication,
            overlap_us=hidden,
            exposed_communication_us=exposed,
            memcpy_us=60.0,
            exposed_memcpy_us=60.0,
            idle_us=data,
            events=400,
        ),
        CollectiveRecord(
            step=record.step,
            group="default_pg",
            group_ranks=[0, 1, 2, 3],
            group_size=4,
            index=0,
            sequence=record.step,
            op="all_reduce",
            dtype="float32",
            bytes=4 << 20,
            enqueue_unix_ns=arrival,
            start_unix_ns=arrival,
            end_unix_ns=end,
        ),
    )


@pytest.fixture
def write_run() -> Callable[..., Path]:
    """``write_run(folder, …)`` writes a run of 4 ranks; rank 2's data loader is slow unless ``slow_rank`` says otherwise.

    ``ends``: how ranks ended that did not end as the others did.
    """

    def write(
        run: Path,
        *,
        run_id: str = "run-1",
        name: str = "bert-base",
        steps: int = 60,
        ranks: int = 4,
        slow_rank: int | None = SLOW_RANK,
        windows: bool = True,
        finished: bool = True,
        ends: Mapping[int, EndReason] | None = None,
        simulated: bool = False,
        start_unix_ns: int = START_NS,
    ) -> Path:
        random = np.random.default_rng(7)
        create_run(
            run,
            RunInfo(
                run_id=run_id, name=name, start_unix_ns=start_unix_ns, price_per_gpu_hour=2.5, currency="USD", simulated=simulated
            ),
        )
        create_attempt(run, AttemptInfo(attempt=0, start_unix_ns=start_unix_ns, world_size=ranks or 4, backend="gloo"))
        for rank in range(ranks):
            folder = rank_dir(run, 0, rank)
            info = RankInfo(
                rank=rank,
                world_size=ranks,
                host=f"node-{rank // 2}",
                pid=1000 + rank,
                local_rank=rank % 2,
                gpu_uuid=f"GPU-{rank:08x}-5d1f-4a52-9c3e-0123456789ab",
                start_unix_ns=start_unix_ns,
                end_unix_ns=start_unix_ns + steps * 80_000_000 if finished else None,
                end_reason=(ends or {}).get(rank, "exit" if finished else None),
            )
            write_record(folder / "rank.json", info)
            append_steps(folder, rank, range(steps), slow_rank=slow_rank, windows=windows, random=random)
        return run

    return write


def append_steps(
    folder: Path, rank: int, steps: range, *, slow_rank: int | None, windows: bool, random: np.random.Generator
) -> None:
    """Append step records, and windows for the profiled ones, to a rank's folder."""
    writers = {stream: JsonLinesWriter(folder, stream) for stream in ("steps", "windows", "collectives")}
    for step in steps:
        record = step_record(rank, step, slow_rank=slow_rank, noise=float(random.uniform(-1, 1)))
        writers["steps"].append(record)
        if windows and step in PROFILED:
            breakdown, collective = window(rank, record, slow_rank=slow_rank)
            writers["windows"].append(breakdown)
            writers["collectives"].append(collective)
    for writer in writers.values():
        writer.close()


def _rank(rank: int) -> RankResult:
    slow = rank == SLOW_RANK
    return RankResult(
        rank=rank,
        host=f"node-{rank // 2}",
        gpu_uuid=f"GPU-{rank:08x}-5d1f-4a52-9c3e-0123456789ab",
        device_kind="cuda",
        attempt=0,
        steps=60,
        window_basis="steps",
        window_us=240_000.0 + rank,
        compute_us=100_000.0,
        communication_us=130_000.0 if not slow else 12_000.0,
        overlap_us=6_000.0,
        exposed_communication_us=124_000.0 if not slow else 6_000.0,
        memcpy_us=300.0,
        exposed_memcpy_us=200.0,
        idle_us=15_800.0 + rank if not slow else 133_800.0 + rank,
        overlap_ratio=6 / 130 if not slow else 0.5,
        transfer_us=4_000.0,
        wait_us=120_000.0 if not slow else 0.0,
        blocked_us=40_800.0 if not slow else 800.0,
        own_us=36_500.0 if not slow else 76_500.0,
        wall_us=77_300.0,
        end_reason="exit",
    )


@pytest.fixture
def analysis() -> Analysis:
    """A verdict against rank 2, with every field there is."""
    summary = "Rank 2 on host node-1 makes the other 3 ranks wait 40 ms per step (52 % of the step): its data loader is slow."
    return Analysis(
        source=Source(
            kind="run",
            path="runs/bert",
            ranks=4,
            world_size=4,
            steps=60,
            coverage=1.0,
            simulated=False,
            run_id="run-1",
            name="bert-base",
        ),
        ranks=[_rank(rank) for rank in range(4)],
        collectives=CollectiveMatching(matched=3, unmatched=0, excluded={}, method="sequence", clock_residual_us=4.0),
        imposed_wait=[
            ImposedWait(rank=2, imposed_us=360_000.0, imposed_exposed_us=340_000.0, share=0.98),
            ImposedWait(rank=0, imposed_us=7_000.0, imposed_exposed_us=7_000.0, share=0.02),
            ImposedWait(rank=1, imposed_us=0.0, imposed_exposed_us=0.0, share=0.0),
        ],
        verdict=Verdict(
            kind="straggler",
            rank=2,
            ranks=[2],
            pattern="fixed",
            cause="input",
            phase="data",
            steps=(5, 60),
            evidence_source="steps",
            confidence=0.96,
            slowdown=2.07,
            gpu_hours_lost=12.4,
            cost=Cost(amount=31.0, currency="USD"),
            summary=summary,
            next=[
                "rankscope analyze runs/bert --format json",
                "Look at the data loader of rank 2: workers, storage, augmentation.",
            ],
        ),
        findings=[
            Finding(
                kind="straggler",
                rank=2,
                host="node-1",
                cause="input",
                phase="data",
                summary=summary,
                evidence=[
                    Evidence(
                        name="own_time_excess", value=40_000.0, unit="us", detail="per step, against the median of the others"
                    ),
                    Evidence(name="p_value", value=0.0004998, unit="probability", detail="permutation test"),
                ],
            )
        ],
    )


class MemoryRuns:
    """``RunSource`` over what the test put in; ``problems`` are raised instead of an answer."""

    def __init__(self) -> None:
        self.summaries: dict[str, RunSummary] = {}
        self.analyses: dict[str, Analysis] = {}
        self.tables: dict[str, StepMatrices] = {}
        self.problems: dict[str, Exception] = {}
        self.analysed = 0

    def put(self, analysis: Analysis, table: StepMatrices, **summary: Any) -> None:
        """Add or replace the run ``run_id`` (default ``run-1``)."""
        run = replace(
            RunSummary(
                run_id="run-1", name="bert-base", path="runs/bert", revision="a", status="finished", world_size=4, ranks=4,
                hosts=2, attempts=1, start_unix_ns=START_NS,
            ),
            **summary,
        )  # fmt: skip
        self.summaries[run.run_id] = run
        self.analyses[run.run_id] = analysis
        self.tables[run.run_id] = table

    def runs(self) -> list[RunSummary]:
        return list(self.summaries.values())

    def summary(self, run_id: str) -> RunSummary:
        if run_id not in self.summaries:
            raise UnknownRunError(run_id)
        return self.summaries[run_id]

    def analysis(self, run_id: str) -> Analysis:
        self.analysed += 1
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.analyses[run_id]

    def steps(self, run_id: str) -> StepMatrices:
        if run_id in self.problems:
            raise self.problems[run_id]
        return self.tables[run_id]


@pytest.fixture
def table() -> StepTable:
    """Step table of the straggler run; rank 1 has no record of steps 30 to 39."""
    return StepTable.from_records(
        0,
        {
            rank: [
                step_record(rank, step, slow_rank=SLOW_RANK, noise=((step * 7 + rank) % 5) / 5)
                for step in range(60)
                if not (rank == 1 and 30 <= step < 40)
            ]
            for rank in range(4)
        },
    )


@pytest.fixture
def memory_runs(analysis: Analysis, table: StepTable) -> MemoryRuns:
    """A source with the straggler run in it."""
    source = MemoryRuns()
    source.put(analysis, table)
    return source


class Caller:
    """Calls callbacks of an app over HTTP, as a browser does."""

    def __init__(self, app: dash.Dash) -> None:
        self.http = app.server.test_client()
        self._specs: list[dict[str, Any]] = self.http.get("/_dash-dependencies").json

    def __call__(self, output: str, values: dict[str, Any], *, triggered: str) -> dict[str, Any]:
        """Response of the callback that has ``output`` (``"id.property"``), or ``{}`` when it updates nothing."""
        spec = next(spec for spec in self._specs if output in spec["output"].strip(".").split("..."))
        names = spec["output"].strip(".").split("...")
        outputs = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]
        answer = self.http.post(
            "/_dash-update-component",
            json={
                "output": spec["output"],
                "outputs": outputs if spec["output"].startswith("..") else outputs[0],
                "inputs": [{**item, "value": values.get(f"{item['id']}.{item['property']}")} for item in spec["inputs"]],
                "state": [{**item, "value": values.get(f"{item['id']}.{item['property']}")} for item in spec["state"]],
                "changedPropIds": [triggered],
            },
        )
        if answer.status_code == 204:
            return {}
        assert answer.status_code == 200, answer.text
        response: dict[str, Any] = msgspec.json.decode(answer.data)["response"]
        return response


@pytest.fixture
def caller() -> type[Caller]:
    """``caller(app)`` makes a client of an app."""
    return Caller

"""Analysis and step table of a run whose rank 2 has a slow data loader."""

from __future__ import annotations

from tests.dashboards.recorded_run import SLOW_RANK, step_record
from tests.step_files import table_of_records

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import (
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
        profiled_steps=3,
        own_us=36_500.0 if not slow else 76_500.0,
        wall_us=77_300.0,
        end_reason="exit",
    )


def straggler_analysis() -> Analysis:
    """Return an analysis with a straggler verdict against rank 2 and every field set."""
    summary = "Rank 2 on host node-1 makes the other 3 ranks wait 40 ms per step (52 % of the step): its data loader is slow."
    return Analysis(
        source=Source(
            kind="run",
            gpu_hour=Cost(amount=2.5, currency="USD"),
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


def straggler_table() -> StepTable:
    """Return the step table of that run; rank 1 has no record of steps 30 to 39."""
    return table_of_records(
        {
            rank: [
                step_record(rank, step, slow_rank=SLOW_RANK, noise=((step * 7 + rank) % 5) / 5)
                for step in range(60)
                if not (rank == 1 and 30 <= step < 40)
            ]
            for rank in range(4)
        }
    )

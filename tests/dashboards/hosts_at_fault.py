"""Run of 16 ranks on 4 hosts, one of which is at fault as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.dashboards.memory_runs import MemoryRuns
from tests.dashboards.recorded_run import step_record
from tests.dashboards.straggler import straggler_analysis
from tests.step_files import table_of_records

from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.analysis import Analysis, ImposedWait, RareSteps

AT_FAULT = "node-2"
SLOW = [8, 9, 10, 11]
RARE = RareSteps(
    count=2,
    of_steps=20,
    steps=[7, 14],
    typical_us=80e3,
    longest_us=4e6,
    share=0.61,
    lost_us=8e6,
    moves=False,
    rank=0,
    host="node-0",
    cause="checkpoint",
    summary="Rank 0 writes a checkpoint at every 7th step.",
)


def host_analysis() -> Analysis:
    """Return the analysis: the ranks of ``node-2`` are slow."""
    result = straggler_analysis()
    rows = [
        msgspec.structs.replace(
            result.ranks[2 if rank in SLOW else 0],
            rank=rank,
            host=f"node-{rank // 4}",
            own_us=(80e3 if rank in SLOW else 40e3) + rank,
        )
        for rank in range(16)
    ]
    summary = "Host node-2 (all 4 of its ranks) makes the other 12 ranks wait."
    verdict = msgspec.structs.replace(
        result.verdict,
        rank=9,
        ranks=SLOW,
        hosts=[AT_FAULT],
        saves=(0.194, 0.26),
        judged_ranks=16,
        judged_steps=20,
        summary=summary,
    )
    finding = msgspec.structs.replace(result.findings[0], rank=9, ranks=SLOW, host=AT_FAULT, whole_host=True, summary=summary)
    waits = [ImposedWait(rank=rank, imposed_us=10e3 + rank, imposed_exposed_us=5e3, share=0.25) for rank in SLOW]
    source = msgspec.structs.replace(result.source, ranks=16, world_size=16)
    return msgspec.structs.replace(
        result, source=source, ranks=rows, verdict=verdict, findings=[finding], imposed_wait=waits, rare_steps=RARE
    )


def host_table() -> StepTable:
    """Return its step table. At step 5, rank 13 is slower than every other."""
    records = {}
    for rank in range(16):
        rows = [step_record(rank, step, slow_rank=rank if rank in SLOW else None, noise=0) for step in range(20)]
        if rank == 13:
            rows[5] = step_record(rank, 5, slow_rank=rank, noise=1)
        records[rank] = rows
    return table_of_records(records)


def host_runs(**verdict: Any) -> MemoryRuns:
    """Return a source that holds the run; ``verdict``: other fields of its verdict."""
    result = host_analysis()
    source = MemoryRuns()
    changed = msgspec.structs.replace(result, verdict=msgspec.structs.replace(result.verdict, **verdict))
    source.put(changed, host_table(), world_size=16, ranks=16, hosts=4)
    return source

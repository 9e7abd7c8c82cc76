"""Flight Recorder dumps of a simulated NCCL job, one per rank, with the durations that TORCH_NCCL_ENABLE_TIMING=1 adds.

The parts of a batch of sends and receives have entries without a duration, the batch itself (``nccl:coalesced``) has one with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.nccl.device import Launch, NcclJob, Rank
from tests.nccl.traces import BASE_NS

_SPELLINGS: Final = {"all_to_allv": "all_to_all"}


def write_dumps(job: NcclJob, folder: Path) -> None:
    """Write ``dump_<N>.json`` for each rank."""
    for rank in job.ranks:
        groups = {name: members for name, members in job.groups.items() if rank.rank in members}
        document = {
            "version": "2.10",
            "comm_lib_version": "2.28.9",
            "pg_config": {name: {"name": name, "desc": name, "ranks": str(members)} for name, members in groups.items()},
            "pg_status": {},
            "entries": [entry | {"record_id": number} for number, entry in enumerate(_entries(rank))],
        }
        (folder / f"dump_{rank.rank}.json").write_bytes(msgspec.json.encode(document))


def _entries(rank: Rank) -> Iterator[dict[str, Any]]:
    messages = 0
    for launch in rank.launches:
        if not launch.op:
            continue
        duration = {"duration_ms": (launch.end_us - launch.start_us) / 1000}
        for op, other, elements in launch.parts:
            messages += 1
            place = rank.job.groups[launch.group].index(rank.rank)
            name = f"nccl:send {place}->{other}" if op == "send" else f"nccl:recv {place}<-{other}"
            timing = duration if launch.op == op else {}
            yield _entry(rank, launch, name, (elements, elements), message=messages) | timing
        if launch.op == "exchange":
            yield _entry(rank, launch, "nccl:coalesced", None, message=messages) | duration
        elif not launch.parts:
            name = f"nccl:{_SPELLINGS.get(launch.op, launch.op)}"
            yield _entry(rank, launch, name, launch.elements) | duration


def _entry(
    rank: Rank, launch: Launch, name: str, elements: tuple[int, int] | None, *, message: int | None = None
) -> dict[str, Any]:
    sizes = [] if elements is None else [[size] for size in elements]
    return {
        "pg_id": list(rank.job.groups).index(launch.group),
        "process_group": [launch.group, launch.group],
        "collective_seq_id": launch.sequence,
        "p2p_seq_id": message or 0,
        "op_id": 0,
        "profiling_name": name,
        "time_created_ns": BASE_NS + round(launch.launched_us * 1000),
        "input_sizes": sizes[:1],
        "output_sizes": sizes[1:],
        "input_dtypes": ["BFloat16"] * len(sizes[:1]),
        "output_dtypes": ["BFloat16"] * len(sizes[1:]),
        "state": "completed",
        "retired": True,
        "is_p2p": message is not None,
        "thread_name": "pt_autograd_0" if launch.autograd else "python",
    }

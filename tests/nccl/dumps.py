"""Flight Recorder dumps of a simulated NCCL job, one per rank, with the durations that TORCH_NCCL_ENABLE_TIMING=1 adds.

The parts of a batch of sends and receives have entries without a duration, the batch itself (``nccl:coalesced``) has one with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.flight_dump_files import document, entry, write
from tests.nccl.device import Launch, NcclJob, Rank
from tests.nccl.traces import BASE_NS

_SPELLINGS: Final = {"all_to_allv": "all_to_all"}


def write_dumps(job: NcclJob, folder: Path) -> None:
    """Write ``dump_<N>.json`` for each rank."""
    dumps = {}
    for rank in job.ranks:
        groups = {name: members for name, members in job.groups.items() if rank.rank in members}
        entries = [row | {"record_id": number} for number, row in enumerate(_entries(rank))]
        dumps[rank.rank] = document(groups, entries, descriptions={name: name for name in groups})
    write(folder, dumps, form="json", waited_s=None)


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
    return entry(
        0,
        name,
        group=(launch.group, launch.group),
        sequence=launch.sequence,
        created_ns=BASE_NS + round(launch.launched_us * 1000),
        sizes=(sizes[:1], sizes[1:]),
        dtype="BFloat16",
        pg_id=list(rank.job.groups).index(launch.group),
        p2p_seq_id=message or 0,
        op_id=0,
        is_p2p=message is not None,
        thread_name="pt_autograd_0" if launch.autograd else "python",
    )

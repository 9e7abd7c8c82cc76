"""Kineto traces of a simulated NCCL job, one per rank, as ``torch.profiler`` writes them.

- A collective's kernel has the metadata of the ``record_param_comms`` that launched it, and its annotation (``nccl:all_reduce``).
- A batch of sends and receives is launched by ``ncclGroupEnd``, after the ``record_param_comms`` of its parts have ended. Its
  kernel has no metadata, only the annotation ``nccl:coalesced`` (pytorch#194693, mlcommons/chakra#178).
- Backward is on a thread of its own. Annotations of the data loader, the optimizer and the steps are on the main thread.
- Each host has a clock of its own, which is off and drifts. Ranks of one host share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from tests.nccl.device import Job, Launch, Rank
from tests.nccl.layouts import HIDDEN

BASE_NS: Final = 1_760_000_000_000_000_000
ON_HOST: Final = 8
"""Number of ranks of a host."""
_MAIN, _AUTOGRAD = 1, 2
"""Threads."""
_NAMES: Final = {
    "all_reduce": ("allreduce", "AllReduce_Sum_bf16_RING_LL"),
    "_all_gather_base": ("_allgather_base", "AllGather_RING_LL"),
    "_reduce_scatter_base": ("_reduce_scatter_base", "ReduceScatter_Sum_bf16_RING_LL"),
    "all_to_all": ("all_to_all", "SendRecv"),
    "all_to_allv": ("all_to_allv", "SendRecv"),
    "exchange": ("", "SendRecv"),
}
"""Operation to its name in the metadata and that of its kernel."""


class Clock(msgspec.Struct, frozen=True):
    """Clock of a host: how far it is ahead of the time of the simulation, and how fast it drifts from it."""

    offset_us: float = 0.0
    drift: float = 0.0

    def reads(self, us: float) -> float:
        """Return what it shows, in whole nanoseconds as microseconds."""
        return round(us * (1 + self.drift) + self.offset_us, 3)


def clocks(world: int, *, seed: int = 0, offset_us: float = 800.0, drift: float = 2e-6) -> list[Clock]:
    """Return the clock of each rank. Offsets and drifts of hosts are normal, with these deviations."""
    rng = np.random.default_rng((seed, 7))
    hosts = [Clock(float(rng.normal(0, offset_us)), float(rng.normal(0, drift))) for _ in range(-(-world // ON_HOST))]
    return [hosts[rank // ON_HOST] for rank in range(world)]


def write_traces(job: Job, folder: Path, *, seed: int = 0, steps: Iterable[int] | None = None) -> None:
    """Write ``rank<N>.json`` for each rank, with all ``steps`` or some of them."""
    wanted = None if steps is None else frozenset(steps)
    for rank, clock in zip(job.ranks, clocks(job.world, seed=seed), strict=True):
        (folder / f"rank{rank.rank}.json").write_bytes(msgspec.json.encode(_document(rank, clock, wanted)))


def _document(rank: Rank, clock: Clock, steps: frozenset[int] | None) -> dict[str, Any]:
    groups = rank.job.groups
    device = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_017_493_504}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": number} | device for number in range(ON_HOST)],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank.rank,
            "world_size": rank.job.world,
            "pg_count": len(groups),
            "pg_config": [
                {"pg_name": name, "pg_desc": name, "backend_config": "cuda:nccl", "pg_size": len(members), "ranks": members}
                for name, members in groups.items()
                if rank.rank in members
            ],
            "nccl_version": "2.28.9",
        },
        "host_name": f"node{rank.rank // ON_HOST}",
        "baseTimeNanoseconds": BASE_NS,
        "displayTimeUnit": "ms",
        "traceEvents": list(_events(rank, clock, steps)),
    }


def _events(rank: Rank, clock: Clock, steps: frozenset[int] | None) -> Iterator[dict[str, Any]]:
    def event(category: str, name: str, span: tuple[float, float], thread: int | str, args: Mapping[str, Any]) -> dict[str, Any]:
        begin, end = map(clock.reads, span)
        pid = rank.rank % ON_HOST if category == "kernel" else 1000 + rank.rank
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": thread,
            "ts": begin,
            "dur": max(0.0, round(end - begin, 3)),
            "args": dict(args),
        }

    for note in rank.notes:
        if steps is None or note.step in steps:
            yield event("user_annotation", note.name, (note.start_us, note.end_us), _MAIN, {})
    for number, launch in enumerate(rank.launches, 1):
        if steps is not None and launch.step not in steps:
            continue
        begin, took = launch.launched_us, launch.host_us
        thread = _AUTOGRAD if launch.autograd else _MAIN
        known = {"External id": number} | (_metadata(rank, launch) if launch.op else {})
        if launch.op == "exchange":
            width = 0.6 * took / len(launch.parts)
            for at, part in enumerate(launch.parts):
                span = (begin + at * width, begin + (at + 0.9) * width)
                said = _of_part(rank, launch, part) | {"External id": -number * 16 - at}
                yield event("cpu_op", "record_param_comms", span, thread, said)
            begin, took, known = begin + 0.6 * took, 0.4 * took, {}
            yield event("user_annotation", "nccl:coalesced", (begin, begin + took), thread, {})
        elif launch.op:
            yield event("cpu_op", "record_param_comms", (begin, begin + took), thread, known)
            name = "nccl:all_to_all" if launch.op.startswith("all_to_all") else f"nccl:{launch.op}"
            yield event("user_annotation", name, (begin + 0.1 * took, begin + 0.95 * took), thread, {})
        else:
            yield event("cpu_op", f"aten::{launch.name.split('_')[0]}", (begin, begin + took), thread, known)
        span = (begin + 0.3 * took, begin + 0.9 * took)
        called = "cudaLaunchKernelExC" if launch.op else "cudaLaunchKernel"
        yield event("cuda_runtime", called, span, thread, {"correlation": number, "External id": number})
        kernel = f"ncclDevKernel_{_NAMES[launch.op][1]}(ncclDevKernelArgsStorage<4096ul>)" if launch.op else launch.name
        place = {"stream": launch.stream, "device": rank.rank % ON_HOST, "correlation": number}
        shape = {"grid": [launch.grid, 1, 1], "block": [512, 1, 1]}
        yield event("kernel", kernel, (launch.start_us, launch.end_us), launch.stream, known | place | shape)


def _metadata(rank: Rank, launch: Launch) -> dict[str, Any]:
    """Return the metadata of a collective, as ``record_param_comms`` and its kernel have it."""
    sent, received = launch.splits if launch.splits is not None else ([], [])
    return {
        "Collective name": _NAMES[launch.op][0],
        "In msg nelems": launch.elements[0],
        "Out msg nelems": launch.elements[1],
        "dtype": "BFloat16",
        "Seq": launch.sequence,
        # Splits count rows of the tensors, here tokens.
        "In split size": str([elements // HIDDEN for elements in sent]),
        "Out split size": str([elements // HIDDEN for elements in received]),
    } | _group(rank, launch.group)


def _of_part(rank: Rank, launch: Launch, part: tuple[str, int, int]) -> dict[str, Any]:
    """Return the metadata of one send or receive of a batch."""
    op, other, elements = part
    peer = rank.job.groups[launch.group][other]
    ends = {"Src Rank": rank.rank, "Dst Rank": peer} if op == "send" else {"Src Rank": peer, "Dst Rank": rank.rank}
    sizes = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "BFloat16"}
    return {"Collective name": op} | sizes | ends | _group(rank, launch.group)


def _group(rank: Rank, name: str) -> dict[str, Any]:
    members = rank.job.groups[name]
    return {
        "Group size": len(members),
        "Process Group Name": name,
        "Process Group Description": name,
        "Process Group Ranks": str(members),
    }

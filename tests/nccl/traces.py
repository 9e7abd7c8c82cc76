"""Kineto traces of a simulated NCCL job, one per rank, as ``torch.profiler`` writes them.

- A collective's kernel has the metadata of the ``record_param_comms`` that launched it, and its annotation (``nccl:all_reduce``).
- A batch of sends and receives is launched by ``ncclGroupEnd``, after the ``record_param_comms`` of its parts have ended. Its
  kernel has no metadata, only the annotation ``nccl:coalesced`` (pytorch#194693, mlcommons/chakra#178).
- The kernels of a CUDA graph have the correlation of the one call that launched it, numbers of nodes, and no metadata.
- Backward is on a thread of its own. Annotations of the data loader, the optimizer and the steps are on the main thread
  (torch/utils/data/dataloader.py, torch/optim/optimizer.py), and what the script annotates with ``record_function``.
- Collections of garbage are functions of Python, as torch 2.13 writes them with ``with_stack=True`` and
  ``_ExperimentalConfig(record_python_gc_info=True)``.
- Each host has a clock of its own, which is off and drifts. Ranks of one host share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from tests.nccl.device import Launch, NcclJob, Rank
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
    "send": ("send", "SendRecv"),
    "recv": ("recv", "SendRecv"),
}
"""Operation to its name in the metadata and that of its kernel."""


class Clock(msgspec.Struct, frozen=True):
    """Clock of a host: how far it is ahead of the time of the simulation, and how fast it drifts from it."""

    offset_us: float = 0.0
    drift: float = 0.0

    def reads(self, us: float) -> float:
        """Return what it shows, in whole nanoseconds as microseconds."""
        return round(us * (1 + self.drift) + self.offset_us, 3)


def clocks(world: int, *, seed: int = 0) -> list[Clock]:
    """Return the clock of each rank. Offsets and drifts of hosts are normal, with deviations of 800 us and 2e-6."""
    rng = np.random.default_rng((seed, 7))
    hosts = [Clock(float(rng.normal(0, 800.0)), float(rng.normal(0, 2e-6))) for _ in range(-(-world // ON_HOST))]
    return [hosts[rank // ON_HOST] for rank in range(world)]


def write_traces(job: NcclJob, folder: Path, *, seed: int = 0, steps: Iterable[int] | None = None, graphed: bool = False) -> None:
    """Write ``rank<N>.json`` for each rank, with all ``steps`` or some of them. ``graphed``: forward and backward are a graph."""
    wanted = None if steps is None else frozenset(steps)
    for rank, clock in zip(job.ranks, clocks(job.world, seed=seed), strict=True):
        (folder / f"rank{rank.rank}.json").write_bytes(msgspec.json.encode(document(rank, clock, wanted, graphed=graphed)))


def document(rank: Rank, clock: Clock, steps: frozenset[int] | None = None, *, graphed: bool = False) -> dict[str, Any]:
    """Return the trace of a rank as Python objects."""
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
        "traceEvents": _events(rank, clock, steps, graphed=graphed),
    }


class _Events:
    """Events of one rank's trace."""

    def __init__(self, rank: Rank, clock: Clock) -> None:
        self.rank, self.clock = rank, clock
        self.events: list[dict[str, Any]] = []

    def add(self, category: str, name: str, span: tuple[float, float], thread: int, args: Mapping[str, Any]) -> None:
        begin, end = map(self.clock.reads, span)
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": self.rank.rank % ON_HOST if category == "kernel" else 1000 + self.rank.rank,
                "tid": thread,
                "ts": begin,
                "dur": max(0.0, round(end - begin, 3)),
                "args": dict(args),
            }
        )

    def launched(self, number: int, launch: Launch) -> None:
        """Add what launched a kernel on the host, and the kernel."""
        thread = _AUTOGRAD if launch.autograd else _MAIN
        span = begin, end = launch.launched_us, launch.launched_us + launch.host_us
        args: dict[str, Any] = {"External id": number}
        if launch.op == "exchange":
            middle = begin + 0.6 * launch.host_us
            self._parts(number, launch, (begin, middle), thread)
            span, args = (middle, end), {}
            self.add("user_annotation", "nccl:coalesced", span, thread, {})
        elif launch.op:
            args |= _metadata(self.rank, launch)
            self.add("cpu_op", "record_param_comms", span, thread, args)
            inside = (begin + 0.1 * launch.host_us, end - 0.05 * launch.host_us)
            self.add("user_annotation", _annotation(self.rank, launch), inside, thread, {})
        else:
            self.add("cpu_op", f"aten::{launch.name.split('_')[0]}", span, thread, args)
        self._call("cudaLaunchKernelExC" if launch.op else "cudaLaunchKernel", number, span, thread)
        self.kernel(launch, number, args)

    def graph(self, number: int, launch: Launch) -> None:
        """Add the call that launches a graph."""
        self._call("cudaGraphLaunch", number, (launch.launched_us, launch.launched_us + launch.host_us), _MAIN)

    def kernel(self, launch: Launch, correlation: int, args: Mapping[str, Any]) -> None:
        name = f"ncclDevKernel_{_NAMES[launch.op][1]}(ncclDevKernelArgsStorage<4096ul>)" if launch.op else launch.name
        place = {"stream": launch.stream, "device": self.rank.rank % ON_HOST, "correlation": correlation}
        shape = {"grid": [launch.grid, 1, 1], "block": [512, 1, 1]}
        self.add("kernel", name, (launch.start_us, launch.end_us), launch.stream, {**args, **place, **shape})

    def _call(self, name: str, number: int, span: tuple[float, float], thread: int) -> None:
        begin, took = span[0], span[1] - span[0]
        within = (begin + 0.3 * took, begin + 0.9 * took)
        self.add("cuda_runtime", name, within, thread, {"correlation": number, "External id": number})

    def _parts(self, number: int, launch: Launch, span: tuple[float, float], thread: int) -> None:
        width = (span[1] - span[0]) / len(launch.parts)
        for at, part in enumerate(launch.parts):
            arguments = _of_part(self.rank, launch, part) | {"External id": -number * 16 - at}
            begin = span[0] + at * width
            self.add("cpu_op", "record_param_comms", (begin, begin + 0.9 * width), thread, arguments)


def _events(rank: Rank, clock: Clock, steps: frozenset[int] | None, *, graphed: bool) -> list[dict[str, Any]]:
    events = _Events(rank, clock)
    for note in rank.notes:
        if steps is None or note.step in steps:
            category = "python_function" if note.name == "Python GC" else "user_annotation"
            events.add(category, note.name, (note.start_us, note.end_us), _MAIN, {})
    graphs: dict[int, int] = {}
    for number, launch in enumerate(rank.launches, 1):
        if steps is not None and launch.step not in steps:
            continue
        if not graphed or "adam" in launch.name:
            events.launched(number, launch)
            continue
        if launch.step not in graphs:
            graphs[launch.step] = number
            events.graph(number, launch)
        events.kernel(launch, graphs[launch.step], {"graph node id": number})
    return events.events


def _annotation(rank: Rank, launch: Launch) -> str:
    """Return the name of a collective's annotation."""
    if launch.op in ("send", "recv"):
        place, other = rank.job.groups[launch.group].index(rank.rank), launch.parts[0][1]
        return f"nccl:send {place}->{other}" if launch.op == "send" else f"nccl:recv {place}<-{other}"
    return "nccl:all_to_all" if launch.op.startswith("all_to_all") else f"nccl:{launch.op}"


def _metadata(rank: Rank, launch: Launch) -> dict[str, Any]:
    """Return the metadata of a collective, as ``record_param_comms`` and its kernel have it."""
    if launch.op in ("send", "recv"):
        return _of_part(rank, launch, launch.parts[0])
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

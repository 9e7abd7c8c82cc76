"""Simulated job of operations with a root: broadcast, scatter, reduce and gather, between all-reduces."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.example_traces.jobs import Document, Event

RANKS: Final = 4
HOST_US: Final = 20_000.0
"""Time by which the clock of each host is ahead of that of the one before it; two ranks are on a host."""
ROOTED: Final = (("broadcast", 1), ("reduce", 2), ("gather", 0), ("scatter", 3), ("broadcast", None))
"""Operations, and the place of their root; the last one does not tell it."""
ELEMENTS: Final = 1 << 20


def documents() -> list[Document]:
    """Return the traces of the job, one per rank."""
    rng = random.Random(5)
    events: list[list[Event]] = [[] for _ in range(RANKS)]
    at = 1_000.0
    for number in range(1, 25):
        op, root = ("allreduce", None) if number % 2 else ROOTED[number // 2 % len(ROOTED)]
        arrivals = [round(at + rng.uniform(0, 300), 3) for _ in range(RANKS)]
        if number % 4 == 0 and root is not None:
            arrivals[root] = round(at + 350, 3)
        transfer = round(rng.uniform(100, 200), 3)
        for rank, end in enumerate(_ends(op, root or 0, arrivals, transfer)):
            events[rank] += _called(rank, number, op, root, (arrivals[rank], end))
            # Compute beside it, which hides a part.
            compute = (arrivals[rank] + 20, rng.uniform(10, 150))
            events[rank].append(_event(rank, "gemm", compute, {"correlation": number + 500, "stream": 7}))
        at += 700
    return [
        {
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": RANKS,
                "pg_config": [{"pg_name": "0", "pg_size": RANKS, "ranks": list(range(RANKS))}],
            },
            "host_name": f"node{rank // 2}",
            "baseTimeNanoseconds": 1_760_000_000_000_000_000,
            "traceEvents": events[rank],
        }
        for rank in range(RANKS)
    ]


def _ends(op: str, root: int, arrivals: list[float], transfer: float) -> list[float]:
    """Return the end on each rank."""
    last = max(arrivals)
    match op:
        case "broadcast" | "scatter":
            return [max(arrivals[root], own) + transfer for own in arrivals]
        case "reduce" | "gather":
            return [last + transfer if rank == root else own + transfer / 2 for rank, own in enumerate(arrivals)]
        case _:
            return [last + transfer] * len(arrivals)


def _called(rank: int, number: int, op: str, root: int | None, span: tuple[float, float]) -> list[Event]:
    """Return the call, its launch and the kernel of an operation."""
    sizes = {"In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": "Float", "Group size": RANKS}
    said = {"Collective name": op, "Process Group Name": "0", "Seq": number, "External id": number} | sizes
    begin, end = span
    place = {} if root is None else {"Rank": root}
    return [
        _event(rank, "record_param_comms", (begin - 40, 20), {"correlation": number} | said | place, cat="cpu_op"),
        _event(rank, "cudaLaunchKernelExC", (begin - 35, 10), {"correlation": number}, cat="cuda_runtime"),
        _event(rank, "ncclDevKernel_Generic(...)", (begin, end - begin), {"correlation": number, "stream": 20} | said),
    ]


def _event(rank: int, name: str, times: tuple[float, float], args: dict[str, Any], *, cat: str = "kernel") -> Event:
    """Return an event; ``times``: start and duration."""
    begin, length = round(times[0] + HOST_US * (rank // 2), 3), round(times[1], 3)
    place = {"pid": rank, "tid": args.get("stream", 1)}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": begin, "dur": length, "args": {"device": rank % 2} | args}

"""Simulated job of operations that not all ranks leave together: with a root, sends and receives; and of nested ones."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.example_traces.jobs import Document, Event

RANKS: Final = 4
HOST_US: Final = 20_000.0
"""Time by which the clock of each host is ahead of that of the one before it; two ranks are on a host."""
ROOTED: Final = (("broadcast", 1), ("reduce", 2), ("gather", 0), ("scatter", 3), ("broadcast", None), ("reduce", RANKS))
"""Operations, and the place of their root; the last two do not tell one, or one that does not exist."""
ELEMENTS: Final = 1 << 20


def documents(seed: int = 5) -> list[Document]:
    """Return the traces of the job, one per rank."""
    job = _Job(seed)
    for number in range(1, 25):
        if number % 2:
            job.together(number)
        else:
            job.rooted(number, *ROOTED[number // 2 % len(ROOTED)])
        job.at += 700
    job.nested()
    job.messages()
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
            "traceEvents": job.events[rank],
        }
        for rank in range(RANKS)
    ]


class _Job:
    def __init__(self, seed: int) -> None:
        self.events: list[list[Event]] = [[] for _ in range(RANKS)]
        self.at = 1_000.0
        self._rng = random.Random(seed)
        self._calls = 100

    def together(self, number: int) -> None:
        """Add an all-reduce, which ends on all ranks at once."""
        arrivals, transfer = self._random()
        self._add("allreduce", [(own, max(arrivals) + transfer) for own in arrivals], Seq=number)

    def rooted(self, number: int, op: str, root: int | None) -> None:
        """Add an operation with a root. The others leave a reduction once their part is delivered, maybe after the root."""
        arrivals, transfer = self._random()
        place = 0 if root is None else root % RANKS
        if number % 4 == 0:
            arrivals[place] = round(self.at + 350, 3)
        if op in ("broadcast", "scatter"):
            ends = [max(arrivals[place], own) + transfer for own in arrivals]
        else:
            ends = [max(arrivals) + transfer if rank == place else own + 1.2 * transfer for rank, own in enumerate(arrivals)]
        arguments = {} if root is None else {"Rank": root}
        self._add(op, list(zip(arrivals, ends, strict=True)), Seq=number, **arguments)

    def nested(self) -> None:
        """Add all-reduces that run while others do; rank 3 is late in both."""
        for number in (25, 27):
            late = (0, 0, 0, 300)
            self._add("allreduce", [(self.at + own, self.at + 400) for own in late], Seq=number)
            inner = (50, 60, 70, 200)
            self._add("allreduce", [(self.at + own, self.at + 250) for own in inner], stream=21, Seq=number + 1)
            self.at += 700

    def messages(self) -> None:
        """Add sends from rank 0 to 1 and back: one that the sender leaves before the receiver comes, and one receive too many."""
        spans = {0: (0.0, 40.0), 1: (150.0, 210.0)}
        for sender, receiver, ends in ((0, 1, spans), (0, 1, {0: (0.0, 260.0), 1: (200.0, 260.0)}), (1, 0, spans)):
            for rank, op in ((sender, "send"), (receiver, "recv")):
                begin, end = ends[rank]
                self._call(rank, op, (self.at + begin, self.at + end), **{"Src Rank": sender, "Dst Rank": receiver})
            self.at += 700
        self._call(0, "recv", (self.at, self.at + 50), **{"Src Rank": 1, "Dst Rank": 0})

    def _random(self) -> tuple[list[float], float]:
        arrivals = [round(self.at + self._rng.uniform(0, 300), 3) for _ in range(RANKS)]
        return arrivals, round(self._rng.uniform(100, 200), 3)

    def _add(self, op: str, spans: list[tuple[float, float]], *, stream: int = 20, **arguments: Any) -> None:
        """Add an operation of all ranks, and compute beside it on a stream of its own, which hides a part."""
        for rank, span in enumerate(spans):
            self._call(rank, op, span, stream=stream, **arguments)
            compute = (span[0] + 20, self._rng.uniform(10, 150))
            place = {"correlation": self._calls + 5_000, "stream": stream - 13}
            self.events[rank].append(_event(rank, "gemm", compute, place))

    def _call(self, rank: int, op: str, span: tuple[float, float], *, stream: int = 20, **arguments: Any) -> None:
        """Add the call, its launch and the kernel of an operation."""
        self._calls += 1
        sizes = {"In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": "Float", "Group size": RANKS}
        group = {"Collective name": op, "Process Group Name": "0", "External id": self._calls}
        args = {"correlation": self._calls} | group | sizes | arguments
        begin, end = span
        self.events[rank] += [
            _event(rank, "record_param_comms", (begin - 40, 20), args, cat="cpu_op"),
            _event(rank, "cudaLaunchKernelExC", (begin - 35, 10), {"correlation": self._calls}, cat="cuda_runtime"),
            _event(rank, "ncclDevKernel_Generic(...)", (begin, end - begin), {"stream": stream} | _of_kernel(args)),
        ]


def _of_kernel(args: dict[str, Any]) -> dict[str, Any]:
    """Return what a kernel has of the metadata: all but the root."""
    return {key: value for key, value in args.items() if key != "Rank"}


def _event(rank: int, name: str, times: tuple[float, float], args: dict[str, Any], *, cat: str = "kernel") -> Event:
    """Return an event; ``times``: start and duration."""
    begin, length = round(times[0] + HOST_US * (rank // 2), 3), round(times[1], 3)
    place = {"pid": rank, "tid": args.get("stream", 1)}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": begin, "dur": length, "args": {"device": rank % 2} | args}

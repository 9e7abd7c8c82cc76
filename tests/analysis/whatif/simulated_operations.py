"""Operations of jobs whose durations are chosen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

Columns = dict[str, list[Any]]
Took = Callable[[str, int, int, int], float]
"""(operation, stage, replica, step) to seconds."""


def job(took: Took, *, stages: int = 2, replicas: int = 2, steps: int = 2, micro_batches: int = 3) -> Columns:
    """Return rows of the sample format for a job that runs all forwards, then all backwards, in whole seconds."""
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        clip_at = 0.0
        tails: list[tuple[int, int, float]] = []
        reduced: dict[int, float] = {}
        for replica in range(replicas):
            ends = _pipeline(rows, took, (stages, micro_batches), (step, replica))
            for stage in range(stages):
                reduced[stage] = max(reduced.get(stage, 0.0), ends[stage])
                tails.append((stage, replica, ends[stage]))
        for stage, replica, end in tails:
            result = reduced[stage] + took("grads-reduce-scatter", stage, replica, step)
            rows.append(_row("grads-reduce-scatter", 0, stage, (step, replica, stages), (end, result)))
            clip_at = max(clip_at, result)
        for stage, replica, _ in tails:
            begin = reduced[stage] + took("grads-reduce-scatter", stage, replica, step)
            result = clip_at + took("optimizer-clip-main-grad", stage, replica, step)
            rows.append(_row("optimizer-clip-main-grad", 0, stage, (step, replica, stages), (begin, result)))
            last = result + took("optimizer", stage, replica, step)
            rows.append(_row("optimizer", 0, stage, (step, replica, stages), (result, last)))
    return {name: [row[name] for row in rows] for name in rows[0]}


def _row(op: str, seq: int, stage: int, where: tuple[int, int, int], span: tuple[float, float]) -> dict[str, Any]:
    step, replica, stages = where
    start, end = span
    return {
        "dp_rank": replica,
        "stage": stage,
        "rank": replica * stages + stage,
        "step": step,
        "optype": op,
        "start_ts": start,
        "duration": end - start,
        "seq_id": seq,
    }


def _pipeline(rows: list[dict[str, Any]], took: Took, shape: tuple[int, int], place: tuple[int, int]) -> list[float]:
    """Append the forwards and backwards of one replica in one step; return the end of each stage."""
    stages, micro_batches = shape
    step, replica = place
    where = (step, replica, stages)
    free = [0.0] * stages
    ahead = [0.0] * stages  # end of the forward before the last one, which the first backward transfers wait for
    for way, order in (("forward", range(stages)), ("backward", range(stages - 1, -1, -1))):
        sent, received, computed = ([0.0] * stages for _ in range(3))
        for number in range(micro_batches):
            for at, stage in enumerate(order):
                if at:
                    sender = order[at - 1]
                    send = max(computed[sender], sent[sender])
                    receive = max(computed[stage], received[stage], ahead[stage] if way == "backward" else 0.0)
                    moved = max(send, receive) + took(f"{way}-send", stage, replica, step)
                    rows.append(_row(f"{way}-send", number, sender, where, (send, moved)))
                    rows.append(_row(f"{way}-recv", number, stage, where, (receive, moved)))
                    sent[sender] = received[stage] = moved
                begin = max(free[stage], received[stage])
                free[stage] = computed[stage] = begin + took(f"{way}-compute", stage, replica, step)
                rows.append(_row(f"{way}-compute", number, stage, where, (begin, free[stage])))
                if way == "forward" and number == micro_batches - 2:
                    ahead[stage] = free[stage]
    return free


def write(folder: Path, columns: Columns, name: str = "trace-x.parquet") -> Path:
    path = folder / name
    pq.write_table(pa.table(columns), path)
    return path


def alike(op: str, _stage: int, _replica: int, _step: int) -> float:
    return {"forward-compute": 2.0, "backward-compute": 4.0, "optimizer": 1.0}.get(op, 1.0)

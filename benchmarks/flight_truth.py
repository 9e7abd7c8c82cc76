"""Whom `rankscope analyze` names from Flight Recorder dumps of simulated NCCL jobs with a known fault. Prints JSON.

usage: python benchmarks/flight_truth.py [--seeds N]

The model has a GPU's semantics: a compute stream and a communication stream per process group on each rank. A collective's kernel
begins when its rank reaches it, and ends on all members together; its duration is what torch records with
TORCH_NCCL_ENABLE_TIMING=1. Steps are marked nowhere. No peer reads dumps of a job that trains, so there is no comparison.

- ddp: gradients are reduced in buckets beside the backward pass; the optimizer waits for them.
- fsdp: parameters are gathered a layer ahead of the compute, gradients are scattered beside the backward pass.
- tp: each layer waits for its all-reduce, forward and backward.
- tp x dp: the same, and buckets over the data-parallel groups.
- accumulation: tensor parallelism with two micro-steps, gradients reduced after the last.
- hsdp: fsdp inside groups, buckets between them. A dump does not show which of the two a rank waited in first, so there "not
  enough data" is an honest answer and counted apart.

The gain that the answer states is compared with what the same job without the fault is faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from budget import budget

from rankscope.analysis.engine import analyze

STEPS, LAYERS, LAYER_US, TRANSFER_US = 60, 6, 2_000.0, 300.0
"""Compute of a layer in one pass, and transfer of one collective. A step without waiting takes some 30 ms."""
_BEGIN_NS = 1_700_000_000_000_000_000
LATE = 3
"""Rank at fault."""
LAYOUTS = {
    "ddp": (8, 1),
    "ddp of 32": (32, 1),
    "fsdp": (8, 1),
    "tp": (1, 8),
    "tp x dp": (8, 4),
    "accumulation": (4, 2),
    "hsdp 4 x 4": (4, 4),
    "hsdp 2 x 8": (2, 8),
    "hsdp 16 x 2": (16, 2),
}
"""Number of data-parallel replicas (of shards in fsdp), and of ranks in one."""

FAULTS: dict[str, Callable[[int, np.random.Generator], tuple[float, float]]] = {
    # (factor of compute, microseconds at the start of the step) of the rank at fault, by step
    "none": lambda _step, _rng: (1.0, 0.0),
    "device 30 % slower": lambda _step, _rng: (1.3, 0.0),
    "host or input 8 ms late": lambda _step, rng: (1.0, rng.exponential(2_000.0) + 6_000.0),
    "one step in six 40 ms late": lambda step, _rng: (1.0, 40_000.0 * (step % 6 == 2)),
    "3 % slower, which is no fault": lambda _step, _rng: (1.03, 0.0),
}
NO_FAULT = ("none", "3 % slower, which is no fault")


class Job:
    """Simulated job; ``entries`` are those of each rank's dump."""

    def __init__(self, layout: str, fault: str, seed: int) -> None:
        self.layout = layout
        self.dp, self.tp = LAYOUTS[layout]
        self.world = self.dp * self.tp
        self.compute = np.zeros(self.world)
        self.streams: dict[str, np.ndarray] = {}
        self.sequence: Counter[str] = Counter()
        self.entries: list[list[dict[str, Any]]] = [[] for _ in range(self.world)]
        self.called_ns, ended = _BEGIN_NS, 0.0
        ranks = range(self.world)
        self.groups = {"world": [*ranks]}
        self.groups |= {f"tp{row}": [*ranks[row * self.tp : (row + 1) * self.tp]] for row in range(self.dp)}
        self.groups |= {f"dp{column}": [*ranks[column :: self.tp]] for column in range(self.tp)}
        rng = np.random.default_rng(seed)
        bias = 1 + rng.normal(0, 0.005, self.world)
        lasting = np.zeros(self.world)
        for step in range(STEPS):
            # Noise of each rank that lasts for some steps, and pauses of any rank.
            lasting = 0.8 * lasting + rng.normal(0, 0.006, self.world)
            speed = bias * (1 + lasting)
            factor, pause = FAULTS[fault](step, rng)
            speed[LATE] *= factor
            self.compute += rng.exponential(200.0, self.world)
            self.compute[LATE] += pause
            # The host runs ahead of the device by a step, and waits for it there.
            self.called_ns = max(self.called_ns, _BEGIN_NS + round(1000 * ended))
            ended = float(self.compute.max())
            self.train(speed, rng)
        self.step_us = float(self.compute.max()) / STEPS

    def train(self, speed: np.ndarray, rng: np.random.Generator) -> None:
        """Play one step."""
        rows = [f"tp{row}" for row in range(self.dp)]
        shards = ["dp0"] if self.layout == "fsdp" else rows if self.layout.startswith("hsdp") else []
        tensor = rows if self.layout.startswith(("tp", "accumulation")) else []
        replicas = [] if self.layout in ("fsdp", "tp") else [f"dp{column}" for column in range(self.tp)]
        micro_steps = 2 if self.layout == "accumulation" else 1
        for number in range(2 * micro_steps):
            backward, last = bool(number % 2), number >= 2 * micro_steps - 2
            gathered = self.meet(shards, "_all_gather_base", 4096, backward=backward) if shards else None
            for layer in range(LAYERS):
                if gathered is not None:
                    self.compute = np.maximum(self.compute, gathered)
                    if layer + 1 < LAYERS:
                        gathered = self.meet(shards, "_all_gather_base", 4096, backward=backward)
                self.compute += (1 + backward) * LAYER_US * speed * rng.normal(1, 0.01, self.world)
                if tensor:
                    self.compute = self.meet(tensor, "all_reduce", 1024, backward=backward)
                if backward and shards:
                    self.meet(shards, "_reduce_scatter_base", 8192, backward=True)
                if backward and last and replicas and layer % 2:
                    self.meet(replicas, "all_reduce", 2048 + layer, backward=True)
        for stream in self.streams.values():
            self.compute = np.maximum(self.compute, stream)

    def meet(self, groups: list[str], op: str, elements: int, *, backward: bool) -> np.ndarray:
        """Enqueue a collective in each of ``groups``; returns when it ends on each rank. Compute goes on meanwhile."""
        kind = groups[0].rstrip("0123456789")
        stream = self.streams.setdefault(kind, np.zeros(self.world))
        arrived, ended = np.maximum(self.compute, stream), stream.copy()
        self.called_ns += 50_000
        for name in groups:
            members = self.groups[name]
            ended[members] = arrived[members].max() + TRANSFER_US
            self.sequence[name] += 1
            for rank in members:
                self.entries[rank].append(
                    {
                        "record_id": len(self.entries[rank]),
                        "pg_id": 0,
                        "process_group": [name, kind],
                        "collective_seq_id": self.sequence[name],
                        "p2p_seq_id": 0,
                        "profiling_name": f"nccl:{op}",
                        "time_created_ns": self.called_ns,
                        "duration_ms": (ended[rank] - arrived[rank]) / 1000,
                        "input_sizes": [[elements]],
                        "input_dtypes": ["Float"],
                        "state": "completed",
                        "retired": True,
                        "is_p2p": False,
                        "thread_name": "pt_autograd_0" if backward else "python",
                    }
                )
        self.streams[kind] = ended
        return ended

    def write(self, folder: Path) -> None:
        """Write the dumps."""
        for rank, entries in enumerate(self.entries):
            groups = {name: {"desc": "", "ranks": str(members)} for name, members in self.groups.items() if rank in members}
            document = {"version": "2.10", "comm_lib_version": "2.28.9", "pg_config": groups, "pg_status": {}, "entries": entries}
            (folder / f"dump_{rank}.json").write_text(json.dumps(document))


def judged(layout: str, fault: str, seed: int) -> tuple[str, float | None]:
    """Return ``right``, ``wrong``, ``too_little`` or ``nobody``, and the stated gain as a multiple of the true one."""
    job = Job(layout, fault, seed)
    with tempfile.TemporaryDirectory() as folder:
        job.write(Path(folder))
        analysis = analyze([folder])
    verdict = analysis.verdict
    if verdict.kind != "straggler":
        return ("too_little" if verdict.kind == "insufficient_data" else "nobody"), None
    if verdict.ranks != [LATE] or fault in NO_FAULT:
        return "wrong", None
    truly = job.step_us - Job(layout, "none", seed).step_us
    stated = next(row.value for row in analysis.findings[0].evidence if row.name == "saved")
    return "right", stated / truly


def measure(seeds: int) -> dict[str, Any]:
    """Return the counts per layout and fault, and the median of the stated gain over the true one."""
    figures: dict[str, Any] = {}
    for layout, fault in itertools.product(LAYOUTS, FAULTS):
        found = [judged(layout, fault, seed) for seed in range(seeds)]
        ratios = [ratio for _, ratio in found if ratio is not None]
        figures[f"{layout}, {fault}"] = dict(Counter(said for said, _ in found)) | (
            {"stated_over_true_gain": round(float(np.median(ratios)), 3)} if ratios else {}
        )
        print(f"{layout}, {fault}: {figures[f'{layout}, {fault}']}", file=sys.stderr, flush=True)
    return figures


def main() -> int:
    """Measure, print the figures; exit status 1 if a budget does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    figures = measure(seeds)
    with_fault = [row for name, row in figures.items() if not name.endswith(NO_FAULT)]
    without = [row for name, row in figures.items() if name.endswith(NO_FAULT)]
    of_fault, of_none = seeds * len(with_fault), seeds * len(without)
    unanswered = sum(row.get("too_little", 0) for row in with_fault)
    right = sum(row.get("right", 0) for row in with_fault)
    budgets = [
        budget("right rank, of jobs with a fault and an answer", right / (of_fault - unanswered), 0.98, at_least=True),
        budget("another rank named, of jobs with a fault", sum(row.get("wrong", 0) for row in with_fault) / of_fault, 0.0),
        budget("a rank named, of jobs without a fault", sum(row.get("wrong", 0) for row in without) / of_none, 0.01),
        budget("not enough data", sum(row.get("too_little", 0) for row in figures.values()) / (of_fault + of_none), 0.05),
    ]
    environment = {"python": platform.python_version(), "numpy": version("numpy"), "rankscope": version("rankscope")}
    print(json.dumps({"jobs": of_fault + of_none, "figures": figures, "budgets": budgets, "environment": environment}, indent=1))
    return 0 if all(row["ok"] for row in budgets) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A training script without rankscope that is slow in one known way: the ground truth of ``benchmarks/truth/truth.py``.

Started by torchrun on gloo. ``--fault`` is the kind of the fault, ``--slow`` its ranks, ``--ms`` its time per step (or per step
that has it). The planted time is measured and written to ``--truth``/RANK.json: seconds per step.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULTS = (
    "none",
    "loader",
    "forward",
    "backward_early",
    "backward_late",
    "optimizer",
    "between",
    "gc",
    "checkpoint",
    *("core", "work", "enlarged"),
    "intermittent",
    "rotating",
    "two",
    "network",
    "neighbour",
)
BATCH = 8
EVERY = 10
"""Period of an intermittent fault in steps."""
BURN = "while True: pass"
SLEEP_AND_BURN = """
import random, time
r = random.Random({seed})
while True:
    end = time.perf_counter() + r.uniform(0.02, 0.3)
    while time.perf_counter() < end: pass
    time.sleep(r.uniform(0.05, 0.6))
"""


class HostPauses:
    """Pauses of the hosts: short ones of every rank, and in 5 to 10 % of the steps a long one of any rank."""

    def __init__(self, seed: int, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.own, self.common = random.Random(f"{seed} {rank}"), random.Random(f"{seed} of all")
        self.often = self.common.uniform(0.05, 0.1)

    def pause(self) -> None:
        """Pause in one step."""
        seconds = self.own.expovariate(1 / 0.002)
        happens, who, long = self.common.random() < self.often, self.common.randrange(self.world), self.common.uniform(0.05, 0.15)
        time.sleep(seconds + (long if happens and who == self.rank else 0.0))


class PlantedFault:
    """The planted fault: pauses at its place in the step, and records how long the pauses were."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.kind: str = args.fault
        self.slow = [int(item) for item in args.slow.split(",")] if args.slow else []
        self.rank = rank
        self.world = world
        self.seconds = args.ms / 1000
        self.steps: list[float] = [0.0]

    def here(self) -> bool:
        """Return whether this rank has the fault in this step."""
        step = len(self.steps) - 1
        if self.kind == "rotating":
            return step % self.world == self.rank
        if self.kind == "intermittent" and step % EVERY:
            return False
        return self.rank in self.slow

    def at(self, *kinds: str) -> None:
        """Pause here if the fault is one of ``kinds`` and this rank has it in this step."""
        if self.kind in kinds and self.here():
            began = time.perf_counter()
            time.sleep(self.seconds)
            self.steps[-1] += time.perf_counter() - began


class Pause(torch.autograd.Function):
    """Identity that calls ``forward`` in the forward pass and ``backward`` in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Callable[[], None], backward: Callable[[], None]) -> Tensor:
        ctx.call = backward
        forward()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call()
        return *gradients, None, None


def no_pause() -> None:
    """Do not pause."""


class Mlp(nn.Module):
    """A wide residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] in and out."""
        changed: Tensor = self.down(torch.relu(self.up(x)))
        return x + changed


class Convolution(nn.Module):
    """A residual convolution over the length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, width, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] in and out."""
        changed: Tensor = torch.relu(self.inner(x.transpose(1, 2))).transpose(1, 2)
        return x + changed


def layer(model: str, width: int) -> nn.Module:
    """Return one layer of the named model."""
    if model == "transformer":
        return nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
    return {"mlp": Mlp, "convolution": Convolution}[model](width)


class Model(nn.Module):
    """Network of several layers, with faults at the first and the last.

    The device's time, in which the host sleeps, is spread over the layers.
    """

    def __init__(self, args: argparse.Namespace, planted: PlantedFault, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(args.model, args.width) for _ in range(depth))
        self.planted = planted
        self.device = args.device_ms / 1000 / depth / 3
        self.noise = HostPauses(args.seed, planted.rank, planted.world) if args.noise else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] in and out."""
        last = len(self.layers) - 1
        for number, item in enumerate(self.layers):
            x = item(x)
            x = Pause.apply(x, self._forward if number == 0 else self._compute, self._backward(number, last))  # type: ignore[no-untyped-call]
        return x

    def _compute(self) -> None:
        time.sleep(self.device)

    def _forward(self) -> None:
        self._compute()
        if self.noise is not None:
            self.noise.pause()
        self.planted.at("forward", "intermittent", "rotating", "two")

    def _backward(self, number: int, last: int) -> Callable[[], None]:
        def compute() -> None:
            time.sleep(2 * self.device)
            if number == last:
                self.planted.at("backward_early")
            if number == 0:
                # Before the gradients of the first layer, which are the last to be ready.
                self.planted.at("backward_late")

        return compute


class Samples(Dataset[Tensor]):
    """Reproducible samples; one sample of each batch has the planted delay."""

    def __init__(self, length: int, width: int, planted: PlantedFault) -> None:
        self.sample = torch.linspace(0, 1, length * width).reshape(length, width)
        self.planted = planted

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> Tensor:
        if index % BATCH == 0:
            self.planted.at("loader")
        return self.sample * (index % 7)


class Sgd(torch.optim.SGD):
    """Optimizer with a planted delay."""

    planted: PlantedFault

    def step(self, closure: Any = None) -> Any:
        """Pause if the fault is here, then step."""
        self.planted.at("optimizer")
        return super().step(closure)


class SlowFile(io.BytesIO):
    """Storage that waits ``seconds`` before its first write."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def write(self, data: Any, /) -> int:
        """Write ``data``, after the delay if it is the first write."""
        if not self.tell():
            time.sleep(self.seconds)
        return super().write(data)


def saving(state: object, to: SlowFile) -> float:
    """Write a checkpoint. Returns the seconds that it takes."""
    began = time.perf_counter()
    torch.save(state, to)
    return time.perf_counter() - began


def pin(rank: int) -> int:
    """Pin this rank to one core. Returns the core."""
    cores = sorted(os.sched_getaffinity(0))
    core = cores[rank % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def burner(code: str, core: int | None = None) -> subprocess.Popen[bytes]:
    """Start a process that uses a core until it is ended or this process ends."""
    prelude = "import ctypes, os; ctypes.CDLL(None).prctl(1, 9)\n"
    if core is not None:
        prelude += f"os.sched_setaffinity(0, {{{core}}})\n"
    return subprocess.Popen([sys.executable, "-c", prelude + code])


def build(args: argparse.Namespace, planted: PlantedFault) -> tuple[nn.Module, Callable[[Tensor], None]]:
    """Return the module that is trained, and a function that runs forward and backward of a batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.layout == "pp":
        part = Model(args, planted, args.depth // world)
        stage = PipelineStage(part, rank, world, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, _target: out.square().mean())

        def pipelined(batch: Tensor) -> None:
            if rank == 0:
                schedule.step(batch)
            elif rank == world - 1:
                schedule.step(target=batch)
            else:
                schedule.step()

        return part, pipelined
    model: nn.Module = Model(args, planted, args.depth)
    if args.layout == "fsdp2":
        for item in model.layers:  # type: ignore[union-attr]
            fully_shard(item)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=0.25)

    def train(batch: Tensor) -> None:
        loss: Tensor = model(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]

    return model, train


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", choices=("ddp", "fsdp2", "pp"), default="ddp")
    parser.add_argument("--model", choices=("mlp", "convolution", "transformer"), default="mlp")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--slow", default="", help="ranks, as in 1,3")
    parser.add_argument("--ms", type=float, default=0.0, help="of fault per step that has it; of work and enlarged, percent more")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=32, help="of a sample")
    parser.add_argument("--device-ms", type=float, default=12.0, help="of each step that a device would compute; the host sleeps")
    parser.add_argument("--noise", action="store_true", help="let the hosts of all ranks pause")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truth", type=Path, required=True, help="folder for what was planted")
    parser.add_argument("--traceml", action="store_true", help="with the lines that TraceML asks for")
    return parser.parse_args()


def neighbours(planted: PlantedFault, seed: int) -> list[subprocess.Popen[bytes]]:
    """Start the processes that take CPU time from the ranks, as the fault requires."""
    if planted.kind == "core":
        core = pin(planted.rank)
        return [burner(BURN, core)] if planted.rank in planted.slow else []
    if planted.kind == "neighbour" and planted.rank == 0:
        return [burner(SLEEP_AND_BURN.format(seed=seed))]
    return []


def collecting() -> float:
    """Run a full garbage collection. Returns the seconds that it takes."""
    began = time.perf_counter()
    gc.collect()
    return time.perf_counter() - began


def heap(seconds: float) -> list[object]:
    """Return objects that the garbage collector needs at least ``seconds`` to traverse."""
    gc.collect()
    gc.freeze()
    objects: list[object] = []
    while collecting() < seconds:
        objects.append([[number] for number in range(4_000)])
    return objects


def loop(args: argparse.Namespace, planted: PlantedFault, tracer: Callable[[Any], Any]) -> list[float]:
    """Train. Returns the wall seconds of the steps, without the time to load their batches."""
    is_planted = planted.rank in planted.slow
    storm = heap(planted.seconds) if planted.kind == "gc" and is_planted else []
    trained, train = build(args, planted)
    optimizer = Sgd(trained.parameters(), lr=1e-4)
    optimizer.planted = planted
    longer = round(args.length * (1 + args.ms / 100))
    length = longer if planted.kind == "work" and is_planted else args.length
    walls = []
    for step, batch in enumerate(DataLoader(Samples(length, args.width, planted), batch_size=BATCH)):
        if step == args.steps:
            break
        began = time.perf_counter()
        if planted.kind == "enlarged" and is_planted:
            batch = nn.functional.pad(batch, (0, 0, 0, longer - length))  # noqa: PLW2901  # what a script does
        with tracer(trained):
            optimizer.zero_grad()
            train(batch)
            optimizer.step()
        if storm:
            planted.steps[-1] += collecting()
        if planted.kind == "checkpoint" and is_planted:
            planted.steps[-1] = saving({"step": step, "model": trained.state_dict()}, SlowFile(planted.seconds))
        planted.at("between")
        walls.append(time.perf_counter() - began)
        planted.steps.append(0.0)
    return walls


def main() -> None:
    """Train, and write the planted times."""
    args = options()
    tracer: Callable[[Any], Any] = contextlib.nullcontext
    if args.traceml:
        import traceml_ai

        traceml_ai.init(mode="auto")
        tracer = traceml_ai.trace_step
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    planted = PlantedFault(args, rank, world)
    others = neighbours(planted, args.seed)
    walls = loop(args, planted, tracer)
    for other in others:
        other.kill()
        other.wait()
    args.truth.mkdir(parents=True, exist_ok=True)
    (args.truth / f"{rank}.json").write_text(json.dumps({"planted_s": planted.steps[:-1], "walls_s": walls}), encoding="utf-8")
    # Gloo may hang when it is destroyed while a thread of its own still holds the last gradients (pytorch issue 190489).
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A tiny training in the layout ``--layout`` that knows nothing of rankscope. ``--fault PHASE:RANK`` plants one stall.

On gloo and the CPU, or with ``--device cuda`` on NCCL and GPUs; ranks without a GPU of their own share the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from group_end import destroy_group
from shared_gpu import cuda_device  # type: ignore[import-not-found]  # beside this script
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WIDTH = 32
BLOCKS = 4
BATCH = 8
MICROBATCHES = 4
CLOCK_HERTZ = 1.7e9
"""Clock of a GPU, about."""
TRACED = 6
"""Number of steps at the end that are traced on request."""

SCHEDULES = {"pp-gpipe": ScheduleGPipe, "pp-1f1b": Schedule1F1B, "pp-interleaved": ScheduleInterleaved1F1B}
PIPELINES = [name + also for name in SCHEDULES for also in ("", "+fsdp2", "+ddp")]
LAYOUTS = ("single", "ddp", "fsdp2", "tp", "fsdp2+tp", "hsdp", *PIPELINES)


class Noise(Dataset[Tensor]):
    """Reproducible samples, each with the requested delay."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.pause)
        return torch.full((WIDTH,), float(index % 7) / 7)


class Sleep(torch.autograd.Function):
    """Identity that sleeps in forward, or in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.pause = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        time.sleep(ctx.pause)
        return *gradients, None, None


class Block(nn.Module):
    """Two layers, as tensor parallelism cuts them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual block's output."""
        changed: Tensor = self.down(torch.relu(self.up(x)))
        return x + changed


class Model(nn.Module):
    """Blocks, with the stall after the first: its backward is near the end of the whole backward."""

    def __init__(self, blocks: int, *, forward: float, backward: float, checkpointing: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.stall = (forward, backward)
        self.checkpointing = checkpointing

    def forward(self, x: Tensor) -> Tensor:
        """Run all blocks."""
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
            if number == 0:
                x = Sleep.apply(x, *self.stall)  # type: ignore[no-untyped-call]
        return x


def shard(model: Model, mesh: DeviceMesh) -> None:
    """Apply FSDP2 to every block, and to the rest."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def split(model: Model, mesh: DeviceMesh) -> None:
    """Apply tensor parallelism to every block."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def build(args: argparse.Namespace, make: Callable[[int], Model]) -> tuple[list[nn.Module], Callable[[Tensor], Tensor]]:
    """Build the modules to train, and a function that computes the loss of a batch and runs backward."""
    layout, world = args.layout, dist.get_world_size() if dist.is_initialized() else 1
    if layout.startswith("pp"):
        return pipeline(args, make, world)
    model = make(BLOCKS)
    trained: nn.Module = model
    if layout == "tp":
        split(model, init_device_mesh(args.device, (world,), mesh_dim_names=("tp",)))
    elif layout == "fsdp2+tp":
        mesh = init_device_mesh(args.device, (2, world // 2), mesh_dim_names=("dp", "tp"))
        split(model, mesh["tp"])
        shard(model, mesh["dp"])
    elif layout == "fsdp2":
        shard(model, init_device_mesh(args.device, (world,), mesh_dim_names=("fsdp",)))
    elif layout == "hsdp":
        shard(model, init_device_mesh(args.device, (2, world // 2), mesh_dim_names=("replicate", "shard")))
    if args.compile:
        for block in model.blocks:
            block.compile(fullgraph=True, backend=args.backend)
    if layout == "ddp":
        trained = DistributedDataParallel(model)

    def train(batch: Tensor) -> Tensor:
        with torch.autocast(args.device, dtype=torch.bfloat16) if args.amp else contextlib.nullcontext():
            loss: Tensor = trained(batch).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return [trained], train


def pipeline(
    args: argparse.Namespace, make: Callable[[int], Model], world: int
) -> tuple[list[nn.Module], Callable[[Tensor], Tensor]]:
    """Build a pipeline of two stages; with four ranks every stage has two replicas."""
    name, _, data = args.layout.partition("+")
    mesh = init_device_mesh(args.device, (2, world // 2), mesh_dim_names=("pp", "dp"))
    depth, place = 2, mesh.get_local_rank("pp")
    per_rank = 2 if name == "pp-interleaved" else 1
    parts: list[nn.Module] = [make(BLOCKS // (depth * per_rank) or 1) for _ in range(per_rank)]
    for part in parts:
        if data == "fsdp2":
            shard(part, mesh["dp"])  # type: ignore[arg-type]
        if args.compile:
            for block in part.blocks:  # type: ignore[union-attr]
                block.compile(fullgraph=True, backend=args.backend)
    if data == "ddp":
        parts = [DistributedDataParallel(part, process_group=mesh.get_group("dp")) for part in parts]
    stages = [
        PipelineStage(part, place + depth * turn, depth * per_rank, args.at, group=mesh.get_group("pp"))
        for turn, part in enumerate(parts)
    ]
    kind: Any = SCHEDULES[name]
    schedule = kind(stages if per_rank > 1 else stages[0], MICROBATCHES, loss_fn=lambda out, goal: (out - goal).square().mean())

    def train(batch: Tensor) -> Tensor:
        losses: list[Tensor] = []
        with torch.autocast(args.device, dtype=torch.bfloat16) if args.amp else contextlib.nullcontext():
            inputs = [batch] if place == 0 else []
            if place == depth - 1:
                schedule.step(*inputs, target=torch.zeros_like(batch), losses=losses)
            else:
                schedule.step(*inputs)
        return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=args.at)

    return parts, train


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", choices=LAYOUTS, required=True)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--fault", default="none:0", help="data|forward|backward|optimizer|device:RANK")
    parser.add_argument("--pause", type=float, default=0.04, help="seconds per step")
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--sync", action="store_true", help="read the loss in each step")
    parser.add_argument("--dumps", type=Path, help="folder for a dump of the Flight Recorder at the end")
    parser.add_argument("--traces", type=Path, help="folder for a trace of the last steps")
    return parser.parse_args()


def start(args: argparse.Namespace) -> int:
    """Join the job. Return the rank."""
    args.at = torch.device("cpu") if args.device == "cpu" else cuda_device()
    if args.device == "cuda":
        torch.cuda.set_device(args.at)
    if args.layout == "single":
        return 0
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    return dist.get_rank()


def train_steps(
    args: argparse.Namespace, loader: DataLoader[Tensor], optimizer: torch.optim.Optimizer, train: Callable[[Tensor], Tensor]
) -> Tensor:
    """Train, and return the last loss. The last steps are traced on request."""
    loss, profiler = torch.zeros(()), torch.profiler.profile()
    for step, batch in enumerate(loader):
        if step == args.steps:
            break
        if args.traces is not None and step == args.steps - TRACED:
            profiler.start()
        optimizer.zero_grad()
        loss = train(batch.to(args.at))
        optimizer.step()
        if args.sync:
            loss.item()
        if args.traces is not None and step >= args.steps - TRACED:
            profiler.step()
    if args.traces is not None:
        profiler.stop()
        profiler.export_chrome_trace(str(args.traces / f"rank{dist.get_rank()}.json"))
    return loss


def main() -> None:
    """Train."""
    args = arguments()
    torch.manual_seed(args.seed)
    rank = start(args)
    kind, _, target = args.fault.partition(":")
    own_fault = kind if rank == int(target) else "none"
    # A pipeline runs every part once per microbatch.
    share = (
        args.pause / (MICROBATCHES * (2 if "interleaved" in args.layout else 1)) if args.layout.startswith("pp") else args.pause
    )

    def make(blocks: int) -> Model:
        forward, backward = (share if own_fault == phase else 0.0 for phase in ("forward", "backward"))
        return Model(blocks, forward=forward, backward=backward, checkpointing=args.checkpointing).to(args.at)

    modules, train = build(args, make)
    optimizer = torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.01)
    if own_fault == "device":
        spin: Any = torch.cuda._sleep
        modules[0].register_forward_pre_hook(lambda *_: spin(int(args.pause * CLOCK_HERTZ)))
    if own_fault == "optimizer":
        optimizer.register_step_pre_hook(lambda *_: time.sleep(args.pause))
    loader = DataLoader(Noise(args.pause / BATCH if own_fault == "data" else 0.0), batch_size=BATCH)
    loss = train_steps(args, loader, optimizer, train)
    if args.dumps is not None:
        time.sleep(5)  # until the watchdog has seen the last ones complete
        dump: Any = vars(torch._C._distributed_c10d)["_dump_nccl_trace"]  # builds without NCCL have none
        (args.dumps / f"nccl_trace_rank_{rank}").write_bytes(dump(includeStackTraces=False))
    if args.compile:
        from torch._dynamo.utils import counters

        print(f"rank {rank} graphs {counters['stats']['unique_graphs']} recompiled {len(counters['graph_break'])}", flush=True)
    print(f"rank {rank} loss {loss.item():.6f}", flush=True)
    if dist.is_initialized():
        destroy_group()


if __name__ == "__main__":
    main()

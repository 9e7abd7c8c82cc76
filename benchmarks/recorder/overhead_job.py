"""The training job that ``overhead.py`` starts and measures, with torchrun where ranks are needed.

overhead_job.py blocks --folder FOLDER --blocks N    blocks of steps with and without the recorder, in turns; --device: where
overhead_job.py long --folder FOLDER --steps N       a typical training script, whose steps mostly sleep
overhead_job.py once                                 one process, one step
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.profiler.ring import RingWriter

LONG_STEP_S = 0.05
"""Seconds that each step of ``long`` sleeps."""


def _model(width: int, depth: int, device: str = "cpu") -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width, device=device) for _ in range(depth)]))


def _steps(model: Any, optimizer: Any, batches: Iterator[Any], count: int, device: str = "cpu") -> None:
    for _ in range(count):
        (batch,) = next(batches)
        optimizer.zero_grad()
        model(batch.to(device)).square().mean().backward()
        optimizer.step()


def _endless(width: int, rows: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.ones(rows * 64, width))
    while True:
        yield from DataLoader(data, batch_size=rows)


class _Wrappers:
    """All wrappers and hooks that attaching installed, to remove and reinstall them."""

    def __init__(self, attach: Callable[[], None]) -> None:
        import torch
        from torch.optim import optimizer

        self._hooks: list[dict[int, Any]] = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]  # noqa: SLF001
        owners = [owner for owner in _owners() if owner is not None]
        before = [dict(vars(owner)) for owner in owners]
        attach()
        self._changed = [
            (owner, name, old[name], new)
            for owner, old in zip(owners, before, strict=True)
            for name, new in dict(vars(owner)).items()
            if name in old and new is not old[name]
        ]
        assert any(owner is torch.autograd and name == "backward" for owner, name, _, _ in self._changed), "nothing was attached"
        self._saved_hooks: list[OrderedDict[int, Any]] = [OrderedDict(hooks) for hooks in self._hooks]

    def off(self) -> None:
        for owner, name, old, _ in self._changed:
            setattr(owner, name, old)
        for hooks in self._hooks:
            hooks.clear()

    def empty(self) -> None:
        """Install functions that add nothing in the places that every step passes."""
        batch, backward = self._original("__next__"), self._original("backward")
        self._floor(lambda loader: batch(loader), lambda *args, **kwargs: backward(*args, **kwargs), _do_nothing, _do_nothing)  # noqa: PLW0108

    def least(self, ring: RingWriter) -> None:
        """Install the least Python that records a step as words of a ring, without any guard.

        The words are eight moments, start, CPU time, and the end of the backward pass before DDP waits.
        """
        import torch
        from torch.autograd import Variable

        now, queue = time.perf_counter_ns, Variable._execution_engine.queue_callback  # noqa: SLF001
        batch, run = self._original("__next__"), self._original("backward")
        noted: list[int] = []
        exhausted = partial(next, map(noted.append, iter(now, None)))
        carrier, hooks = torch.Tensor(), dict[int, Any]()
        carrier._backward_hooks = hooks  # noqa: SLF001

        def load(loader: Any) -> Any:
            noted.append(now())
            try:
                return batch(loader)
            finally:
                noted.append(now())

        def backward(*args: Any, **kwargs: Any) -> None:
            noted.append(now())
            hooks[0] = partial(next, map(queue, (exhausted,)))
            args[0].grad_fn._register_hook_dict(carrier)  # noqa: SLF001
            try:
                run(*args, **kwargs)
            finally:
                noted.append(now())

        def before(*_: Any) -> None:
            noted.append(now())

        def after(*_: Any) -> None:
            ring.write(time.time_ns(), time.thread_time_ns(), *noted, now())
            noted.clear()
            ring.rewind()  # nobody reads it

        self._floor(load, backward, before, after)

    def _original(self, name: str) -> Any:
        return next(old for _, changed, old, _ in self._changed if changed == name)

    def _floor(self, load: Any, backward: Any, before: Any, after: Any) -> None:
        self.off()
        for owner, name, _, _ in self._changed:
            if name in ("__next__", "backward"):
                setattr(owner, name, load if name == "__next__" else backward)
        for hooks, hook in zip(self._hooks, (before, after), strict=True):
            hooks[0] = hook

    def on(self) -> None:
        for hooks in self._hooks:
            hooks.clear()
        for owner, name, _, new in self._changed:
            setattr(owner, name, new)
        for hooks, item in zip(self._hooks, self._saved_hooks, strict=True):
            hooks.update(item)


def _do_nothing(*_: Any) -> None:
    pass


def _owners() -> list[Any]:
    import torch
    from torch import distributed
    from torch.amp import grad_scaler
    from torch.nn import parallel
    from torch.utils.data import dataloader

    return [
        torch,
        torch.Tensor,
        torch.autograd,
        torch.autograd.profiler.profile,
        distributed,
        distributed.distributed_c10d,
        distributed.Work,
        parallel.DistributedDataParallel,
        grad_scaler.GradScaler,
        dataloader._BaseDataLoaderIter,  # noqa: SLF001
        sys.modules.get("torch.distributed._functional_collectives"),
    ]


def train_blocks(run_dir: Path, blocks: int, steps: int, device: str) -> None:
    """Alternate blocks with and without the recorder; every rank writes its measurements beside the run directory."""
    import torch
    import torch.distributed as dist

    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.rank.wrappers import attach
    from rankscope.profiler.ring import RingWriter
    from rankscope.profiler.settings import RecorderSettings

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    settings = RecorderSettings(
        run_dir=str(run_dir), run_id="bench", name="bench", start_unix_ns=time.time_ns(), window_steps=0, exporter_url=None
    )
    recorder = StepRecorder(settings)
    wrappers = _Wrappers(lambda: attach.use(recorder))
    # One model for all arms: two models would have different memory layouts.
    model = _model(64, 4, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = _endless(64, 8)
    ring = RingWriter()
    with TemporaryFile(dir="/dev/shm") as file:
        ring.share(file.fileno())
    arms: dict[str, Callable[[], None]] = {
        "with": wrappers.on,
        "without": wrappers.off,
        "empty": wrappers.empty,
        "least": lambda: wrappers.least(ring),
    }
    rows: dict[str, list[tuple[float, float, float]]] = {arm: [] for arm in arms}
    for number in range(blocks + 1):
        # The order alternates, so that slow changes of the machine affect all arms alike.
        for arm in list(arms)[:: -1 if number % 2 else 1]:
            arms[arm]()
            dist.barrier()
            cost, cpu, wall = recorder.cost_ns, time.thread_time_ns(), time.perf_counter_ns()
            _steps(model, optimizer, batches, steps, device)
            row = (time.thread_time_ns() - cpu, time.perf_counter_ns() - wall, recorder.cost_ns - cost)
            if number:
                rows[arm].append((row[0] / steps / 1e3, row[1] / steps / 1e3, row[2] / steps / 1e3))
    assert not recorder.off, "the recorder switched itself off"
    result = {**rows, "steps": recorder.step_number}
    run_dir.with_name(f"blocks-{dist.get_rank()}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


def train_long(out: Path, steps: int) -> None:
    """Run a typical training script; ``BENCH_TRACEML`` adds the lines that TraceML requires."""
    import torch
    import torch.distributed as dist

    tracer: Callable[[Any], Any] = nullcontext
    if os.environ.get("BENCH_TRACEML"):
        import traceml_ai

        traceml_ai.init(mode="auto")
        tracer = traceml_ai.trace_step
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = _model(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = _endless(64, 8)
    walls = []
    cpu, mark = time.process_time(), time.perf_counter()
    for number in range(steps):
        (batch,) = next(batches)
        with tracer(model):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            time.sleep(LONG_STEP_S)
        if number == steps // 10:
            cpu, mark = time.process_time(), time.perf_counter()
            walls = [mark]
        elif number > steps // 10:
            walls.append(time.perf_counter())
    counted = len(walls) - 1
    result = {
        "cpu_us": (time.process_time() - cpu) / counted * 1e6,
        "wall_mean_us": (walls[-1] - walls[0]) / counted * 1e6,
        "wall_median_us": statistics.median(b - a for a, b in pairwise(walls)) * 1e6,
    }
    (out / f"long-{dist.get_rank()}.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


def train_once() -> None:
    """Train in one process and print the seconds from the start of Python to the end of the training."""
    import torch

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    started = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    up = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    print(up - int(started[19]) / os.sysconf("SC_CLK_TCK"))


def main() -> None:
    """Run the training that the command line chooses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=("blocks", "long", "once"))
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--blocks", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="of a block, or of the long run")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.how == "blocks":
        train_blocks(args.folder / "run", args.blocks, args.steps, args.device)
    elif args.how == "long":
        train_long(args.folder, args.steps)
    else:
        train_once()


if __name__ == "__main__":
    main()

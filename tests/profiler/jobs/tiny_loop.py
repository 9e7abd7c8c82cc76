"""One process, one training loop of the kind named in the arguments; knows nothing of rankscope."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS = 12


def plain() -> None:
    """Train with one optimizer, a data loader with a worker, a checkpoint, and a validation pass."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(DataLoader(torch.ones(STEPS * 4, 8), batch_size=4, num_workers=1)):  # type: ignore[arg-type]
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        if step == 5:
            torch.save(model.state_dict(), os.devnull)
    print(f"{model.weight.sum().item():.6f}")


def crash() -> None:
    """End with an exception."""
    plain()
    raise RuntimeError("the script's own error")


def accumulate() -> None:
    """Run three backward passes per step."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        for _ in range(3):
            model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def gan() -> None:
    """Train with two optimizers that take turns, each after its own backward pass."""
    models = [nn.Linear(8, 1), nn.Linear(8, 1)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for _ in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).mean().backward()
            optimizer.step()


def scaler() -> None:
    """Train with mixed precision; every third step is skipped for an infinite gradient."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    grad_scaler = torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).mean() * (float("inf") if step % 3 == 2 else 1.0)
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()


def inside_backward() -> None:
    """Give every parameter an optimizer that steps inside the backward pass."""
    model = nn.Linear(8, 1)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())  # type: ignore[no-untyped-call]
    for _ in range(STEPS):
        model(torch.ones(4, 8)).mean().backward()
        model.zero_grad()


def compiled() -> None:
    """Train a model compiled as one graph."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    forward = torch.compile(model, fullgraph=True, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        forward(torch.ones(4, 8)).mean().backward()
        optimizer.step()
    print(len(graphs), "graph")


def profiled() -> None:
    """Profile steps in the script itself, across the window of the recorder."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for step in range(STEPS):
        if step == 5:
            own.start()
        optimizer.zero_grad()
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        if step == 8:
            own.stop()
    events = own.events()  # type: ignore[no-untyped-call]
    print("own profile", "aten::linear" in {event.name for event in events or []})


def scheduled() -> None:
    """Run a profiler that warms up while the recorder's window is due, and records after it."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.profiler.schedule(wait=2, warmup=4, active=2, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as own:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).mean().backward()
            optimizer.step()
            own.step()
    events = own.events()
    print("own profile", "aten::linear" in {event.name for event in events or []})


class Failing(torch.optim.SGD):
    """Optimizer whose step number ``STEPS // 2`` raises."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        """Step, or raise."""
        self.taken += 1
        if self.taken == STEPS // 2:
            raise RuntimeError("out of memory")
        return super().step(closure)


def replaced() -> None:
    """Replace an optimizer whose step raises by a new one, and keep the old one."""
    model = nn.Linear(8, 1)
    optimizers: list[torch.optim.Optimizer] = [Failing(model.parameters(), lr=0.01)]
    for _ in range(STEPS):
        model(torch.ones(4, 8)).mean().backward()
        try:
            optimizers[-1].step()
        except RuntimeError:
            optimizers.append(torch.optim.SGD(model.parameters(), lr=0.01))


def replaced_with_data() -> None:
    """Train as in ``replaced``, with a data loader."""
    model = nn.Linear(8, 1)
    optimizers: list[torch.optim.Optimizer] = [Failing(model.parameters(), lr=0.01)]
    for batch in DataLoader(torch.ones(STEPS * 4, 8), batch_size=4):  # type: ignore[arg-type]
        model(batch).mean().backward()
        try:
            optimizers[-1].step()
        except RuntimeError:
            optimizers.append(torch.optim.SGD(model.parameters(), lr=0.01))


def closures() -> None:
    """Train with an optimizer that wraps another, and runs forward and backward between two halves of its step."""

    class Sharpness(torch.optim.Optimizer):
        def __init__(self, base: torch.optim.Optimizer) -> None:
            super().__init__(base.param_groups, {})
            self.base = base

        def step(self, closure: Any = None) -> Any:
            closure()
            return self.base.step()

    model = nn.Linear(8, 1)
    optimizer = Sharpness(torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(STEPS):
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step(lambda: model(torch.ones(4, 8)).mean().backward())


def evaluates() -> None:
    """Run evaluations and checkpoints of several kinds, each in a step of its own."""
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict_saver import save

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def validate() -> None:
        for batch in DataLoader(torch.ones(40, 8), batch_size=4):  # type: ignore[arg-type]
            time.sleep(0.01)
            model(batch)

    # Before the first step: it belongs to none.
    with torch.no_grad():
        validate()
    for step, batch in enumerate(DataLoader(torch.ones(STEPS * 4, 8), batch_size=4)):  # type: ignore[arg-type]
        if step == 2:  # after the batch of the step: not its forward pass
            with torch.inference_mode():
                validate()
        if step == 4:
            model.eval()
            validate()  # gradients are enabled, as in examples that disable them inside the loop
            model.train()
        if step == 6:
            with torch.no_grad():
                model.eval()
                time.sleep(0.1)
                model.train()
        loss = model(batch).mean()
        if step == 8:
            with tempfile.TemporaryDirectory() as folder:
                save(model.state_dict(), checkpoint_id=folder)
        if step == 10:
            with tempfile.TemporaryDirectory() as folder:
                save_file(model.state_dict(), f"{folder}/model.safetensors")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class PlantedError(RuntimeError):
    """Planted error, which ends training unless it is caught."""


def fails() -> None:
    """Fail somewhere in every other step, and continue training. No object of a failed step stays alive."""
    model = nn.Linear(8, 1)
    optimizer = Failing(model.parameters(), lr=0.01)
    gone = []
    errors = (MemoryError, torch.OutOfMemoryError, KeyboardInterrupt, PlantedError)
    caught: tuple[type[BaseException], ...] = (*errors, RuntimeError)

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(_context: Any, *_gradients: torch.Tensor) -> torch.Tensor:
            raise error("planted")

    for step, batch in enumerate(DataLoader(torch.ones(STEPS * 4, 8), batch_size=4)):  # type: ignore[arg-type]
        error: type[BaseException] = errors[step // 2 % len(errors)]
        try:
            loss = model(batch).mean()
            gone.append(weakref.ref(loss))
            if step % 4 == 1:
                raise error("planted")
            (Broken.apply(loss) if step % 4 == 3 else loss).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        except caught:
            pass
        finally:
            del loss
        optimizer.zero_grad()
    gc.collect()
    print("left", sum(reference() is not None for reference in gone))


def lbfgs() -> None:
    """Train with an optimizer that runs forward and backward several times a step."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(torch.ones(4, 8)) - 1).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)  # type: ignore[no-untyped-call]


def swapped() -> None:
    """Run half of the steps with one optimizer, half with another (fused), and keep the first one."""
    model = nn.Linear(8, 1)
    optimizers = [torch.optim.AdamW(model.parameters(), foreach=True), torch.optim.AdamW(model.parameters(), fused=True)]
    for step in range(STEPS):
        model(torch.ones(4, 8)).mean().backward()
        optimizers[step >= STEPS // 2].step()
        model.zero_grad()


def _fail_at(step: int) -> None:
    if step == 3:
        raise PlantedError("planted")


def sections() -> None:
    """Record sections of the script's own, work counted by the script, and its place in the layout."""
    from rankscope.profiler.step import StepProfiler

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with StepProfiler("not used under a launcher", coordinates={"dp": 3, "tp": 0}) as prof:
        for step, batch in enumerate(prof.data([torch.ones(4, 8)] * STEPS)):
            with prof.section("h2d"):
                batch = batch.clone()  # noqa: PLW2901  # as scripts do
            with suppress(PlantedError), prof.section("loss"), prof.section("inner"):
                loss = model(batch).mean()
                _fail_at(step)
            with prof.section("loss"):
                loss.backward()
            optimizer.step()
            if step == 1:  # as much as a step can have
                for number in range(10):
                    name = f"{number} " + "n" * 30
                    prof.tag(name)
                    prof.metric(name, number)
                    with prof.section(name):
                        pass
            if step % 3 == 0:
                prof.metric("loss", 2.5 - step)
                prof.metric("not a number", float("nan"))
                prof.metric("on a device", loss)  # a tensor, which is not read
            prof.step(samples=5, tokens=step, flops=1e9 if step else float("nan"))


def _rank(rank: int) -> None:
    os.environ["RANK"] = str(rank)
    plain()


def spawned() -> None:
    """Spawn two ranks; this process trains nothing itself."""
    os.environ["WORLD_SIZE"] = "2"
    from torch.multiprocessing.spawn import spawn

    spawn(_rank, nprocs=2)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()

"""One process, one training loop of the kind named in the arguments; knows nothing of rankscope."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS = 12


def plain() -> None:
    """One optimizer, a data loader with a worker, a checkpoint, and a validation pass."""
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
    """Ends with an exception."""
    plain()
    raise RuntimeError("the script's own error")


def accumulate() -> None:
    """Three backward passes a step."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        for _ in range(3):
            model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def gan() -> None:
    """Two optimizers that take turns, each after a backward pass of its own."""
    models = [nn.Linear(8, 1), nn.Linear(8, 1)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for _ in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).mean().backward()
            optimizer.step()


def scaler() -> None:
    """Mixed precision whose every third step is skipped for an infinite gradient."""
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
    """Every parameter has an optimizer that steps inside the backward pass."""
    model = nn.Linear(8, 1)
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())  # type: ignore[no-untyped-call]
    for _ in range(STEPS):
        model(torch.ones(4, 8)).mean().backward()
        model.zero_grad()


def compiled() -> None:
    """A model compiled as one graph."""
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
    """The script profiles steps itself, across the window of the recorder."""
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
    """The script's profiler warms up while the recorder's window is due, and records after it."""
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
    """Its step number ``STEPS // 2`` raises."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        """Step, or not."""
        self.taken += 1
        if self.taken == STEPS // 2:
            raise RuntimeError("out of memory")
        return super().step(closure)


def replaced() -> None:
    """An optimizer whose step raises is replaced by a new one, and kept."""
    model = nn.Linear(8, 1)
    optimizers: list[torch.optim.Optimizer] = [Failing(model.parameters(), lr=0.01)]
    for _ in range(STEPS):
        model(torch.ones(4, 8)).mean().backward()
        try:
            optimizers[-1].step()
        except RuntimeError:
            optimizers.append(torch.optim.SGD(model.parameters(), lr=0.01))


def replaced_with_data() -> None:
    """As ``replaced``, with a data loader."""
    model = nn.Linear(8, 1)
    optimizers: list[torch.optim.Optimizer] = [Failing(model.parameters(), lr=0.01)]
    for batch in DataLoader(torch.ones(STEPS * 4, 8), batch_size=4):  # type: ignore[arg-type]
        model(batch).mean().backward()
        try:
            optimizers[-1].step()
        except RuntimeError:
            optimizers.append(torch.optim.SGD(model.parameters(), lr=0.01))


def closures() -> None:
    """An optimizer that is made of another and runs forward and backward between two halves of its step."""

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


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()

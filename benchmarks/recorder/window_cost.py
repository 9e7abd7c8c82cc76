"""Cost of a profiler window to the training thread, against torch's own profilers on the same steps. Prints one JSON object.

Three ways to profile three steps take turns in one process, each several times, on models with about 2,000, 10,000 and 100,000
profiler events. The recorder's window consists of start, stop, and passing on the trace as a file in local memory. The bare
``torch.autograd.profiler`` consists of start, stop, and the release of its events, for which training pays too; nothing is kept.
``torch.profiler`` runs with its schedule and ``tensorboard_trace_handler``, and releases its events. The steps themselves are not
counted. Times are CPU time of the training thread: nothing in a window waits, and other processes on the machine do not count.

With ``--device cuda`` the models are on the GPU. The recorder's window then has a warm-up step, whose start is counted. All ways
wait for the device at their end.

    python -m benchmarks.recorder.window_cost [--repeats 9] [--device cuda]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
from benchmarks.common.result import budget, environment, finish
from torch import nn
from torch.autograd import profiler

from rankscope.profiler.plan import Schedule
from rankscope.profiler.rank.gpu.windows import WindowController
from rankscope.profiler.ring import RingWriter
from rankscope.profiler.scratch import LOCAL_MEMORY

RATIO_BUDGET = 1.1
STEPS = 3
LAYERS = {"2k": 13, "10k": 66, "100k": 664}
"""Number of layers by the approximate number of events in ``STEPS`` steps."""

Step = Callable[[], None]


def training(layers: int, device: str) -> Step:
    """Return a training step of a model with ``layers`` small layers."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8, device=device) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
    inputs = torch.ones(4, 8, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()

    return step


def timed(call: Callable[[], object]) -> float:
    """Return the CPU time of a call in milliseconds."""
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1e3


def window(step: Step, folder: Path, device: str) -> tuple[float, int]:
    """Measure the recorder's window. Returns its milliseconds, and the bytes of the trace."""
    folder.mkdir()
    ring = RingWriter()
    with (folder / "ring").open("xb+") as file:
        ring.share(file.fileno())
    windows = WindowController(Schedule(2, 0, STEPS), folder, ring)
    spent = timed(lambda: windows.boundary(1))  # warm-up: on the CPU once per process, on a device for each window
    spent *= device != "cpu"
    step()
    for number in range(2, 2 + STEPS):
        spent += timed(lambda number=number: windows.boundary(number))  # type: ignore[misc]
        step()
    spent += timed(lambda: windows.boundary(2 + STEPS))
    ring.close()
    (trace,) = folder.glob("*.json")  # or the window was missed
    return spent, trace.stat().st_size


def bare(step: Step, device: str) -> tuple[float, float]:
    """Measure ``torch.autograd.profiler``. Returns the milliseconds of start and stop, and of the release of its events."""
    profile = profiler.profile(use_kineto=True, use_device=None if device == "cpu" else device)
    spent = timed(profile.__enter__)
    for number in range(STEPS):
        with profiler.record_function(f"ProfilerStep#{number}"):
            step()
    spent += timed(lambda: profile.__exit__(None, None, None))  # type: ignore[no-untyped-call]

    def let_go() -> None:
        profile.kineto_results = None

    return spent, timed(let_go)


def scheduled(step: Step, folder: Path, device: str) -> float:
    """Measure ``torch.profiler`` with a schedule and the TensorBoard handler. Returns its milliseconds."""
    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, *([] if device == "cpu" else [torch.profiler.ProfilerActivity.CUDA])],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=torch.profiler.tensorboard_trace_handler(str(folder)),
    )
    spent = timed(profile.start)
    for _ in range(1 + STEPS):
        step()
        spent += timed(profile.step)
    spent += timed(profile.stop)

    def let_go() -> None:
        profile.profiler = None

    return spent + timed(let_go)


def events(step: Step, device: str) -> int:
    """Return the number of events that the bare profiler records in ``STEPS`` steps."""
    with profiler.profile(use_kineto=True, use_device=None if device == "cpu" else device) as profile:
        for _ in range(STEPS):
            step()
    results = profile.kineto_results
    assert results is not None
    return len(results.events())


def measure(layers: int, repeats: int, device: str) -> dict[str, float]:
    """Measure all ways in turn. Returns medians: times in milliseconds, sizes and ratios."""
    step = training(layers, device)
    step()
    ours, starts_stops, lets_go, theirs, size = [], [], [], [], 0
    for repeat in range(repeats + 1):
        with tempfile.TemporaryDirectory(dir=LOCAL_MEMORY if LOCAL_MEMORY.is_dir() else None) as scratch:
            spent, size = window(step, Path(scratch) / "window", device)
            start_stop, let_go = bare(step, device)
            handler = scheduled(step, Path(scratch) / "handler", device)
        if repeat:  # the first repeat also pays for one-time loading
            ours.append(spent)
            starts_stops.append(start_stop)
            lets_go.append(let_go)
            theirs.append(handler)
    wholes = [start_stop + let_go for start_stop, let_go in zip(starts_stops, lets_go, strict=True)]
    return {
        "events": events(step, device),
        "trace_bytes": size,
        "window_ms": statistics.median(ours),
        "bare_ms": statistics.median(wholes),
        "bare_start_stop_ms": statistics.median(starts_stops),
        "tensorboard_ms": statistics.median(theirs),
        "window_to_bare": statistics.median(own / bare_ms for own, bare_ms in zip(ours, wholes, strict=True)),
        "window_to_bare_start_stop": statistics.median(own / short for own, short in zip(ours, starts_stops, strict=True)),
        "window_to_tensorboard": statistics.median(own / handler for own, handler in zip(ours, theirs, strict=True)),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    figures = {name: measure(layers, args.repeats, args.device) for name, layers in LAYERS.items()}
    budgets = [
        budget(f"{name} events: a window / {against}", figure[key], limit)
        for name, figure in figures.items()
        for against, key, limit in (
            ("the bare profiler's start, stop and release", "window_to_bare", RATIO_BUDGET),
            ("the bare profiler's start and stop alone", "window_to_bare_start_stop", RATIO_BUDGET),
            ("torch.profiler with tensorboard_trace_handler", "window_to_tensorboard", 1.0),
        )
    ]
    finish(figures, budgets, environment("rankscope", "torch", device=args.device))


if __name__ == "__main__":
    main()

"""Batches that a background thread or a worker process loads: a wait for them is input, one for something else is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.analysis.conftest import plan_for
from tests.step_files import append

from rankscope.analysis.engine import analyze
from rankscope.analysis.inference.reasons.loading import loading_line
from rankscope.analysis.result.analysis import Verdict
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import BatchSource, LoaderSamples, StackLine, StackSamples

Synthetic = Callable[..., Any]


def line(number: int, samples: int, source: BatchSource | None = None, file: str = "/job/train.py") -> StackLine:
    """Return a line."""
    return StackLine(file=file, line=number, function="f", samples=samples, batches_from=source)


def loader(*, kind: Literal["thread", "process"] = "thread", at: int = 30, busy: int = 100, **counts: int) -> LoaderSamples:
    """Return 100 samples of a loader, ``busy`` of them at line ``at`` of the dataset."""
    lines = [line(at, busy, file="/job/data.py")] if busy else []
    return LoaderSamples(kind=kind, target="train.py:fill", samples=100, lines=lines, **counts)


def row(*loaders: LoaderSamples, waits: int = 90, source: BatchSource | None = "queue") -> StackSamples:
    """Return a series in which the training thread waits at line 77."""
    lines = [line(77, waits, source), line(9, 100 - waits)] if waits else [line(9, 100)]
    return StackSamples(
        start_unix_ns=1, end_unix_ns=2, first_step=10, last_step=20, samples=100, lines=lines, loaders=list(loaders)
    )


AHEAD = loader(busy=40, puts=60)
"""A loader of a healthy rank, which waits for room."""


@pytest.mark.parametrize(
    ("source", "samples", "healthy", "number"),
    [
        ("queue", [loader(loads=90)], [], 30),  # a library that loads data
        ("queue", [loader()], [AHEAD], 30),  # a function that loads ahead elsewhere
        ("queue", [loader()], [loader()], None),  # another thread that is busy
        ("queue", [loader(busy=20, puts=80, loads=20)], [AHEAD], None),  # it loads ahead here, too
        ("queue", [loader(busy=20, gets=80)], [AHEAD], None),
        ("queue", [], [], None),
        ("workers", [loader(kind="process", loads=95)], [], 30),
        (None, [loader(loads=90)], [], None),  # the training thread waits for something else
        ("loader", [loader(loads=90)], [], None),
        # The thread waits for its workers: their line counts
        ("queue", [loader(at=63, busy=1, gets=99, loads=99), loader(kind="process", loads=95)], [], 30),
    ],
)
def test_loading_line_is_found_among_the_stack_samples(
    source: BatchSource | None, samples: list[LoaderSamples], healthy: list[LoaderSamples], number: int | None
) -> None:
    loading = loading_line(source, [row(*samples)], [[row(*healthy, waits=0)]])
    assert (None if loading is None or loading.line is None else loading.line.line) == number


def test_unsampled_workers_have_no_loading_line() -> None:
    loading = loading_line("workers", [row(source="workers")], [])
    assert loading is not None
    assert loading.line is None


def verdict_of(synthetic: Synthetic, phase: str, samples: StackSamples, healthy: StackSamples, **options: Any) -> Verdict:
    """Return the verdict on a run whose rank 2 is slow in a phase."""
    run = synthetic(noise=0.005, plan=plan_for(2, phase=phase, us=60_000), **options).write()
    for rank in range(4):
        append(rank_dir(Path(run), 0, rank), "stacks", samples if rank == 2 else healthy)
    return analyze([run]).verdict


@pytest.mark.parametrize("phase", ["forward", "between_steps"])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_wait_for_a_background_loader_is_input_in_any_phase(synthetic: Synthetic, phase: str, kind: str) -> None:
    verdict = verdict_of(synthetic, phase, row(loader()), row(AHEAD, waits=0), device_kind=kind)
    assert (verdict.kind, verdict.rank, verdict.cause) == ("straggler", 2, "input")
    assert verdict.stalls_at is not None
    assert (verdict.stalls_at.file, verdict.stalls_at.line, verdict.stalls_at.runs_in) == (
        "/job/data.py",
        30,
        "background_thread",
    )
    assert (verdict.stalls_at.share, verdict.stalls_at.healthy_share) == (0.9, 0.0)
    assert "data.py:30" in verdict.next[0]


def test_wait_for_another_thread_is_a_host_stall(synthetic: Synthetic) -> None:
    verdict = verdict_of(synthetic, "between_steps", row(loader()), row(loader(busy=0, gets=100), waits=0))
    assert (verdict.cause, verdict.stalls_at and verdict.stalls_at.line) == ("host", 77)

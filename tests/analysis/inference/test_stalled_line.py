"""The line at which a rank stalls: named only where it stands out from the healthy ranks, and why not otherwise."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.conftest import plan_for
from tests.step_files import append

from rankscope.analysis.engine import analyze
from rankscope.analysis.inference.reasons.stalled_line import find_stalled_line, samples_in
from rankscope.analysis.result.analysis import Analysis
from rankscope.runs.paths import rank_dir
from rankscope.runs.records import Phase, StackLine, StackSamples

Synthetic = Callable[..., Any]
Lines = dict[int, int]
"""Samples per line of ``/job/train.py``."""


def row(lines: Lines, *, first: int = 10, last: int = 20, phase: Phase | None = "forward", total: int = 0) -> StackSamples:
    """Return one series of samples."""
    return StackSamples(
        start_unix_ns=1,
        end_unix_ns=2,
        first_step=first,
        last_step=last,
        samples=total or sum(lines.values()),
        lines=[
            StackLine(file="/job/train.py", line=line, function="f", samples=count, call="time.sleep", phase=phase)
            for line, count in lines.items()
        ],
    )


def test_line_with_the_largest_excess_is_named_with_its_shares() -> None:
    slow = [row({88: 42, 5: 8}), row({88: 42, 5: 8}, phase=None)]
    stalled_line = find_stalled_line(slow, [[row({5: 10, 9: 40})], [row({5: 8, 9: 42})]], cost_share=0.8)
    assert stalled_line is not None
    assert (stalled_line.line, stalled_line.call, stalled_line.phase) == (88, "time.sleep", "forward")
    assert (stalled_line.share, stalled_line.samples, stalled_line.healthy_share, stalled_line.healthy_samples) == (
        0.84,
        100,
        0.0,
        100,
    )


@pytest.mark.parametrize(
    ("slow", "others"),
    [
        ({88: 15, 5: 4}, [{5: 50}]),  # too few samples
        ({88: 50}, []),  # no rank to compare with
        ({88: 50}, [{5: 10}]),  # or too few samples of it
        ({5: 50, 9: 50}, [{5: 40, 9: 60}]),  # within chance
        ({88: 40, 5: 60}, [{5: 100}] * 3 + [{88: 45, 5: 55}]),  # a healthy rank is there as often
        ({88: 100, 5: 900}, [{5: 1000}]),  # a tenth, where the rank costs three quarters
    ],
)
def test_no_line_is_named_without_enough_evidence(slow: Lines, others: Sequence[Lines]) -> None:
    assert find_stalled_line([row(slow)], [[row(lines)] for lines in others], cost_share=0.75) is None


def test_waiting_for_other_ranks_is_no_stall() -> None:
    # The slow rank computes as long as the others, waits less, and sleeps
    slow, other = row({5: 30, 88: 60, 7: 10}), row({5: 30, 7: 70})
    stalled_line = find_stalled_line([slow], [[other]], cost_share=0.6)
    assert stalled_line is not None
    assert stalled_line.line == 88


@pytest.mark.parametrize("phases", [("forward", "backward"), (None, None)])
def test_ambiguous_phase_is_left_out(phases: tuple[Phase | None, Phase | None]) -> None:
    slow = [row({88: 50}, phase=phase) for phase in phases]
    stalled_line = find_stalled_line(slow, [[row({5: 100})]], cost_share=0.5)
    assert stalled_line is not None
    assert stalled_line.phase is None


def test_samples_outside_the_steps_of_the_verdict_are_ignored() -> None:
    rows = [row({1: 9}, first=1, last=9), row({2: 9}, first=8, last=12), row({3: 9}, first=20, last=30)]
    assert [item.lines[0].line for item in samples_in(rows, (10, 20))] == [2]
    assert len(samples_in(rows, None)) == 3
    # Damaged records, which another user may have written, and rows without samples
    assert samples_in([row({1: 9}, total=2), row({1: -9}, total=5), StackSamples(start_unix_ns=1, end_unix_ns=1)], None) == []


def test_equal_ranks_rarely_have_a_stalled_line() -> None:
    chance = random.Random(7)
    named = 0
    for _ in range(400):
        weights = [chance.random() ** 3 for _ in range(8)]
        ranks = [
            [row(dict(Counter(chance.choices(range(1, 9), weights, k=100)))) for _ in range(3)]
            for _ in range(chance.choice((2, 8)))
        ]
        named += find_stalled_line(ranks[0], ranks[1:], cost_share=0.05) is not None
    assert named <= 4


def analysis_of(synthetic: Synthetic, stacks: dict[int, list[StackSamples]], kind: str = "cpu", **extra: object) -> Analysis:
    """Return the analysis of a run whose rank 2 is slow in forward, with these stacks."""
    run = synthetic(device_kind=kind, noise=0.005, plan=plan_for(2, phase="forward", us=60_000, **extra)).write()
    for rank, rows in stacks.items():
        append(rank_dir(Path(run), 0, rank), "stacks", *rows)
    return analyze([run])


STALLS = {2: [row({88: 84, 5: 16})], **{rank: [row({5: 16, 9: 84})] for rank in (0, 1, 3)}}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_verdict_with_a_stalled_line_does_not_advise_py_spy(synthetic: Synthetic, kind: str) -> None:
    analysis = analysis_of(synthetic, STALLS, kind)
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.cause) == ("straggler", 2, "host")
    assert verdict.stalls_at is not None
    assert (verdict.stalls_at.file, verdict.stalls_at.line) == ("/job/train.py", 88)
    for fact in ("in forward, at train.py:88", "time.sleep", "84% of 100 samples", "healthy ranks 0%"):
        assert fact in verdict.summary
        assert fact in analysis.findings[0].summary
    collected = [*verdict.next, *(advice_item.action for advice_item in analysis.advice)]
    assert not any("py-spy" in action for action in collected)
    assert "train.py:88" in verdict.next[0]


def test_verdict_without_samples_gives_the_reason_and_advises_py_spy(synthetic: Synthetic) -> None:
    missing = StackSamples(start_unix_ns=1, end_unix_ns=1, missing="ptrace is denied")
    verdict = analysis_of(synthetic, {2: [missing]}).verdict
    assert verdict.stalls_at is None
    assert "ptrace is denied" in verdict.summary
    assert "py-spy" in verdict.next[0]


def test_verdict_without_stack_records_mentions_no_stack(synthetic: Synthetic) -> None:
    verdict = analysis_of(synthetic, {}).verdict
    assert verdict.stalls_at is None
    assert "stack" not in verdict.summary
    assert "py-spy" in verdict.next[0]


def test_excess_by_more_work_is_attributed_to_no_line(synthetic: Synthetic) -> None:
    verdict = analysis_of(synthetic, STALLS, cpu=True, elements=2.0).verdict
    assert (verdict.cause, verdict.stalls_at) == ("imbalance", None)


def test_verdict_without_a_named_rank_names_no_line(synthetic: Synthetic) -> None:
    run = synthetic(noise=0.005).write()
    for rank, rows in STALLS.items():
        append(rank_dir(Path(run), 0, rank), "stacks", *rows)
    assert analyze([run]).verdict.stalls_at is None

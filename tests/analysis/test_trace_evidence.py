"""Confidence in raw traces: few steps, one step shared by all results, torn traces, unmatched collectives."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.breakdowns import breakdown
from tests.analysis.collectives_by_hand import matched, record
from tests.analysis.trace_events import Event, annotation, operator, written

from rankscope.analysis.collectives.clock import Clocks
from rankscope.analysis.collectives.communication import explained_share, longest_extent_us
from rankscope.analysis.collectives.waits.blame import assign_blame
from rankscope.analysis.engine import analyze
from rankscope.analysis.inference.judging.slow_ranks import SlowRanks
from rankscope.analysis.inference.profiled_steps import diagnosis_of_late
from rankscope.analysis.inference.reasons.signals import Signals
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.verdict.builders import Setting, straggler_verdict
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.runs.records import StepBreakdown


def write(folder: Path, ranks: Sequence[Sequence[Event]]) -> Path:
    """Write the traces of all ranks of one host."""
    for rank, events in enumerate(ranks):
        by_key = {"rank": rank, "world_size": len(ranks), "backend": "gloo"}
        written(folder / f"rank-{rank}.json", events, distributedInfo=by_key)
    return folder


@pytest.fixture(scope="module")
def dlrm(shared_data: Path) -> Path:
    """Path of a trace of one step of eight ranks, of which the last is late."""
    return shared_data / "traces" / "dlrm_8ranks_v100"


def cpu_rank(steps: int, *, late: bool, uncalled: int = 0) -> list[Event]:
    """Return steps of 1,000 µs: the late rank computes 600 µs, another one 100 µs, then both reduce until 700.

    ``uncalled``: number of steps that also reduce for 200 µs without a call.
    """
    events: list[Event] = []
    for step in range(steps):
        at = 1000 * step
        busy = 600 + step % 3 if late else 100 + step % 2
        events += [
            annotation(f"ProfilerStep#{step}", at, 1000),
            operator("aten::mm", at, busy),
            operator("c10d::allreduce_", at + busy, 1),
            annotation("gloo:all_reduce", at + busy + 1, 700 - busy - 1, tid=2),
        ]
        if step < uncalled:
            events.append(annotation("gloo:barrier", at + 750, 200, tid=2))
    return events


def two_ranks(folder: Path, steps: int, *, uncalled: int = 0) -> Analysis:
    return analyze([write(folder, [cpu_rank(steps, late=late, uncalled=uncalled) for late in (False, True)])])


@pytest.mark.parametrize(("steps", "most"), [(5, 6 / 7), (7, 8 / 9), (16, 0.99)])
def test_confidence_of_few_steps_is_bounded_by_their_number(tmp_path: Path, steps: int, most: float) -> None:
    # given four ranks, one of which is late in every step
    verdict = analyze([write(tmp_path, [cpu_rank(steps, late=rank == 1) for rank in range(4)])]).verdict
    # then it is named, with a confidence that depends on the number of steps
    assert (verdict.kind, verdict.rank) == ("straggler", 1)
    assert verdict.confidence == pytest.approx(most, abs=0.001)
    assert (f"in the {steps} steps at hand" in verdict.summary) == (steps < 8)
    assert ("At least 8 steps are needed" in verdict.summary) == (steps < 8)


def test_single_step_is_worded_and_host_annotations_show_the_phase(dlrm: Path) -> None:
    verdict = analyze([dlrm]).verdict
    assert (verdict.rank, verdict.cause, verdict.phase) == (7, "host", "forward")
    assert verdict.confidence == pytest.approx(2 / 3, abs=0.001)
    assert "in the one step at hand" in verdict.summary


def test_missing_host_annotations_leave_host_or_input_open(dlrm: Path, tmp_path: Path) -> None:
    for file in dlrm.glob("rank-*.json.gz"):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        kept = [event for event in trace["traceEvents"] if event.get("cat") != "user_annotation" or "nccl:" in event["name"]]
        (tmp_path / file.stem).write_text(json.dumps(trace | {"traceEvents": kept}))
    analysis = analyze([tmp_path])
    assert (analysis.verdict.rank, analysis.verdict.cause, analysis.verdict.phase) == (7, "host", None)
    assert "its host or its data loader is late (cause host or data loader," in analysis.verdict.summary
    (stalls,) = [advice for advice in analysis.advice if advice.name == "stalls"]
    assert "data loader" in stalls.action


@pytest.mark.parametrize(
    ("count", "steps_text", "most"),
    [(1, "in the one step at hand", 2 / 3), (3, "per step in the 3 at hand", 4 / 5), (8, "per step", 0.99)],
)
def test_confidence_of_profiled_steps_is_bounded_by_their_number(count: int, steps_text: str, most: float) -> None:
    # given collectives of ``count`` profiled steps, in all of which rank 1 was 400 µs late
    matches = matched(
        *(
            {rank: record(1000 * step + late, 1000 * step + 500, step=step) for rank, late in enumerate((0, 400))}
            for step in range(count)
        )
    )
    blame = assign_blame(matches, Clocks(), [0, 1])
    slow = SlowRanks([1], "fixed", gain_us=400.0 * count, excess_us=400.0, p_value=0.0, certainty=1.0, last_share=1.0)
    # when it is reported
    named = diagnosis_of_late(slow, blame, 1000.0 * count, Signals(own_us=400.0), steps=count)
    verdict, _ = straggler_verdict(
        named, Setting(source="windows", world_size=2, steps=(0, count), step_count=count, unit="step", accelerated=True)
    )
    # then the wait is per step, and a small number of steps is reported
    assert f"wait 400 µs {steps_text} (40% of the step)" in verdict.summary
    assert verdict.confidence == pytest.approx(most, abs=0.001)


def test_trace_without_annotated_steps_is_judged_as_one_window(tmp_path: Path) -> None:
    ranks = [[event for event in cpu_rank(16, late=late) if "Step" not in event["name"]] for late in (False, True)]
    verdict = analyze([write(tmp_path, ranks)]).verdict
    assert verdict.kind == "straggler"
    assert "in the one window at hand" in verdict.summary


def test_verdict_and_whatif_use_the_same_step_without_contradiction(dlrm: Path) -> None:
    # given one set of traces
    analysis, played = analyze([dlrm]), whatif([dlrm])
    # then both use the time from the first start on any rank to the last end on any
    assert analysis.waterfall is not None
    assert analysis.waterfall.extent_us is not None
    assert played.measured_step_seconds is not None
    assert analysis.waterfall.extent_us == pytest.approx(played.measured_step_seconds * 1e6, rel=1e-3)
    (saved,) = [row.value for row in analysis.findings[0].evidence if row.name == "saved"]
    assert analysis.verdict.slowdown == pytest.approx(analysis.waterfall.extent_us / (analysis.waterfall.extent_us - saved))
    # and the mean window of the ranks, which is shorter, is reported separately
    assert analysis.waterfall.step_us < 0.8 * analysis.waterfall.extent_us
    assert "15 ms (mean over the ranks; 20 ms from the first start" in render_text(analysis, width=200, detail=True)
    # and both name the same slowest rank, which alone gains little when healed
    assert played.slowest_ranks == analysis.verdict.ranks == [7]
    assert "No rank explains that alone: fixing rank 7, the slowest, would recover 11% of it." in played.summary
    assert "stands out" not in played.summary


def window(start: float, length: float) -> StepBreakdown:
    return breakdown(0, compute=length, start_unix_ns=round(start * 1000))


@given(
    spans=st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), min_size=2, max_size=6),
    offset=st.integers(-(10**12), 10**12),
)
def test_extent_covers_the_ranks_with_a_common_clock(spans: list[tuple[int, int]], offset: int) -> None:
    # given ranks that share a clock, one of which is off by any amount, and one without any link to them
    windows = {rank: window(start, length) for rank, (start, length) in enumerate(spans)}
    windows[0] = window(spans[0][0] + offset, spans[0][1])
    windows[99] = window(10**15, 1)
    clocks = Clocks(offset_ns={0: offset * 1000})
    chain = matched(*({rank: record(0, 1), rank + 1: record(0, 1)} for rank in range(len(spans) - 1)))
    # then the extent is that of the ranks on the common clock
    whole = max(start + length for start, length in spans) - min(start for start, _ in spans)
    assert longest_extent_us(windows, chain, clocks) == pytest.approx(whole)
    # and without any link that of the longest window
    assert longest_extent_us(windows, matched(), clocks) == pytest.approx(max(length for _, length in spans))


def test_missing_values_of_a_torn_trace_are_in_no_mean(tmp_path: Path) -> None:
    # given three ranks, and a trace of the last one that stops before its collectives
    ranks = [cpu_rank(8, late=False), cpu_rank(8, late=True), cpu_rank(8, late=False)]
    write(tmp_path, ranks)
    events = [event for event in ranks[2] if not event["name"].startswith(("gloo", "c10d"))]
    torn = json.dumps({"distributedInfo": {"rank": 2, "world_size": 3}, "traceEvents": events})
    (tmp_path / "rank-2.json").write_text(torn[:-40])
    analysis = analyze([tmp_path])
    # then its row reports it, and has no value where the trace has none
    row = analysis.ranks[2]
    assert [rank.truncated for rank in analysis.ranks] == [False, False, True]
    assert (row.communication_us, row.overlap_us, row.exposed_communication_us, row.idle_us) == (None,) * 4
    assert row.compute_us
    text = render_text(analysis, width=100)
    (line,) = [line.split() for line in text.splitlines() if line.strip().startswith("2*")]
    assert line[3:5] == ["-", "-"]
    assert "* incomplete:" in text
    # and the means are those of the others
    others = analysis.ranks[:2]
    assert analysis.waterfall is not None
    assert analysis.waterfall.step_us == pytest.approx(sum(rank.window_us or 0.0 for rank in others) / 2, abs=0.01)
    communication = analysis.waterfall.share("exposed_communication")
    expected = sum(rank.exposed_communication_us or 0.0 for rank in others) / sum(rank.window_us or 0.0 for rank in others)
    assert communication == pytest.approx(expected, abs=1e-3)


def test_single_torn_trace_gives_no_verdict(tmp_path: Path) -> None:
    whole = json.dumps({"traceEvents": cpu_rank(8, late=True)})
    (tmp_path / "rank-0.json").write_text(whole[:-40])
    analysis = analyze([tmp_path])
    assert analysis.ranks[0].truncated
    assert (analysis.verdict.kind, analysis.findings, analysis.waterfall) == ("insufficient_data", [], None)
    assert "cut off" in analysis.verdict.summary
    assert analysis.verdict.next[0].startswith("Trace again")


def test_advice_leaves_open_the_same_causes_as_the_summary(shared_data: Path) -> None:
    # given a trace that does not show whether its device waits for input
    verdict = analyze([shared_data / "traces" / "kineto_2021_schema"]).verdict
    assert verdict.kind == "host_bound"
    assert "the host, or the input it waits for" in verdict.summary
    # then the first advice is to find that out, and the others apply to either case
    assert verdict.next[0].startswith("Find out whether the device waits for input or for its host")
    assert "For input" in verdict.next[-2]
    assert "For the host" in verdict.next[-1]


def test_annotated_loader_makes_the_host_verdict_definite(dlrm: Path) -> None:
    beside = analyze([dlrm]).findings[-1]
    assert (beside.kind, beside.summary.endswith("the host does not keep it busy.")) == ("host_bound", True)
    assert {row.name for row in beside.evidence} >= {"share.input", "share.idle"}


def test_collectives_without_a_call_are_unmatched_and_lower_confidence(tmp_path: Path) -> None:
    # given ranks that reduce in calls of the trace, and for 200 µs in each step without a call
    analysis = two_ranks(tmp_path, 16, uncalled=16)
    collectives = analysis.collectives
    # then these are counted, and the share of the others is known
    assert (collectives.matched, collectives.unmatched, collectives.unmatched_by) == (16, 16, {"call_missing": 16})
    assert collectives.explained_share is not None
    # (of 1,000 µs one rank reduces for 600, the other for 100)
    assert collectives.explained_share == pytest.approx(700 / (700 + 2 * 200), abs=0.01)
    (warning,) = analysis.source.warnings
    assert warning.startswith(f"matched collectives explain {collectives.explained_share:.0%} of the communication time")
    # and no rank is named with more confidence than that
    assert (analysis.verdict.kind, analysis.verdict.rank) == ("straggler", 1)
    assert analysis.verdict.confidence == pytest.approx(collectives.explained_share, abs=0.001)


def test_fully_matched_collectives_cause_no_warning(tmp_path: Path) -> None:
    analysis = two_ranks(tmp_path, 16)
    assert analysis.source.warnings == []
    assert analysis.collectives.unmatched == 0
    assert analysis.collectives.explained_share == pytest.approx(1.0)


def test_share_of_matched_communication_equals_the_calculated_one() -> None:
    matches = matched({0: record(0, 30), 1: record(20, 30)})
    assert explained_share([matches], {0: 40.0, 1: 20.0}) == pytest.approx(40 / 60)


@given(
    spans=st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), max_size=8),
    communication=st.floats(1, 1e4),
    more=st.integers(0, 8),
)
def test_matched_share_grows_with_matches_and_is_at_most_one(
    spans: list[tuple[int, int]], communication: float, more: int
) -> None:
    matches = [{rank: record(start, start + length) for rank in range(2)} for start, length in spans]
    whole = {0: communication, 1: communication}
    some, every = (explained_share([matched(*rows)], whole) for rows in (matches[:more], matches))
    assert some is not None
    assert every is not None
    assert 0 <= some <= every <= 1


def test_jobs_without_communication_have_no_matched_share() -> None:
    assert explained_share([], {0: 0.0}) is None

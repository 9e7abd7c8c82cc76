"""Counterfactual steps (what-if) from a run: from step records, or from windows where the records do not suffice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.step_files import add_damaged, steps_file

from rankscope.analysis.engine import analyze
from rankscope.analysis.whatif.outcome import CostTerms, slowest_count
from rankscope.analysis.whatif.run_answer import whatif_with_graph
from rankscope.analysis.whatif.whatif_of_paths import whatif
from rankscope.analysis.whatif.whatif_result import WhatIf
from rankscope.analysis.whatif.whatif_terminal import render_text
from rankscope.base.errors import InputError
from rankscope.runs.named import NamedRun
from rankscope.runs.records import CollectiveRecord, PhaseTimes, StepBreakdown

near: Any = pytest.approx  # compared inside tuples and dictionaries, whose types mypy would reject

Synthetic = Callable[..., Any]
Plan = Callable[[int, int], dict[str, Any] | None]
AddWindows = Callable[[Path, int, list[StepBreakdown], list[CollectiveRecord]], None]


def always(rank: int, **extra: Any) -> Plan:
    return lambda item, _step: extra if item == rank else None


def answer_of(run: Any, **options: Any) -> WhatIf:
    return whatif([run.write()], **options)


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer", "between_steps"])
def test_planted_straggler_costs_its_delay(synthetic: Synthetic, phase: str) -> None:
    answer = answer_of(synthetic(plan=always(2, phase=phase, us=60_000), noise=0.0), price_per_gpu_hour=3.0)
    # then a step of 104 ms (4 of them transfer) takes 164
    assert (answer.status, answer.source.kind, answer.source.evidence) == ("ok", "run", "steps")
    assert (answer.step_seconds, answer.ideal_step_seconds) == (near(0.164), near(0.104))
    assert (answer.measured_step_seconds, answer.discrepancy) == (near(0.164), near(1.0))
    assert (answer.slowdown, answer.m_worker, answer.m_stage) == (near(164 / 104), near(1.0), None)
    assert answer.slowest_ranks == [2]
    first, *others = answer.by_rank
    assert (first.rank, first.host, first.saved_seconds, first.share) == (2, "n1", near(0.06), near(1.0))
    assert [row.saved_seconds for row in others] == near([0.0] * 3)
    assert (answer.by_op[0].op, answer.by_op[0].share) == (phase, near(1.0))
    hours = 0.06 * 40 * 4 / 3600  # of all steps that were trained, as in the verdict
    assert answer.gpu_hours_lost == near(hours)
    assert answer.cost is not None
    assert (answer.cost.amount, answer.cost.currency) == (near(3 * hours), "USD")
    assert "Fixing rank 2 alone would recover 100%" in answer.summary


@pytest.mark.parametrize(
    ("extra", "cause"),
    [
        ({"phase": "data"}, "input"),
        ({"phase": "forward", "gc": True, "cpu": True}, "gc"),
        ({"phase": "backward", "run_queue": True, "cpu": True}, "cpu_contention"),
        ({"phase": "between_steps", "tags": ["checkpoint"]}, "checkpoint"),
        ({"phase": "between_steps", "tags": ["eval"]}, "evaluation"),
        ({"phase": "forward"}, "host"),
    ],
)
def test_cause_equals_that_of_the_verdict_and_has_the_whole_loss(synthetic: Synthetic, extra: dict[str, Any], cause: str) -> None:
    path = synthetic(plan=always(1, us=60_000, **extra), noise=0.0).write()
    answer = whatif([path])
    assert (answer.by_cause[0].cause, answer.by_cause[0].lost_share) == (cause, near(1.0))
    shares = {row.cause: row.share for row in answer.by_cause}
    assert shares.pop(cause) == near(1.0)
    assert list(shares.values()) == near([0.0] * len(shares))
    verdict = analyze([path]).verdict
    assert cause in (verdict.cause, verdict.explained_by)


@pytest.mark.parametrize("at_model", [False, True])
@pytest.mark.parametrize(("elements", "cause"), [(1.0, "compute"), (1.5, "imbalance")])
def test_busy_processor_is_compute_or_imbalance_by_its_work(
    synthetic: Synthetic, elements: float, cause: str, *, at_model: bool
) -> None:
    def fields_of(rank: int, _: int) -> dict[str, Any]:
        return {"model_elements": round(1000 * elements) if rank == 1 else 1000}

    plan = always(1, us=60_000, cpu=True, elements=2.5 - elements if at_model else elements)
    path = synthetic(plan=plan, noise=0.0, **({"fields": fields_of} if at_model else {})).write()
    shares = {row.cause: row.lost_share for row in whatif([path]).by_cause if row.lost_share}
    # then nine tenths of its time on the CPU explain as much of the loss
    assert shares == {cause: near(0.9), "host": near(0.1)}
    assert analyze([path]).verdict.cause == cause


def test_parts_of_several_causes_add_up_to_the_loss(synthetic: Synthetic) -> None:
    # given a rank whose thread sleeps in forward in all steps, and which alone evaluates at every tenth step
    def plan(rank: int, step: int) -> dict[str, Any] | None:
        if rank != 1:
            return None
        return {"us": 90_000, "tags": ["eval"]} if step % 10 == 9 else {"us": 30_000}

    answer = answer_of(synthetic(plan=plan, noise=0.0, steps=65))
    lost = {row.cause: row.lost_seconds for row in answer.by_cause}
    # then in the 60 steps in which nothing warms up, 6 evaluations take 60 ms each beside the 30 ms of every step
    assert (lost["host"], lost["evaluation"]) == (near(0.03), near(0.006))
    assert sum(lost.values()) == near(answer.saved_seconds)
    assert [row.cause for row in answer.by_cause[:2]] == ["host", "evaluation"]


def test_loss_without_a_signal_has_an_unknown_cause(synthetic: Synthetic) -> None:
    # given no CPU time, run-queue delay or profiled step, as on a system without them
    unknown = {"cpu_us": None, "run_queue_us": None, "gc_us": None, "input_elements": None, "samples": None}
    answer = answer_of(synthetic(plan=always(1, us=60_000), noise=0.0, fields=lambda _rank, _step: unknown))
    assert {row.cause: row.lost_share for row in answer.by_cause} == {"unknown": near(1.0), "input": near(0.0)}


def test_device_busier_in_profiled_steps_is_compute(synthetic: Synthetic, add_windows: AddWindows) -> None:
    # given a rank that loses 60 ms while its thread sleeps, of which its device computes 40 ms
    path = synthetic(plan=always(2, us=60_000), noise=0.0).write()
    for rank in range(4):
        breakdowns, _ = profiled(range(20, 24), 0)
        busy = [msgspec.structs.replace(row, compute_us=90_000 + (40_000 if rank == 2 else 0)) for row in breakdowns]
        add_windows(path, rank, busy, [])
    lost = {row.cause: row.lost_seconds for row in whatif([path]).by_cause}
    assert (lost["compute"], lost["host"]) == (near(0.04), near(0.02))


def test_one_of_two_equal_stragglers_saves_nothing_alone(synthetic: Synthetic) -> None:
    plan: Plan = lambda rank, _step: {"us": 60_000} if rank in (1, 3) else None  # noqa: E731  # named for what it is
    answer = answer_of(synthetic(ranks=6, plan=plan, noise=0.0))
    assert answer.slowdown == near(164 / 104)
    assert {row.rank: row.saved_seconds for row in answer.by_rank} == near(dict.fromkeys(range(6), 0.0), abs=1e-9)
    assert [row.rank for row in answer.by_rank[:2]] == [1, 3]
    assert "No rank explains that alone" in answer.summary


@pytest.mark.parametrize("seed", range(3))
def test_jitter_is_explained_by_no_rank(synthetic: Synthetic, seed: int) -> None:
    answer = answer_of(synthetic(noise=0.1, seed=seed))
    assert answer.slowdown is not None
    assert 1.0 < answer.slowdown < 1.15
    assert "No rank explains that alone" in answer.summary


def test_equal_ranks_lose_exactly_nothing(synthetic: Synthetic) -> None:
    answer = answer_of(synthetic(noise=0.0), price_per_gpu_hour=1.0)
    assert (answer.slowdown, answer.saved_seconds, answer.m_worker) == (1.0, 0.0, None)
    assert {row.slowdown for row in (*answer.by_rank, *answer.by_op, *answer.by_cause)} == {1.0}
    assert "would hardly be shorter" in answer.summary


def test_ranks_on_cpus_lose_no_gpu_hours_unless_priced(synthetic: Synthetic) -> None:
    run = synthetic(plan=always(2, us=60_000), device_kind="cpu")
    answer = answer_of(run)
    assert (answer.gpu_hours_lost, answer.cost, answer.by_rank[0].gpu_hours_lost) == (None, None, None)
    assert whatif([run.path], price_per_gpu_hour=1.0).gpu_hours_lost is not None


def test_the_recorded_price_is_used_unless_another_is_given(synthetic: Synthetic) -> None:
    run = synthetic(plan=always(2, us=60_000), price=5.0)
    answer = answer_of(run)
    assert answer.cost is not None
    assert answer.gpu_hours_lost is not None
    assert (answer.cost.amount, answer.cost.currency) == (near(5 * answer.gpu_hours_lost), "EUR")
    other = whatif([run.path], price_per_gpu_hour=1.0, currency="CHF")
    assert other.cost is not None
    assert (other.cost.amount, other.cost.currency) == (near(answer.gpu_hours_lost), "CHF")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 1}, "there is one rank"),
        ({"steps": 4}, "4 steps recorded, 5 steps after warm-up"),
        ({"steps": 0}, "no rank has left step records"),
        ({"signals": False}, "do not separate own time from waiting"),
        ({"lost_after": {1: 0, 2: 0, 3: 0}}, "step records of 1 rank only, of a world of 4"),
        ({"coordinates": {rank: {"pp": rank // 2} for rank in range(4)}}, "stages of a pipeline wait for each other"),
    ],
)
def test_too_little_data_is_an_answer(synthetic: Synthetic, options: dict[str, Any], message: str) -> None:
    answer = answer_of(synthetic(plan=always(0, us=60_000), **options), price_per_gpu_hour=1.0)
    assert (answer.status, answer.source.evidence) == ("insufficient_data", None)
    assert message in answer.summary
    assert (answer.slowdown, answer.m_worker, answer.gpu_hours_lost, answer.cost, answer.by_rank) == (None, None, None, None, [])


def test_ranks_that_never_wait_are_insufficient_data(synthetic: Synthetic) -> None:
    # given ranks that are alike, and a communication that takes no time
    answer = answer_of(synthetic(noise=0.0, transfer_us=0))
    assert answer.status == "insufficient_data"
    assert "it is not known where they meet" in answer.summary


def test_rank_without_records_is_reported_as_missing(synthetic: Synthetic) -> None:
    answer = answer_of(synthetic(plan=always(2, us=60_000), lost_after={1: 0}))
    assert (answer.source.ranks, answer.slowest_ranks) == (3, [2])
    assert any("1 of 4 ranks are not in it" in warning for warning in answer.source.warnings)


def test_times_of_missing_steps_are_estimated(synthetic: Synthetic) -> None:
    answer = answer_of(synthetic(plan=always(2, us=60_000), lost_after={2: 30}, noise=0.0))
    # then of 40 steps 5 are warm-up, and rank 2 is as slow in the last 10 as in those that it recorded
    assert (answer.source.steps, answer.source.steps_left_out) == (35, 5)
    assert (answer.slowdown, answer.m_worker) == (near(164 / 104), near(1.0))
    assert answer.source.estimated_share == near(10 / (4 * 35))


def test_progress_is_reported_for_each_rank(synthetic: Synthetic) -> None:
    reports: list[tuple[int, int]] = []
    run = NamedRun(synthetic(plan=always(2, us=60_000)).write(), None)
    _, graph = whatif_with_graph(run, CostTerms(accelerated=True, world_size=1), lambda *number: reports.append(number))
    assert reports == [(number, 4) for number in range(1, 5)]
    assert graph is not None
    assert graph.ranks == [0, 1, 2, 3]


def test_waiting_of_the_device_is_used_if_recorded(synthetic: Synthetic) -> None:
    # given a host that waits longer for its device than the device does for other ranks
    def on_device(rank: int, _step: int) -> dict[str, Any]:
        late = 60_000.0 if rank == 2 else 0.0
        return {
            "device_us": PhaseTimes(forward=40_000.0 + late, backward=70_000.0 - late),
            "device_blocked_us": PhaseTimes(backward=66_000.0 - late),
        }

    answer = answer_of(synthetic(noise=0.0, fields=on_device))
    # then a step of 40 + 4 ms, and 6 ms of communication, takes 60 ms longer
    assert (answer.step_seconds, answer.ideal_step_seconds) == (near(0.11), near(0.05))
    assert (answer.by_rank[0].rank, answer.by_op[0].op) == (2, "forward")


def test_steps_of_zero_duration_are_insufficient_data(synthetic: Synthetic) -> None:
    answer = answer_of(synthetic(fields=lambda _rank, _step: {"wall_us": 0.0}))
    assert answer.status == "insufficient_data"
    assert "no time" in answer.summary


def test_damaged_records_are_counted(synthetic: Synthetic) -> None:
    path = synthetic(plan=always(2, us=60_000)).write()
    add_damaged(steps_file(path, 1))
    assert any(warning.startswith("1 damaged line skipped") for warning in whatif([path]).source.warnings)


def test_other_input_beside_a_run_is_refused(synthetic: Synthetic, tmp_path: Path) -> None:
    path = synthetic().write()
    with pytest.raises(InputError, match="cannot be looked at together with"):
        whatif([path, tmp_path])


def profiled(steps: range, late_us: int) -> tuple[list[StepBreakdown], list[CollectiveRecord]]:
    """Return steps of 160 ms on one rank: it computes 80 ms and ``late_us`` more, and then all ranks reduce for 10 ms."""
    start = 10**18
    breakdowns, collectives = [], []
    for step in steps:
        begin = start + step * 160_000_000
        arrived = begin + (80_000 + late_us) * 1000
        end = begin + 150_000_000
        communication = (end - arrived) / 1000
        breakdowns.append(
            StepBreakdown(
                step=step,
                start_unix_ns=begin,
                device_kind="cuda",
                window_us=160_000,
                compute_us=160_000 - communication,
                communication_us=communication,
                overlap_us=0,
                exposed_communication_us=communication,
                memcpy_us=0,
                exposed_memcpy_us=0,
                idle_us=0,
                events=2,
            )
        )
        collectives.append(
            CollectiveRecord(
                step=step,
                group="0",
                group_ranks=[0, 1, 2, 3],
                index=0,
                op="all_reduce",
                bytes=1,
                enqueue_unix_ns=begin,
                start_unix_ns=arrived,
                end_unix_ns=end,
                stream=7,
            )
        )
    return breakdowns, collectives


def test_windows_are_used_if_step_records_are_insufficient(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(signals=False).write()
    for rank in range(4):
        add_windows(path, rank, *profiled(range(20, 26), 60_000 if rank == 2 else 0))
    answer = whatif([path], per_step=True)
    # then without rank 2's 60 ms the step takes 100 of its 160
    assert (answer.status, answer.source.evidence, answer.source.steps) == ("ok", "windows", 6)
    assert (answer.step_seconds, answer.ideal_step_seconds) == (near(0.16), near(0.1))
    assert (answer.slowdown, answer.discrepancy) == (near(1.6), near(1.0))
    assert (answer.by_rank[0].rank, answer.by_rank[0].share) == (2, near(1.0))
    assert {row.op: row.share for row in answer.by_op} == {"own time": near(1.0), "all_reduce": near(0.0)}
    assert answer.steps is not None
    assert [row.step for row in answer.steps] == list(range(20, 26))


def test_two_profiled_steps_are_insufficient_for_a_run(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(signals=False).write()
    for rank in range(4):
        add_windows(path, rank, *profiled(range(20, 22), 60_000 if rank == 2 else 0))
    answer = whatif([path])
    assert (answer.status, answer.source.evidence, answer.slowdown) == ("insufficient_data", None, None)
    assert "do not separate own time from waiting. Profiled steps do not help: 2 profiled steps" in answer.summary


def test_pipeline_with_transfers_outside_the_graph_is_insufficient_data(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(signals=False).write()
    for rank in range(4):
        breakdowns, collectives = profiled(range(20, 26), 0)
        sends = [msgspec.structs.replace(row, op="send", p2p=True, group="1", group_ranks=None) for row in collectives]
        add_windows(path, rank, breakdowns, [*collectives, *sends])
    answer = whatif([path])
    assert answer.status == "insufficient_data"
    assert "12 point-to-point transfers" in answer.summary


def test_replay_of_eight_traces_reproduces_the_measured_time(shared_data: Path) -> None:
    answer = whatif([shared_data / "traces" / "dlrm_8ranks_v100"])
    assert (answer.status, answer.source.evidence, answer.source.ranks) == ("ok", "traces", 8)
    assert answer.discrepancy == near(1.0, abs=0.01)
    assert answer.slowest_ranks == [7]
    # then rank 7 is the worst, but ranks 2 and 6 come 0.5 ms before it, so that healing it alone gains hardly more
    assert answer.by_rank[0].rank == 7
    assert answer.by_rank[0].saved_seconds == near(819e-6, abs=5e-6)


def test_torn_trace_is_left_out_but_an_error_if_given_by_name(example_traces: Path) -> None:
    # given traces of four ranks, of which one is cut off
    traces = example_traces / "damaged" / "torn-rank"
    # then the other three are replayed as far as possible, and the warning gives the reason
    answer = whatif([traces])
    assert answer.source.ranks == 3
    assert any("rank-3.json.gz: truncated" in warning for warning in answer.source.warnings)
    with pytest.raises(InputError, match=r"rank-3\.json\.gz: truncated"):
        whatif(sorted(traces.iterdir()))


def test_trace_of_one_rank_is_insufficient_data(example_traces: Path) -> None:
    answer = whatif([example_traces / "jobs" / "ddp" / "rank-0.json.gz"])
    assert answer.status == "insufficient_data"


@pytest.mark.parametrize(("ranks", "count"), [(1, 1), (33, 1), (34, 2), (64, 2), (1024, 31)])
def test_slowest_ranks_are_three_percent(ranks: int, count: int) -> None:
    assert slowest_count(ranks) == count


def test_slow_host_is_one_row_and_in_the_summary(synthetic: Synthetic) -> None:
    # two ranks per host; both of host n1 are slow, so healing one of them saves nothing
    run = synthetic(ranks=8, steps=60, plan=lambda rank, _step: {"us": 60_000.0} if rank in (2, 3) else None).write()
    answer = whatif([run])
    assert "host n1" in answer.summary
    rows = [line.split()[:2] for line in render_text(answer).splitlines() if line.startswith(("host n", "rank "))]
    assert rows[0] == ["host", "n1"]
    assert ["rank", "2"] not in rows
    assert ["rank", "3"] not in rows

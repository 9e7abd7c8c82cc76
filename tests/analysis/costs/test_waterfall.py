"""Waterfall of the step: the parts sum to it, each has its planted value, and unknown time is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.breakdowns import breakdown
from tests.analysis.conftest import AddWindows, plan_for
from tests.step_files import add_rows, rows_of, steps_file, table_of_records

from rankscope.analysis.captured import analyze_captured
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.costs.run_costs import merged_costs
from rankscope.analysis.costs.step_costs import costs_of_steps
from rankscope.analysis.costs.waterfall import PRECEDENCE, Amount, Costs, waterfall
from rankscope.analysis.costs.window_costs import costs_of_windows
from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.costs import MEANING, Waterfall
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PhaseTimes, Pipeline, StepRecord
from rankscope.runs.step_columns import HAS_BLOCKED

Synthetic = Callable[..., Any]

amounts = st.floats(-1e9, 1e12)
own_times = st.lists(st.lists(st.floats(1.0, 1e6), min_size=6, max_size=6), min_size=2, max_size=6)


def shares(waterfall: Waterfall | None) -> dict[str, float]:
    """Return the shares of the known parts, without those of zero."""
    assert waterfall is not None
    return {part.name: part.share for part in waterfall.parts if part.share}


def sums(waterfall: Waterfall) -> None:
    assert sum(round(1000 * part.us) for part in waterfall.parts if part.us is not None) == round(1000 * waterfall.step_us)
    assert [part.name for part in waterfall.parts] == list(MEANING)
    assert all(part.us is None or part.us >= 0 for part in waterfall.parts)


@given(step=st.floats(0, 1e12), known=st.dictionaries(st.sampled_from(PRECEDENCE), amounts))
def test_waterfall_parts_sum_to_the_step_for_any_sources(step: float, known: dict[Any, float]) -> None:
    parts = waterfall(Costs(step, 5, amounts={name: Amount(us, "steps") for name, us in known.items()}))
    sums(parts)
    assert {part.name for part in parts.parts if part.us is None} == set(MEANING) - set(known) - {"unexplained"}
    assert all((part.source is None) == (part.us is None) for part in parts.parts if part.name != "unexplained")


@given(step=st.floats(1, 1e9), known=st.dictionaries(st.sampled_from(PRECEDENCE), st.floats(0, 1e9)), more=st.floats(0, 1e9))
def test_waterfall_part_grows_with_its_cost(step: float, known: dict[Any, float], more: float) -> None:
    for name, us in known.items():
        before, after = (
            waterfall(Costs(step, 5, amounts={other: Amount(value, "steps") for other, value in amount.items()}))
            for amount in (known, {**known, name: us + more})
        )
        parts = [{part.name: part.us or 0.0 for part in value.parts} for value in (before, after)]
        assert parts[1][name] >= parts[0][name]
        assert all(parts[1][other] <= parts[0][other] for other in MEANING if other != name)


def table(own: list[list[float]], data: float = 0.3, transfer: float = 10.0) -> StepTable:
    """Return a table of ranks that wait for the last one at the end; a share ``data`` of own time is in the data loader."""
    longest = np.array(own).max(axis=0).tolist()
    records = {
        rank: [
            StepRecord(
                step=step,
                start_unix_ns=10**18 + step,
                wall_us=longest[step] + transfer,
                phases_us=PhaseTimes(data=data * time_, forward=(1 - data) * time_, backward=longest[step] + transfer - time_),
                blocked_us=PhaseTimes(backward=longest[step] + transfer - time_),
                cpu_us=(1 - data) * time_,
                run_queue_us=0.0,
                gc_us=0.0,
            )
            for step, time_ in enumerate(times)
        ]
        for rank, times in enumerate(own)
    }
    return table_of_records(records)


def of_steps(table: StepTable, **options: Any) -> dict[str, float]:
    costs = costs_of_steps(table, world_size=len(table.ranks), accelerated=options.pop("accelerated", False), **options)
    assert costs is not None
    parts = waterfall(costs)
    sums(parts)
    return {part.name: part.us for part in parts.parts if part.us is not None}


_READ = 1.0
"""Tolerance in microseconds: single precision resolves times of steps up to some seconds to a quarter of a microsecond."""


@given(own=own_times, order=st.randoms())
def test_rank_order_does_not_change_the_waterfall(own: list[list[float]], order: Any) -> None:
    shuffled = list(own)
    order.shuffle(shuffled)
    assert of_steps(table(own)) == pytest.approx(of_steps(table(shuffled)), abs=_READ)


@given(own=own_times, more=st.floats(1, 1e6))
def test_excess_of_the_last_rank_is_straggler_wait(own: list[list[float]], more: float) -> None:
    last = np.array(own).argmax(axis=0).tolist()
    slower = [[us + (more if last[step] == rank else 0.0) for step, us in enumerate(times)] for rank, times in enumerate(own)]
    before, after = of_steps(table(own)), of_steps(table(slower))
    # The first step is warm-up.
    assert after["straggler_wait"] - before["straggler_wait"] == pytest.approx(more, rel=1e-6, abs=_READ)
    for name in ("exposed_communication", "input", "compute", "host", "unexplained"):
        assert after[name] == pytest.approx(before[name], abs=_READ)


@given(own=own_times, transfer=st.floats(0, 1e6))
def test_noise_free_steps_are_completely_explained(own: list[list[float]], transfer: float) -> None:
    parts = of_steps(table(own, transfer=transfer))
    assert parts["exposed_communication"] == pytest.approx(transfer, abs=_READ)
    assert parts["unexplained"] == pytest.approx(0, abs=_READ)
    assert parts["input"] == pytest.approx(0.3 / 0.7 * parts["compute"], rel=1e-6, abs=_READ)


@pytest.mark.parametrize(
    ("planted", "part", "share"),
    [
        ({}, "compute", 85 / 104),
        ({"phase": "data", "us": 60_000}, "input", 65 / 164),
        ({"phase": "forward", "us": 60_000}, "host", 65 / 164),
        ({"phase": "between_steps", "us": 60_000}, "host", 65 / 164),
        ({"phase": "forward", "us": 60_000, "run_queue": True}, "host", 65 / 164),
        ({"phase": "forward", "us": 60_000, "cpu": True, "gc": True}, "host", 65 / 164),
        ({"phase": "backward", "us": 60_000, "cpu": True}, "compute", 144 / 164),
    ],
)
def test_common_slowness_is_the_planted_waterfall_part(
    synthetic: Synthetic, planted: dict[str, Any], part: str, share: float
) -> None:
    analysis = analyze([synthetic(device_kind="cpu", noise=0.005, plan=lambda _rank, _step: planted).write()])
    parts = shares(analysis.waterfall)
    assert analysis.waterfall is not None
    sums(analysis.waterfall)
    assert parts[part] == pytest.approx(share, abs=0.05)
    assert all(other <= 0.08 for name, other in parts.items() if name not in (part, "compute"))


def test_slowness_of_one_rank_is_straggler_wait(synthetic: Synthetic) -> None:
    plan = plan_for(2, phase="data", us=60_000)
    parts = shares(analyze([synthetic(device_kind="cpu", noise=0.005, plan=plan).write()]).waterfall)
    assert parts["straggler_wait"] == pytest.approx(60 / 164, abs=0.02)
    assert parts["input"] == pytest.approx(5 / 164, abs=0.02)


def test_slow_network_is_exposed_communication(synthetic: Synthetic) -> None:
    parts = shares(analyze([synthetic(device_kind="cpu", noise=0.005, transfer_us=60_000).write()]).waterfall)
    assert parts["exposed_communication"] == pytest.approx(60 / 160, abs=0.02)


def test_step_records_alone_leave_device_work_unexplained(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(noise=0.005).write()])
    assert analysis.waterfall is not None
    parts = {part.name: part for part in analysis.waterfall.parts}
    assert [name for name, part in parts.items() if part.us is None] == [
        "ideal", "compute", "copies", "host", "pipeline_bubble",
    ]  # fmt: skip
    assert parts["unexplained"].share == pytest.approx(95 / 104, abs=0.02)
    assert parts["compute"].note == "only profiled windows separate compute from host"
    assert all(part.note for part in parts.values() if part.us is None)
    assert {advice.name for advice in analysis.advice} == set()
    text = render_text(analysis, detail=True)
    assert "not known: compute, copies, host" in text
    assert "only profiled windows" in text


def test_records_without_own_time_show_only_the_wait_for_data(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(device_kind="cpu", signals=False, phases={"data": 40_000, "forward": 60_000}).write()])
    assert set(shares(analysis.waterfall)) == {"input", "unexplained"}
    assert shares(analysis.waterfall)["input"] == pytest.approx(0.38, abs=0.03)
    assert [advice.name for advice in analysis.advice] == ["data_loading"]


def test_data_wait_of_a_host_is_not_attributed_to_its_device(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(signals=False, phases={"data": 40_000, "forward": 60_000}).write()])
    assert shares(analysis.waterfall) == {"unexplained": 1.0}
    assert analysis.advice == []


def test_single_rank_waits_for_no_peer(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(device_kind="cpu", ranks=1, signals=False, transfer_us=0).write()])
    assert analysis.waterfall is not None
    parts = {part.name: part.us for part in analysis.waterfall.parts}
    assert (parts["exposed_communication"], parts["straggler_wait"]) == (0, 0)
    assert shares(analysis.waterfall)["compute"] == pytest.approx(0.9, abs=0.03)


def test_too_few_steps_have_no_waterfall(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(steps=4).write()])
    assert (analysis.waterfall, analysis.advice) == (None, [])


def test_wait_in_a_pipeline_is_the_bubble(synthetic: Synthetic) -> None:
    run = synthetic(
        device_kind="cpu",
        transfer_us=80_000,
        coordinates={rank: {"pp": rank} for rank in range(4)},
        pipeline=Pipeline(schedule="Schedule1F1B", microbatches=4),
    )
    analysis = analyze([run.write()])
    assert analysis.waterfall is not None
    assert analysis.pipeline is not None
    sums(analysis.waterfall)
    parts = {part.name: part for part in analysis.waterfall.parts}
    assert parts["pipeline_bubble"].share == pytest.approx(analysis.pipeline.bubble, abs=0.01)
    assert (parts["straggler_wait"].us, parts["exposed_communication"].us) == (None, None)
    assert parts["straggler_wait"].note == "not separated from the pipeline's bubble"
    (advice,) = [advice_item for advice_item in analysis.advice if advice_item.name == "micro_batches"]
    assert advice.gain_share_at_most == pytest.approx((analysis.pipeline.ideal_us or 0) / analysis.pipeline.step_us / 2)


def test_windows_give_device_compute_and_the_remainder_is_the_host(synthetic: Synthetic, add_windows: AddWindows) -> None:
    # Given profiled steps in which the host took longer, as it does under a profiler
    path = synthetic(noise=0.005).write()
    for rank in range(4):
        add_windows(path, rank, [breakdown(30, compute=60_000, exposed=6_000, copies=2_000, idle=60_000)], [])
    analysis = analyze([path])
    # Then compute is that of the profiled steps, and the host is what remains of the other steps
    assert analysis.waterfall is not None
    sums(analysis.waterfall)
    parts = {part.name: part for part in analysis.waterfall.parts}
    assert parts["compute"].us == pytest.approx(60_000)
    assert (parts["compute"].source, parts["input"].source, parts["host"].source) == ("windows", "steps", "windows")
    assert parts["copies"].us == pytest.approx(2_000)
    assert parts["exposed_communication"].us == pytest.approx(4_000, abs=300)
    assert parts["host"].us == pytest.approx(95_000 - 62_000, rel=0.05)
    assert parts["unexplained"].us == pytest.approx(0, abs=1)
    assert "launch_less" in {advice.name for advice in analysis.advice}


def test_data_wait_not_seen_by_the_device_costs_nothing(synthetic: Synthetic) -> None:
    # Given hosts that wait 40 ms for data while their devices still work on the step before
    def fields(_rank: int, _step: int) -> dict[str, Any]:
        return {
            "phases_us": PhaseTimes(data=40_000, forward=60_000),
            "wall_us": 100_000,
            "device_us": PhaseTimes(data=2_000, h2d=3_000, forward=45_000, backward=50_000),
            "device_blocked_us": PhaseTimes(backward=10_000),
        }

    analysis = analyze([synthetic(fields=fields).write()])
    # Then input is the waiting time of the devices
    assert analysis.waterfall is not None
    parts = {part.name: part.us for part in analysis.waterfall.parts}
    assert (parts["input"], parts["copies"], parts["exposed_communication"]) == (2_000, 3_000, 10_000)
    assert parts["unexplained"] == 85_000
    assert "data_loading" not in {advice.name for advice in analysis.advice}


def test_capture_has_a_waterfall_of_its_steps(synthetic: Synthetic, add_windows: AddWindows) -> None:
    path = synthetic(ranks=2).write()
    for rank in range(2):
        rows = [breakdown(step, compute=60.0, exposed=20.0, copies=0.0, idle=20.0 + rank) for step in (30, 31)]
        add_windows(path, rank, rows, [])
    result = analyze_captured(RunReader(path), 0, [0, 1], range(30, 32)).waterfall
    assert result is not None
    sums(result)
    assert (result.unit, result.steps, result.step_us) == ("step", 2, 100.5)
    assert {part.source for part in result.parts if part.us} == {"windows", None}


def test_hardly_idle_device_leaves_the_rest_unexplained() -> None:
    windows = costs_of_windows(
        {0: Reduction(breakdowns=[breakdown(1, compute=40.0, exposed=10.0, copies=0.0, idle=5.0)])},
        None,
        world_size=2,
        source="windows",
        input_us=None,
    )
    steps = costs_of_steps(table([[80.0] * 6, [80.0] * 6]), world_size=2, accelerated=True)
    costs = merged_costs(steps, windows, accelerated=True)
    assert costs is not None
    parts = {part.name: part.us for part in waterfall(costs).parts}
    assert parts["host"] == 5.0
    assert parts["unexplained"] == pytest.approx(90 - 10 - 24 - 40 - 5)


def test_communication_includes_waits_without_matched_collectives() -> None:
    costs = costs_of_windows(
        {0: Reduction(breakdowns=[breakdown(1, compute=40.0, exposed=10.0, copies=0.0, idle=50.0)])},
        None,
        world_size=2,
        source="traces",
    )
    assert costs is not None
    parts = {part.name: part for part in waterfall(costs).parts}
    assert parts["exposed_communication"].us == 10.0
    assert parts["exposed_communication"].note == "includes waiting for later ranks, which cannot be separated"
    assert parts["straggler_wait"].us is None
    assert parts["unexplained"].us == 50.0


def test_idle_time_is_bounded_by_the_step_without_input_time() -> None:
    # Given windows in which the profiler made the device idle longer than whole steps take
    windows = costs_of_windows(
        {0: Reduction(breakdowns=[breakdown(1, compute=40.0, exposed=10.0, copies=0.0, idle=500.0)])},
        None,
        world_size=2,
        source="windows",
    )
    costs = merged_costs(Costs(100.0, 9), windows, accelerated=True)
    assert costs is not None
    assert costs.inner["idle"] == Amount(50.0, "windows")
    parts = {part.name: part for part in waterfall(costs).parts}
    assert (parts["host"].us, parts["unexplained"].us) == (None, 50.0)
    assert parts["host"].note == "the device idles 50% of the time; whether it waits for input or for the host is not known"


def means_of_its_breakdowns(analysis: Analysis) -> dict[str, float]:
    """Return the parts of a trace's window, after checking that they are the means of its ranks' breakdowns."""
    result = analysis.waterfall
    assert result is not None
    sums(result)
    assert result.unit == "window"
    parts = {part.name: part.us or 0.0 for part in result.parts}

    def mean(field: str) -> float:
        return float(np.mean([getattr(row, field) for row in analysis.ranks]))

    assert result.step_us == pytest.approx(mean("window_us"), abs=0.01)
    assert parts["compute"] == pytest.approx(mean("compute_us"), abs=0.01)
    assert parts["copies"] == pytest.approx(mean("exposed_memcpy_us"), abs=0.01)
    waiting = parts["exposed_communication"] + parts["straggler_wait"]
    assert waiting == pytest.approx(mean("exposed_communication_us"), abs=0.01)
    assert parts["input"] + parts["host"] + parts["unexplained"] == pytest.approx(mean("idle_us"), abs=0.01)
    return {part.name: part.us for part in result.parts if part.us is not None}


@pytest.mark.parametrize("name", ["ddp", "fsdp", "pipeline", "experts-uneven"])
def test_trace_waterfall_equals_the_means_of_the_breakdowns(example_traces: Path, name: str) -> None:
    assert means_of_its_breakdowns(analyze([example_traces / "jobs" / name]))["compute"] > 0


@pytest.mark.parametrize("name", ["ddp_2ranks_nccl_metadata", "moe_dualpipe_deepep", "timesformer_h100"])
def test_idle_device_without_data_loader_annotations_is_unexplained(shared_data: Path, name: str) -> None:
    parts = means_of_its_breakdowns(analyze([shared_data / "traces" / name]))
    assert {"input", "host"}.isdisjoint(parts)


def test_dlrm_waits_for_ranks_longer_than_it_communicates(shared_data: Path) -> None:
    analysis = analyze([shared_data / "traces" / "dlrm_8ranks_v100"])
    parts = means_of_its_breakdowns(analysis)
    # The exposed wait in the wait attribution, over the eight ranks
    assert parts["straggler_wait"] == pytest.approx((35_240 + 5_060 + 4_990) / 8, abs=5)
    # Its hosts annotate the data loader, so the reason for device idle time is known
    assert parts["input"] > 0
    assert parts["unexplained"] == pytest.approx(0, abs=0.01)
    assert {advice.name for advice in analysis.advice} >= {"launch_less", "stalls"}


def test_waterfall_for_a_terminal_fits_without_colour(synthetic: Synthetic) -> None:
    plan = lambda _rank, _step: {"phase": "data", "us": 60_000}  # noqa: E731
    analysis = analyze([synthetic(device_kind="cpu", plan=plan).write()])
    text = render_text(analysis, width=80, detail=True)
    lines = text[text.index("where the step goes") :].partition("\n\n")[0].splitlines()
    bars = [line.split("|")[1] for line in lines if "|" in line]
    assert all(len(bar) == 24 for bar in bars)
    # Each bar begins where the one before it ended, and together they are the step
    columns = [column for bar in bars for column, letter in enumerate(bar) if letter == "#"]
    assert columns == sorted(set(columns))
    assert len(columns) >= 22
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("value", [3e38, -3e38, 1e18, np.inf, -np.inf])
def test_absurd_times_keep_the_waterfall_consistent(synthetic: Synthetic, value: float) -> None:
    run = synthetic(device_kind="cpu", steps=12).write()
    rows = rows_of(*(StepRecord(step=step, start_unix_ns=10**18, wall_us=1e6) for step in range(12)))
    for name in ("data", "forward", "between_steps", "blocked_data", "blocked_backward", "cpu", "run_queue", "gc"):
        rows[f"{name}_us"] = value
    rows["flags"] = HAS_BLOCKED
    rows["flops"] = abs(value)
    rows["allocated_bytes"] = 2**62
    rows["resident_bytes"] = -5
    add_rows(steps_file(run, 0), rows)
    waterfall = analyze([run]).waterfall
    assert waterfall is not None
    sums(waterfall)

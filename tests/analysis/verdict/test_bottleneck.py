"""The limit of the step is derived from the parts of its waterfall alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.breakdowns import breakdown
from tests.analysis.conftest import AddWindows, plan_for

from rankscope.analysis.costs.waterfall import Amount, Costs, InnerName, waterfall
from rankscope.analysis.engine import analyze
from rankscope.analysis.result.analysis import Analysis, Kind, Verdict
from rankscope.analysis.result.costs import PartName
from rankscope.analysis.verdict.bottleneck import HOST_OF_CPU, LIMITS, limit_of, shares_of
from rankscope.analysis.verdict.builders import Setting, no_straggler_verdict
from rankscope.runs.records import Pipeline, StepBreakdown

Synthetic = Callable[..., Any]

KINDS: dict[PartName, Kind] = {
    "input": "input_bound",
    "exposed_communication": "communication_bound",
    "pipeline_bubble": "pipeline_bubble",
    "host": "host_bound",
}
LIMIT_OF: dict[PartName, float] = {name: next(row.at_least for row in LIMITS if row.figure == f"share.{name}") for name in KINDS}
SETTING = Setting(source="steps", world_size=2, steps=(0, 9), step_count=9, unit="step", accelerated=True)

some_parts = st.dictionaries(
    st.sampled_from((*KINDS, "straggler_wait", "copies", "ideal", "compute")), st.floats(0, 100), min_size=1
)


def costs_of(parts: Mapping[PartName, float], inner: Mapping[InnerName, float] | None = None) -> Costs:
    return Costs(
        100.0,
        9,
        amounts={name: Amount(us, "steps") for name, us in parts.items()},
        inner={name: Amount(us, "steps") for name, us in (inner or {}).items()},
    )


def said(costs: Costs) -> Verdict:
    return no_straggler_verdict(shares_of(costs), SETTING, confidence=None, why="Nobody is slow")[0]


@given(parts=some_parts)
def test_verdict_is_the_largest_waterfall_part_above_its_limit(parts: dict[PartName, float]) -> None:
    costs = costs_of(parts)
    result = waterfall(costs)
    shares = {name: result.share(name) or 0.0 for name in KINDS}
    compute = (result.share("compute") or 0.0) + (result.share("ideal") or 0.0) if "compute" in parts else 0.0
    reached = {KINDS[name]: share for name, share in shares.items() if share >= LIMIT_OF[name]}
    if compute >= next(row.at_least for row in LIMITS if row.kind == "compute_bound"):
        reached["compute_bound"] = compute
    verdict = said(costs)
    if not reached:
        assert verdict.kind == "balanced"
        return
    assert reached[verdict.kind] == max(reached.values())
    assert f"{reached[verdict.kind]:.0%} of the step" in verdict.summary


@given(parts=some_parts)
def test_balanced_verdict_names_the_largest_part_beside_compute(parts: dict[PartName, float]) -> None:
    costs = costs_of(parts)
    verdict = said(costs)
    if verdict.kind != "balanced":
        return
    collected = [part for part in waterfall(costs).parts if part.name not in ("ideal", "compute", "unexplained") and part.share]
    if not collected:
        assert verdict.summary.endswith("no part of the step besides compute is known to take any of it.")
        return
    largest = max(part.share or 0.0 for part in collected)
    name, share = re.findall(r"the largest is ([a-z ]+), (\d+%) \(from step records\)[;.]", verdict.summary)[0]
    assert share == f"{largest:.0%}"
    assert name.replace(" ", "_") in {part.name for part in collected if part.share == largest}
    # and a large unexplained share is reported
    unknown = waterfall(costs).share("unexplained") or 0.0
    if abs(unknown - 0.1) > 1e-6 and ("ideal" not in parts or "compute" in parts):
        said_unknown = re.search(r"what takes (\d+)% of it is not known", verdict.summary)
        assert (said_unknown is not None) is (unknown > 0.1)
        # Summed in another order, half a percent may round to either side.
        assert said_unknown is None or abs(int(said_unknown[1]) - 100 * unknown) <= 0.5 + 1e-6


@given(inner=st.fixed_dictionaries({name: st.floats(0, 25) for name in ("between_steps", "stalled", "run_queue", "gc")}))
def test_host_limit_on_cpus_is_named_after_its_largest_part(inner: dict[InnerName, float]) -> None:
    host = sum(inner.values())
    limit = limit_of(shares_of(costs_of({"host": host}, inner)))
    if host < 100 * LIMIT_OF["host"]:
        assert limit is None
        return
    assert limit is not None
    row, share = limit
    assert row in HOST_OF_CPU
    assert share == pytest.approx(host / 100, abs=1e-4)
    assert inner[row.figure.removeprefix("share.")] == max(inner.values())  # type: ignore[index]


def test_host_limit_on_a_device_ignores_incidental_records() -> None:
    limit = limit_of(shares_of(costs_of({"host": 50.0}, {"between_steps": 2.0, "gc": 1.0})))
    assert limit is not None
    assert limit[0].wording == "of the step the device has nothing to do: the host does not keep it busy"


def test_wording_covers_an_idle_device_of_unknown_reason() -> None:
    limit = limit_of(shares_of(costs_of({"compute": 40.0}, {"idle": 50.0})))
    assert limit is not None
    assert "or the input it waits for" in limit[0].wording


def profiled(exposed_us: float) -> list[StepBreakdown]:
    """Return three profiled steps of 100 ms with this much exposed communication each."""
    return [
        breakdown(
            step,
            compute=100_000 - exposed_us,
            exposed=exposed_us,
            start_unix_ns=10**18 + step * 10**8,
            device_kind="cpu",
        )
        for step in (20, 21, 22)
    ]


def share_said(analysis: Analysis) -> str:
    match = re.search(r"(\d+%) (?:of the step goes|\(from)", analysis.verdict.summary)
    assert match is not None
    return match[1]


@pytest.mark.parametrize(
    ("transfer_us", "exposed_us", "expected"),
    [(55_000, 20_000, ("communication_bound", "exposed_communication")), (20_000, 50_000, ("balanced", "host"))],
)
def test_few_profiled_steps_do_not_outvote_all_others(
    synthetic: Synthetic, add_windows: AddWindows, transfer_us: float, exposed_us: float, expected: tuple[Kind, PartName]
) -> None:
    # given a run that computes for about half of each step, and profiled steps with less or more communication
    half = {"cpu_us": 65_000.0, "run_queue_us": 15_000.0}
    run = synthetic(device_kind="cpu", noise=0.01, transfer_us=transfer_us, fields=lambda _rank, _step: half).write()
    for rank in range(4):
        add_windows(run, rank, profiled(exposed_us), [])
    analysis = analyze([run])
    # then verdict and waterfall are of the same steps, and give the same share
    assert analysis.waterfall is not None
    assert analysis.verdict.kind == expected[0]
    assert share_said(analysis) == f"{analysis.waterfall.share(expected[1]):.0%}"
    for finding in analysis.findings:
        share = {row.name: row for row in finding.evidence}["share.exposed_communication"]
        assert share.value == analysis.waterfall.share("exposed_communication")
        assert share.detail == "of the step, from step records"


def test_gain_of_prefetching_is_bounded_by_the_stage_waiting_for_data(synthetic: Synthetic) -> None:
    # given three stages, the first of which waits for data for 60 ms of each step of 164 ms
    run = synthetic(
        ranks=3,
        device_kind="cpu",
        noise=0.01,
        phases={"forward": 40_000.0, "backward": 60_000.0},
        plan=plan_for(0, phase="data", us=60_000),
        coordinates={rank: {"pp": rank} for rank in range(3)},
        pipeline=Pipeline(schedule="Schedule1F1B", microbatches=4),
    ).write()
    analysis = analyze([run])
    # then the waterfall shows the mean over stages, and names the stage with most of it
    assert analysis.waterfall is not None
    part = next(part for part in analysis.waterfall.parts if part.name == "input")
    assert part.share == pytest.approx(60 / 164 / 3, abs=0.01)
    assert part.note == "mean over the stages; most on stage 0, 37% of the step"
    # and the advice is bounded by that stage, and names it
    (advice,) = [advice_item for advice_item in analysis.advice if advice_item.name == "data_loading"]
    assert advice.gain_share_at_most == pytest.approx(60 / 164, abs=0.01)
    assert advice.action.endswith("(most of it is on pipeline stage 0)")
    assert [advice_item.stage for advice_item in advice.evidence] == [0]


def test_busy_named_rank_is_no_second_compute_bound_finding(synthetic: Synthetic, add_windows: AddWindows) -> None:
    # given two devices in steps of 134 ms, one of which computes for 110 ms, and the other for 70
    run = synthetic(ranks=2, noise=0.01, plan=plan_for(1, us=30_000)).write()
    for rank, compute_us in enumerate((70_000, 110_000)):
        rows = [msgspec.structs.replace(row, device_kind="cuda", window_us=134_000, compute_us=compute_us) for row in profiled(0)]
        add_windows(run, rank, [msgspec.structs.replace(row, idle_us=134_000 - compute_us) for row in rows], [])
    analysis = analyze([run])
    # then that one is named, and their mean compute time of 90 ms is no second finding
    assert (analysis.verdict.kind, analysis.verdict.rank) == ("straggler", 1)
    assert "compute_bound" not in [finding.kind for finding in analysis.findings]

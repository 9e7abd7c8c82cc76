"""Physical reason for a slow rank, from GPU readings with known ground truth."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.conftest import AddHardware, AddWindows, plan_for
from tests.analysis.test_incomplete_runs import late_windows
from tests.step_files import load, save, steps_file

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.hardware import MAX_SAMPLES, REASONS, bare_uuid, in_steps, readings_of
from rankscope.analysis.inference.reasons.physical import PHYSICAL
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.verdict.advice import AdviceSubject, next_actions
from rankscope.exporter.nvml.tables import THROTTLE_BITS
from rankscope.runs.records import HardwareSample

Synthetic = Callable[..., Any]
Readings = Callable[[int, int], dict[str, Any] | None]
"""(rank, index of the reading) to the values that differ from a healthy GPU; ``None``: this reading is missing."""

BEGIN = 10**18
SLOW = {"phase": "forward", "us": 60_000}
HEALTHY: dict[str, Any] = {
    "utilization_ratio": 0.95,
    "temperature_celsius": 60.0,
    "sm_clock_hertz": 1.9e9,
    "throttle_reasons": [],
    "xid_errors": 3,
    "ecc_uncorrected_errors": 2,
    "pcie_replays": 7,
    "nvlink_errors": 0,
    "pcie_link_width": 16,
    "pcie_link_generation": 5,
    "nvlinks_down": 0,
}
HOT: dict[str, Any] = {"throttle_reasons": ["hw_slowdown", "hw_thermal"], "sm_clock_hertz": 1.1e9, "temperature_celsius": 91.0}


def written(run: Any, add_hardware: AddHardware, readings: Readings, *, every_ms: int = 100, **fields: Any) -> Path:
    """Write the run, with readings of the GPUs of all its ranks from its start on."""
    path: Path = run.write()
    rows: dict[str, list[HardwareSample]] = {}
    for number in range(run.steps * 160 // every_ms):
        for rank in range(run.ranks):
            different = readings(rank, number)
            if different is not None:
                at = BEGIN + number * every_ms * 1_000_000 + 1000
                sample = HardwareSample(unix_ns=at, gpu_uuid=f"GPU-{rank}", **{**HEALTHY, **different, **fields})
                rows.setdefault(f"n{rank // 2}", []).append(sample)
    for host, samples in rows.items():
        add_hardware(path, host, samples)
    return path


def only(rank: int, different: dict[str, Any]) -> Readings:
    return lambda item, _number: different if item == rank else {}


@pytest.mark.parametrize(
    ("different", "reason"),
    [
        (HOT, "thermal_throttle"),
        ({"throttle_reasons": ["sw_thermal"], "sm_clock_hertz": 1.2e9}, "thermal_throttle"),
        ({"throttle_reasons": ["hw_slowdown", "hw_power_brake"], "sm_clock_hertz": 0.9e9}, "power_brake"),
        ({"throttle_reasons": ["sw_power_cap"], "sm_clock_hertz": 1.2e9}, "power_cap"),
        ({"throttle_reasons": ["applications_clocks"], "sm_clock_hertz": 1.2e9}, "clock"),
        ({"sm_clock_hertz": 1.2e9}, "clock"),
        ({"throttle_reasons": None, "sm_clock_hertz": 1.2e9}, "clock"),
        ({"pcie_link_width": 4}, "link"),
        ({"pcie_link_generation": 1}, "link"),
        ({"nvlinks_down": 2}, "link"),
    ],
)
def test_unusual_readings_of_the_slow_rank_explain_its_slowness(
    synthetic: Synthetic, add_hardware: AddHardware, different: dict[str, Any], reason: str
) -> None:
    analysis = analyze([written(synthetic(gpus=True, plan=plan_for(2, **SLOW)), add_hardware, only(2, different))])
    assert (analysis.verdict.rank, analysis.verdict.explained_by) == (2, reason)
    assert analysis.findings[0].explained_by == reason
    assert f"explained by {reason.replace('_', ' ')}" in analysis.verdict.summary
    assert any(evidence.name.startswith("hardware.") for evidence in analysis.findings[0].evidence)
    # And there is no advice about the host's code
    advised = {advice_item.name for advice_item in analysis.advice}
    assert "mend_hardware" in advised
    assert not advised & {"stalls", "compare_devices"}


@pytest.mark.parametrize(
    ("field", "rate", "reason"),
    [("xid_errors", 1, "xid"), ("ecc_uncorrected_errors", 1, "ecc"), ("nvlink_errors", 9, "link"), ("pcie_replays", 9, "link")],
)
def test_counters_that_rise_with_the_slowness_explain_the_straggler(
    synthetic: Synthetic, add_hardware: AddHardware, field: str, rate: int, reason: str
) -> None:
    counting: Readings = lambda rank, number: {field: 5 + rate * (number // 8)} if rank == 2 else {}  # noqa: E731
    analysis = analyze([written(synthetic(gpus=True, plan=plan_for(2, **SLOW)), add_hardware, counting)])
    assert analysis.verdict.explained_by == reason
    [evidence] = [row for row in analysis.findings[0].evidence if row.name == f"hardware.{field}"]
    assert evidence.value == rate * 7
    assert "2001-09-09T01:46:40Z" in (evidence.detail or "")


def test_gpu_errors_are_distinguished_from_program_errors(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    def readings(rank: int, number: int) -> dict[str, Any]:
        later = number > 8
        return {"xid_errors": 3 + 6 * later, "xid_errors_of_programs": 5 * later or None} if rank == 2 else {}

    analysis = analyze([written(synthetic(gpus=True, plan=plan_for(2, **SLOW)), add_hardware, readings)])
    assert analysis.verdict.explained_by == "xid"
    [evidence] = [row for row in analysis.findings[0].evidence if row.name == "hardware.xid_errors"]
    assert evidence.value == 1


def test_throttle_reasons_match_those_of_the_exporter() -> None:
    assert set(REASONS) == {reason for reason, _ in THROTTLE_BITS}


def unexplained(analysis: Analysis, cause: str = "host") -> None:
    assert (analysis.verdict.rank, analysis.verdict.cause, analysis.verdict.explained_by) == (2, cause, None)
    assert "explained" not in analysis.verdict.summary


@pytest.mark.parametrize(
    "readings",
    [
        lambda _rank, _number: HOT,  # all of them are hot
        lambda rank, _number: HOT if rank == 1 else {},  # another one is
        lambda rank, number: HOT if rank == 2 and number == 30 else {},  # once
        lambda rank, number: {"xid_errors": 9} if rank == 2 and number > 55 else {},  # long after it became slow
        # errors of programs, such as a kernel's access out of bounds
        lambda rank, number: {"xid_errors": 3 + number, "xid_errors_of_programs": number} if rank == 2 else {},
        lambda rank, _number: {"sm_clock_hertz": 1.85e9} if rank == 2 else {},  # too little for the lost time
        lambda rank, _number: {"throttle_reasons": ["sw_thermal"]} if rank == 2 else {},  # throttled, but no slower
        lambda rank, _number: {"sm_clock_hertz": 0.3e9, "utilization_ratio": 0.0} if rank == 2 else {},  # idle
        lambda rank, _number: {"throttle_reasons": ["gpu_idle"], "sm_clock_hertz": 0.3e9} if rank == 2 else {},
        lambda rank, _number: HOT if rank == 2 else None,  # nothing to compare with
        lambda rank, _number: {"nvlink_errors": 100} if rank == 2 else {},  # of long ago
        lambda _rank, number: {"nvlink_errors": 100 * number},  # everywhere
    ],
)
def test_usual_readings_explain_nothing(synthetic: Synthetic, add_hardware: AddHardware, readings: Readings) -> None:
    unexplained(analyze([written(synthetic(gpus=True, plan=plan_for(2, **SLOW)), add_hardware, readings)]))


@pytest.mark.parametrize(
    ("extra", "cause"),
    [
        ({"phase": "data", "us": 60_000}, "input"),
        ({"phase": "forward", "us": 60_000, "gc": True}, "gc"),
        ({"phase": "between_steps", "us": 60_000, "tags": ["checkpoint"]}, "checkpoint"),
        ({"phase": "forward", "us": 60_000, "cpu": True, "elements": 2.0}, "imbalance"),
    ],
)
def test_hot_gpu_does_not_explain_a_cause_outside_the_gpu(
    synthetic: Synthetic, add_hardware: AddHardware, extra: dict[str, Any], cause: str
) -> None:
    unexplained(analyze([written(synthetic(gpus=True, plan=plan_for(2, **extra)), add_hardware, only(2, HOT))]), cause)


def test_slow_throttled_device_is_explained_by_thermal_throttling(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    verdict = analyze([written(synthetic(gpus=True, plan=plan_for(2, **SLOW)), add_hardware, only(2, HOT))]).verdict
    assert (verdict.cause, verdict.explained_by) == ("compute", "thermal_throttle")
    assert any("airflow" in action and "n1" in action for action in verdict.next)
    assert any("scontrol update NodeName=n1 State=DRAIN" in action for action in verdict.next)


def test_permanent_reading_does_not_explain_intermittent_slowness(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    plan = lambda rank, step: {"us": 200_000} if rank == 2 and step % 4 == 0 else None  # noqa: E731
    path = written(synthetic(gpus=True, steps=160, plan=plan, noise=0.01), add_hardware, only(2, HOT), every_ms=50)
    verdict = analyze([path]).verdict
    assert (verdict.rank, verdict.pattern, verdict.explained_by) == (2, "intermittent", None)


def test_reading_that_follows_the_slow_steps_explains_the_slowness(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    plan = lambda rank, step: {"us": 200_000} if rank == 2 and step % 4 == 0 else None  # noqa: E731
    run = synthetic(gpus=True, steps=160, plan=plan, noise=0.0, transfer_us=0.0)
    # Without noise four steps take 600 ms, of which the first, the slow one, takes 300.
    while_slow: Readings = lambda rank, number: HOT if rank == 2 and number % 12 < 6 else {}  # noqa: E731
    verdict = analyze([written(run, add_hardware, while_slow, every_ms=50)]).verdict
    assert (verdict.rank, verdict.pattern, verdict.explained_by) == (2, "intermittent", "thermal_throttle")


def test_hot_gpu_does_not_explain_a_slow_host_in_windows(
    synthetic: Synthetic, add_hardware: AddHardware, add_windows: AddWindows
) -> None:
    # Given a rank named by profiled steps, in which its device has no more to do than the others'
    path = written(synthetic(gpus=True, signals=False, plan=plan_for(2, **SLOW)), add_hardware, only(2, HOT))
    for rank in range(4):
        add_windows(path, rank, *late_windows(range(20, 26), 60_000 if rank == 2 else 0))
    analysis = analyze([path])
    assert analysis.verdict.evidence_source == "windows"
    unexplained(analysis)


def test_profiled_fast_steps_do_not_prove_a_healthy_device(
    synthetic: Synthetic, add_hardware: AddHardware, add_windows: AddWindows
) -> None:
    plan = lambda rank, step: {"us": 200_000} if rank == 2 and step % 4 == 0 else None  # noqa: E731
    windows = {41: 90_000, 42: 90_000, 43: 90_000}
    fields = lambda _rank, step: {"profiled": step in windows}  # noqa: E731
    run = synthetic(gpus=True, steps=160, plan=plan, noise=0.0, transfer_us=0.0, fields=fields)
    while_slow: Readings = lambda rank, number: HOT if rank == 2 and number % 12 < 6 else {}  # noqa: E731
    path = written(run, add_hardware, while_slow, every_ms=50)
    for rank in range(4):
        add_windows(path, rank, late_windows(windows, 0)[0], [])
    verdict = analyze([path]).verdict
    assert (verdict.pattern, verdict.cause, verdict.explained_by) == ("intermittent", "compute", "thermal_throttle")


@pytest.mark.parametrize(("busier", "cause"), [(200_000, "compute"), (0, "host")])
def test_profiled_slow_step_shows_its_device(synthetic: Synthetic, add_windows: AddWindows, busier: int, cause: str) -> None:
    plan = lambda rank, step: {"us": 200_000} if rank == 2 and step % 4 == 0 else None  # noqa: E731
    fields = lambda _rank, step: {"profiled": 40 <= step < 44}  # noqa: E731
    path = synthetic(steps=160, plan=plan, noise=0.0, fields=fields).write()
    for rank in range(4):
        rows, _ = late_windows(range(40, 44), 0)
        if rank == 2:
            rows[0] = msgspec.structs.replace(rows[0], compute_us=90_000 + busier)
        add_windows(path, rank, rows, [])
    verdict = analyze([path]).verdict
    assert (verdict.rank, verdict.pattern, verdict.cause) == (2, "intermittent", cause)


def test_device_of_another_pipeline_stage_is_not_compared(synthetic: Synthetic, add_windows: AddWindows) -> None:
    # Given two stages, of which the second has more to compute, and a rank of the first whose device is busier than its peer's
    places = {rank: {"pp": rank // 2} for rank in range(4)}
    path = synthetic(ranks=4, plan=plan_for(0, **SLOW), coordinates=places).write()
    for rank, compute_us in enumerate((150_000, 90_000, 155_000, 155_000)):
        rows, _ = late_windows(range(20, 24), 0)
        add_windows(path, rank, [msgspec.structs.replace(row, compute_us=compute_us) for row in rows], [])
    verdict = analyze([path]).verdict
    assert (verdict.rank, verdict.cause) == (0, "compute")


def test_gpu_is_not_compared_with_itself(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    # Given ranks that share one GPU, which has readings
    run = synthetic(gpus=True, plan=plan_for(2, **SLOW), rank_fields={"gpu_uuid": "GPU-2", "host": "n1"})
    analysis = analyze([written(run, add_hardware, only(2, HOT))])
    unexplained(analysis)
    assert "There are no hardware samples" not in analysis.verdict.summary


def test_missing_hardware_samples_are_reported(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    path = synthetic(gpus=True, plan=plan_for(2, **SLOW)).write()
    unexplained(analyze([path]))
    assert "There are no hardware samples of its GPU." in analyze([path]).verdict.summary
    add_hardware(path, "n1", [HardwareSample(unix_ns=BEGIN, missing="no answer from the exporter")])
    assert "no hardware samples of its GPU: no answer from the exporter." in analyze([path]).verdict.summary


def test_ranks_without_a_gpu_have_no_missing_readings(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    run = written(synthetic(device_kind="cpu", plan=plan_for(2, **SLOW)), add_hardware, only(2, HOT))
    unexplained(analyze([run]))
    assert "hardware" not in analyze([run]).verdict.summary


def test_simulated_readings_are_labelled(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    path = written(synthetic(gpus=True, simulated=True, plan=plan_for(2, **SLOW)), add_hardware, only(2, HOT), simulated=True)
    analysis = analyze([path])
    assert "SIMULATED GPU readings" in analysis.verdict.summary
    assert all("SIMULATED" in (row.detail or "") for row in analysis.findings[0].evidence if row.name.startswith("hardware."))


def test_impossible_readings_are_ignored(synthetic: Synthetic, add_hardware: AddHardware) -> None:
    path = synthetic(gpus=True, plan=plan_for(2, **SLOW)).write()
    odd = [HardwareSample(unix_ns=at, gpu_uuid="GPU-2", xid_errors=2**63, **HOT) for at in (-5, 0, 2**62, 2**63 - 1)]
    add_hardware(path, "n1", [item for item in odd for _ in range(9)])
    unexplained(analyze([path]))


@pytest.mark.parametrize(("peers", "reason"), [(0, "memory_pressure"), (3, "memory_pressure"), (20, None)])
def test_repeated_allocator_retries_show_short_memory(
    synthetic: Synthetic, add_hardware: AddHardware, peers: int, reason: str | None
) -> None:
    path = written(synthetic(gpus=True, plan=plan_for(2, **SLOW)), add_hardware, only(2, {}))
    for rank in range(4):
        file = steps_file(path, rank)
        rows = load(file)
        rows["allocated_bytes"][::4] = 2**30
        rows["allocator_retries"][::4] = (20 if rank == 2 else peers) * np.arange(len(rows[::4])) // 9
        save(file, rows)
    assert analyze([path]).verdict.explained_by == reason


def test_mig_device_uses_the_readings_of_its_gpu() -> None:
    rows = [
        HardwareSample(unix_ns=at, gpu_uuid=uuid, parent_uuid=parent, sm_clock_hertz=clock)
        for at in range(3)
        for uuid, parent, clock in (("MIG-a", "GPU-p", None), ("GPU-p", None, 1e9), ("GPU-q", None, 2e9))
    ]
    readings = readings_of(rows, ["a"], (0, 9))
    assert list(readings) == ["a"]
    assert readings["a"].known_values("sm_clock_hertz").tolist() == [1e9] * 3


@pytest.mark.slow
def test_readings_of_a_very_long_run_are_bounded() -> None:
    rows = (HardwareSample(unix_ns=at, gpu_uuid="GPU-a", xid_errors=at) for at in range(5 * MAX_SAMPLES))
    result = readings_of(rows, ["GPU-a"], (0, 2**62))["GPU-a"]
    assert MAX_SAMPLES // 2 <= len(result.unix_ns) <= MAX_SAMPLES
    assert np.diff(result.unix_ns).min() == np.diff(result.unix_ns).max()


def test_every_physical_reason_has_its_own_advice() -> None:
    general = next_actions("straggler", AdviceSubject("r", [1], {1: "n1", 0: "n0"}), cause="compute")
    for row in PHYSICAL:
        actions = next_actions("straggler", AdviceSubject("r", [1], {1: "n1", 0: "n0"}), cause="compute", reason=row.reason)
        assert actions
        assert actions != general, row.reason


times = st.lists(st.integers(0, 2**50), max_size=30)


@given(times, st.lists(st.tuples(st.integers(1, 2**50), st.integers(0, 2**40)), min_size=1, max_size=12), st.randoms())
def test_reading_belongs_to_the_step_in_which_it_was_taken(at: list[int], steps: list[tuple[int, int]], random: Any) -> None:
    starts = np.array([start for start, _ in steps], dtype=np.int64)
    walls = np.array([float(wall) for _, wall in steps])
    wanted = np.array([random.random() < 0.5 for _ in steps])
    rows = [HardwareSample(unix_ns=unix_n, gpu_uuid="GPU-a", power_watts=1.0) for unix_n in at]
    readings = readings_of(rows, ["GPU-a"], (0, 2**62)).get("GPU-a")
    if readings is None:
        assert not at
        return
    inside = in_steps(readings, starts, walls, wanted)
    assert set(inside.unix_ns) <= set(at)
    assert len(in_steps(readings, starts, walls, ~wanted).unix_ns) + len(inside.unix_ns) <= len(at)
    for unix_n in inside.unix_ns:
        assert any(start <= unix_n < start + wall * 1000 for (start, wall), want in zip(steps, wanted, strict=True) if want)


@given(st.lists(st.none() | st.integers(0, 50), max_size=20))
def test_counter_reset_counts_from_zero(values: list[int | None]) -> None:
    rows = [HardwareSample(unix_ns=at, gpu_uuid="g", xid_errors=value) for at, value in enumerate(values)]
    readings = readings_of(rows, ["g"], (0, 99)).get("g")
    rose = None if readings is None else readings.rises("xid_errors")
    collected = [value for value in values if value is not None]
    if len(collected) < 2:
        assert rose is None
        return
    assert rose is not None
    assert rose[0] == sum(after - before if after >= before else after for before, after in pairwise(collected))
    assert (rose[1] is None) == (rose[0] == 0)


@given(st.text(alphabet="GPUMI-ab", max_size=12))
def test_uuid_prefixes_are_removed(uuid: str) -> None:
    assert bare_uuid(f"GPU-{uuid}") == bare_uuid(f"MIG-{uuid}") == uuid

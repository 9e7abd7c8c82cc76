"""Runs exported to Perfetto, parsed by a model of its trace processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests import step_files
from tests.analysis.perfetto.small_runs import SKEW_NS, START, STEP_US, by_step, exported, make_run, profile, step_record
from tests.step_files import append, steps_file

from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.runs.paths import host_dir, rank_dir
from rankscope.runs.records import HardwareSample, RankInfo
from rankscope.runs.small_files import write_record
from rankscope.runs.step_columns import TIME_COLUMNS

GOLDEN = Path(__file__).with_name("small_run.json")


def test_every_rank_is_a_process_below_the_verdict(tmp_path: Path) -> None:
    model, export = exported(make_run(tmp_path / "run"))
    assert model.processes == ["rankscope", "rank 0 · host a · GPU-8a1b", "rank 1 · host a", "rank 2 · host b", "rank 3 · host b"]
    assert (export.kind, export.ranks, export.steps, export.simulated) == ("run", [0, 1, 2, 3], (0, 6), False)
    assert model.tracks("rank 1") == [
        "steps",
        "phases (in their usual order)",
        "blocked by other ranks (at the end of its phase)",
        "profiled steps",
        "collectives of 0 (4 ranks)",
    ]


def test_phases_fill_the_step_and_blocked_time_ends_its_phase(tmp_path: Path) -> None:
    model, _ = exported(make_run(tmp_path / "run"))
    steps = model.of("step", "rank 0")
    assert [step.name for step in steps] == [f"step {number}" for number in range(6)]
    phases = model.of("phase", "rank 0")
    assert [step.name for step in phases[:5]] == ["data", "forward", "backward", "optimizer", "between_steps"]
    assert phases[0].start == steps[0].start
    assert phases[4].end == steps[0].end == steps[1].start
    blocked = model.of("blocked", "rank 0")
    assert len(blocked) == 6
    assert (blocked[0].end, blocked[0].end - blocked[0].start) == (phases[2].end, 1_500_000)
    assert steps[1].args["tags"] == ["checkpoint"]
    assert steps[2].args["profiled"]


def test_verdict_spans_its_steps(synthetic: Callable[..., Any]) -> None:
    run = synthetic(plan=lambda rank, _: {"us": 60_000} if rank == 2 else None).write()
    model, _ = exported(run)
    (verdict,) = model.of("verdict")
    assert verdict.process == "rankscope"
    assert "Rank 2" in verdict.name
    assert (verdict.args["kind"], verdict.args["rank"], verdict.args["cause"]) == ("straggler", 2, "host")
    assert verdict.args["next"]
    assert verdict.args["confidence"] > 0.5
    covered = by_step(model.of("step"))[verdict.args["steps"][0]]
    assert verdict.start == min(event.start for event in covered)
    assert verdict.end == max(event.end for event in model.of("step"))
    finding = model.of("finding")[0]
    assert "us" in finding.args["evidence"]["saved"]
    # without collectives the export reports nothing about clocks
    (clock,) = model.of("clock")
    assert clock.args["method"] == "none"
    assert "residual_us" not in {name for name, value in clock.args.items() if value is not None}


def test_export_without_a_verdict_has_no_verdict_slice(tmp_path: Path) -> None:
    model, _ = exported(make_run(tmp_path / "run"), verdict=False)
    assert model.of("verdict") == []
    assert len(model.of("clock")) == 1


def test_simulated_run_is_labelled_everywhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", simulated=True)
    append(host_dir(run, "a"), "gpu", HardwareSample(unix_ns=START, gpu_index=0, temperature_celsius=50.0))
    model, export = exported(run)
    assert all(name.endswith("simulated") for name in model.processes)
    assert export.simulated
    assert model.document["otherData"]["simulated"] is True


def test_hardware_uses_the_common_clock_and_missing_values_are_no_zero(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    samples = [
        HardwareSample(
            unix_ns=START + SKEW_NS["b"] + 10_000_000 * number,
            gpu_uuid="GPU-b",
            gpu_index=1,
            temperature_celsius=60.0 + number,
            power_watts=None if number == 1 else 300.0,
            sm_clock_hertz=1.4e9,
            utilization_ratio=0.5,
            throttle_reasons=["sw_thermal_slowdown"] if number == 1 else [],
            xid_errors=number // 2,
        )
        for number in range(3)
    ]
    append(host_dir(run, "b"), "gpu", *samples)
    append(host_dir(run, "elsewhere"), "gpu", *samples)
    model, _ = exported(run)
    assert model.processes[-1] == "host b · hardware"
    first_step = model.of("step", "rank 2")[0].start
    temperature = model.counters["host b · hardware", "GPU 1 temperature °C"]
    assert [value for _, value in temperature] == [60.0, 61.0, 62.0]
    assert abs(temperature[0][0] - first_step) <= 1
    assert [value for _, value in model.counters["host b · hardware", "GPU 1 power W"]] == [300.0, 300.0]
    assert {value for _, value in model.counters["host b · hardware", "GPU 1 SM clock MHz"]} == {1400.0}
    assert [event.name for event in model.of("hardware")] == [
        "GPU 1: clock lowered: sw_thermal_slowdown",
        "GPU 1: clock no longer lowered",
        "GPU 1: 1 more Xid errors",
    ]


def test_garbage_collection_without_a_time_is_a_counter(tmp_path: Path) -> None:
    model, _ = exported(make_run(tmp_path / "run"))
    counter = model.counters["rank 0 · host a · GPU-8a1b", "garbage collection in the step us"]
    assert [value for _, value in counter] == [250.0, 0.0]


def test_records_of_absurd_times_do_not_move_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    append(rank_dir(run, 0, 0), "steps", step_record(6, 5), step_record(7, 2**61), step_record(-1, START))
    append(rank_dir(run, 0, 0), "windows", profile(3, 5, "cuda"))
    model, export = exported(run)
    assert len(model.of("step")) == 24
    assert max(event.end for event in model.of("step")) < 10**9
    (verdict,) = model.of("verdict")
    assert verdict.end - verdict.start < 10**9
    assert "1 record: times that make no sense" in export.left_out
    assert any("far from those of the rest" in omission for omission in export.left_out)


def test_slightly_overlapping_steps_stay_on_one_track(tmp_path: Path) -> None:
    # given a wall clock that was set back by 40 us within 10 ms, and once by half a step
    run = make_run(tmp_path / "run", steps=0, profiled=())
    starts = [START, START + 9_960_000, START + 14_960_000]
    append(rank_dir(run, 0, 0), "steps", *(step_record(number, start) for number, start in enumerate(starts)))
    model, _ = exported(run)
    steps = model.of("step")
    assert [step.track for step in steps] == ["steps", "steps", "steps (2)"]
    assert steps[0].end == steps[1].start
    assert steps[0].args["wall_us"] == STEP_US


def test_short_steps_with_clock_jitter_stay_on_one_track(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=0, profiled=())
    short = [msgspec.structs.replace(step_record(number, START + number * 1_000_000), wall_us=1023.0) for number in range(4)]
    append(rank_dir(run, 0, 0), "steps", *short)
    model, _ = exported(run, verdict=False)
    assert {event.track for event in model.of("step")} == {"steps"}
    assert {event.track for event in model.of("phase")} == {"phases (in their usual order)"}


@pytest.mark.parametrize("absurd", [np.inf, -np.inf, 3e38, -3e38, np.nan])
def test_absurd_times_are_not_drawn(tmp_path: Path, absurd: float) -> None:
    run = make_run(tmp_path / "run", profiled=())
    file = steps_file(run, 1)
    rows = step_files.load(file)
    for name in (*TIME_COLUMNS, "cpu_us", "run_queue_us", "gc_us", "flops"):
        rows[name][2] = absurd
    rows["flags"][2] = 15
    step_files.save(file, rows)
    model, _ = exported(run, verdict=False)
    assert len(model.of("step")) == 24
    assert max(event.end for event in (*model.of("step"), *model.of("phase"), *model.of("blocked"))) < 10**9


def test_hostile_names_are_inert(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", profiled=())
    wild = '\x00\x1b[31m</script>"\n' + "x" * 5000
    info = RankInfo(rank=0, world_size=4, host=wild, pid=1, start_unix_ns=START, gpu_uuid=wild)
    write_record(rank_dir(run, 0, 0) / "rank.json", info)
    nasty = msgspec.structs.replace(step_record(6, START + 60_000_000), tags=[wild] * 200, sections_us={wild: 1.0})
    append(rank_dir(run, 0, 0), "steps", nasty)
    model, _ = exported(run, verdict=False)
    name = model.processes[1]
    assert name.startswith("rank 0 · host ��[31m</script>")
    assert len(name) == 200
    assert name.isprintable()
    last = model.of("step", "rank 0")[-1]
    assert last.args == {"left out": last.args["left out"]}


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    first, second = bytearray(), bytearray()
    for data in (first, second):
        export_perfetto([run], data.extend)
    assert first == second


def test_export_of_a_small_run_equals_the_golden_file(tmp_path: Path) -> None:
    data = bytearray()
    export_perfetto([make_run(tmp_path / "run", ranks=2, steps=2, profiled=(1,), late=1)], data.extend, verdict=False)
    assert data.decode() == GOLDEN.read_text()

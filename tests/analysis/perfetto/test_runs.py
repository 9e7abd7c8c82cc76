"""Runs exported to Perfetto, parsed by a model of its trace processor."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import step_files
from tests.perfetto_model import Model, Slice, load
from tests.step_files import append, steps_file

from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.perfetto.export_result import ExportResult
from rankscope.analysis.perfetto.selection import Selection
from rankscope.base.errors import InputError
from rankscope.runs.paths import attempt_dir, host_dir, rank_dir
from rankscope.runs.records import (
    AttemptInfo,
    CollectiveRecord,
    DeviceKind,
    HardwareSample,
    KernelRecord,
    PhaseTimes,
    RankInfo,
    RunInfo,
    StepBreakdown,
    StepRecord,
)
from rankscope.runs.small_files import create_attempt, create_run, write_record
from rankscope.runs.step_columns import TIME_COLUMNS

START = 1_790_000_000_000_000_000
STEP_US = 10_000.0
SKEW_NS = {"a": 0, "b": 250_000_000}
"""The clock of host b is a quarter of a second ahead."""
GOLDEN = Path(__file__).with_name("small_run.json")


def make_run(
    path: Path,
    *,
    ranks: int = 4,
    steps: int = 6,
    profiled: tuple[int, ...] = (2, 3),
    late: int = 3,
    on_cpu: bool = False,
    simulated: bool = False,
    skew_ns: Mapping[str, int] = SKEW_NS,
) -> Path:
    """Write a run: ranks 0 and 1 on host a, others on b; in profiled steps ``late`` is 3 ms late to one all-reduce."""
    create_run(path, RunInfo(run_id="run-1", name="small", start_unix_ns=START, simulated=simulated))
    create_attempt(path, AttemptInfo(attempt=0, start_unix_ns=START, world_size=ranks, backend="nccl"))
    for rank in range(ranks):
        folder, host = rank_dir(path, 0, rank), "ab"[rank * 2 // ranks]
        kind: DeviceKind = "cpu" if on_cpu else "cuda"
        info = RankInfo(
            rank=rank, world_size=ranks, host=host, pid=100 + rank, device_kind=kind, start_unix_ns=START, end_reason="exit"
        )
        write_record(folder / "rank.json", info if rank else replace(info, gpu_uuid="GPU-8a1b", local_rank=0))
        skew = skew_ns[host]
        starts = [START + skew + step * round(STEP_US * 1000) for step in range(steps)]
        append(folder, "steps", *(step_record(step, at, profiled=step in profiled) for step, at in enumerate(starts)))
        for step in profiled:
            arrival = starts[step] + 4_000_000 + 1_000 * rank + (3_000_000 if rank == late else 0)
            end = starts[step] + 8_000_000
            collective = CollectiveRecord(
                step=step,
                group="0",
                group_ranks=list(range(ranks)),
                index=0,
                sequence=7 + step,
                op="all_reduce",
                dtype="float",
                bytes=4096,
                enqueue_unix_ns=arrival if on_cpu else arrival - 500_000,
                start_unix_ns=arrival + 20_000 if on_cpu else arrival,
                end_unix_ns=end,
                stream=None if on_cpu else 20,
                compute_spans_us=[(0.0, 100.0)],
            )
            append(folder, "collectives", collective)
            append(folder, "windows", breakdown(step, starts[step] + 100_000, kind))
            append(folder, "kernels", KernelRecord(step=step, name="gemm", kind="compute", total_us=900.5, calls=3))
    return path


def boot(run: Path, boots: list[str], *, host: str | None = None) -> None:
    """Give each rank a boot id, and all of them ``host`` as the name of their host."""
    for rank, boot_id in enumerate(boots):
        path = rank_dir(run, 0, rank) / "rank.json"
        info = json.loads(path.read_text())
        path.write_text(json.dumps({**info, "boot_id": boot_id, "host": host or info["host"]}))


def replace(record: Any, **fields: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(record, **fields)


def step_record(step: int, start: int, *, profiled: bool = False) -> StepRecord:
    return StepRecord(
        step=step,
        start_unix_ns=start,
        wall_us=STEP_US,
        phases_us=PhaseTimes(data=1000.0, forward=3000.0, backward=4500.0, optimizer=1000.0, between_steps=500.0),
        blocked_us=PhaseTimes(backward=1500.0),
        gc_us=250.0 if step == 1 else 0.0,
        samples=8,
        tags=["checkpoint"] if step == 1 else [],
        profiled=profiled,
    )


def breakdown(step: int, start: int, kind: DeviceKind) -> StepBreakdown:
    return StepBreakdown(
        step=step,
        start_unix_ns=start,
        device_kind=kind,
        window_us=9_900.0,
        compute_us=5_000.0,
        communication_us=4_000.0,
        overlap_us=100.0,
        exposed_communication_us=3_900.0,
        memcpy_us=0.0,
        exposed_memcpy_us=0.0,
        idle_us=1_000.0,
        events=30,
    )


def exported(*paths: Path, raw: bool | None = None, verdict: bool = True, **selection: Any) -> tuple[Model, ExportResult]:
    data = bytearray()
    export = export_perfetto(paths, data.extend, selection=Selection(**selection), raw=raw, verdict=verdict)
    model = load(bytes(data))
    assert model.dropped == []
    assert model.lost_arrows == 0
    assert len(model.arrows) >= export.arrows
    assert model.document["otherData"]["left_out"] == export.left_out
    return model, export


def by_step(slices: list[Slice]) -> dict[int, list[Slice]]:
    by_key: dict[int, list[Slice]] = {}
    for slice_ in slices:
        by_key.setdefault(slice_.args["step"], []).append(slice_)
    return by_key


def test_every_rank_is_a_process_below_the_verdict(tmp_path: Path) -> None:
    model, export = exported(make_run(tmp_path / "run"))
    assert model.processes == [
        "rankscope",
        "rank 0 · host a · GPU-8a1b",
        "rank 1 · host a",
        "rank 2 · host b",
        "rank 3 · host b",
    ]
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


@pytest.mark.parametrize("on_cpu", [False, True])
def test_collectives_that_ended_together_end_together_for_any_clocks(tmp_path: Path, on_cpu: bool) -> None:
    # given two hosts a quarter of a second apart
    model, export = exported(make_run(tmp_path / "run", on_cpu=on_cpu))
    # then every collective ends at one moment
    collectives = by_step(model.of("collective"))
    assert {step: len(collective) for step, collective in collectives.items()} == {2: 4, 3: 4}
    for collective in collectives.values():
        assert max(item.end for item in collective) - min(item.end for item in collective) <= 1
    # and steps that began together begin together
    for collective in by_step(model.of("step")).values():
        assert max(item.start for item in collective) - min(item.start for item in collective) <= 1
    assert export.clock.offset_us[3] - export.clock.offset_us[0] == pytest.approx(250_000)
    assert export.clock.residual_us == pytest.approx(0, abs=0.01)


def test_ranks_of_one_kernel_share_a_clock_whatever_their_hosts_are_called(tmp_path: Path) -> None:
    # given containers of one kernel with host names of their own, which see a collective end 2 ms apart
    run = make_run(tmp_path / "run", skew_ns={"a": 0, "b": 2_000_000})
    model, export = exported(run)
    assert export.clock.method == "collective_ends"
    assert export.clock.offset_us[3] == pytest.approx(1000)
    boot(run, ["4be2"] * 4)
    model, export = exported(run)
    # then no time is corrected, and the spread is not taken for a disagreement of clocks
    assert export.clock.method == "one_clock"
    assert set(export.clock.offset_us.values()) == {0}
    assert export.clock.residual_us == pytest.approx(2000)
    (note,) = model.of("clock")
    assert "one clock" in note.name
    assert "disagree" not in note.name
    steps = by_step(model.of("step"))[0]
    assert max(step.start for step in steps) - min(step.start for step in steps) == 2_000_000


def test_machines_that_share_a_host_name_have_clocks_of_their_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    boot(run, ["4be2", "4be2", "90d1", "90d1"], host="localhost")
    _, export = exported(run)
    assert export.clock.method == "collective_ends"
    assert export.clock.offset_us[3] - export.clock.offset_us[0] == pytest.approx(250_000)


def test_ranks_of_one_kernel_need_no_collective_to_be_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", profiled=())
    assert exported(run)[1].clock.method == "none"
    boot(run, ["4be2"] * 4)
    assert exported(run)[1].clock.method == "one_clock"


@pytest.mark.parametrize("on_cpu", [False, True])
def test_who_waited_for_whom_is_drawn(tmp_path: Path, on_cpu: bool) -> None:
    model, export = exported(make_run(tmp_path / "run", on_cpu=on_cpu))
    waits = model.of("wait")
    assert {wait.process[:6] for wait in waits} == {"rank 0", "rank 1", "rank 2"}
    assert {wait.name for wait in waits} == {"waiting for rank 3"}
    # inside the collective, as long as the last rank was late
    assert {wait.depth for wait in waits} == {1}
    assert sorted({wait.end - wait.start for wait in waits}) == [3_001_000, 3_002_000, 3_003_000]
    assert (export.arrows, len(model.arrows)) == (6, 6)
    for begin, end in model.arrows:
        assert begin.process.startswith("rank 3")
        assert begin.kind == "collective"
        assert end.process != begin.process
    last = next(wait for wait in model.of("collective") if wait.process.startswith("rank 3"))
    first = next(wait for wait in model.of("collective") if wait.process.startswith("rank 0"))
    assert last.args["last_to_arrive"] == first.args["last_to_arrive"] == 3
    assert (first.args["wait_us"], last.args["wait_us"]) == (pytest.approx(3003), 0)
    assert first.args["bytes"] == 4096
    assert first.args["sequence"] == 9


def test_nobody_is_called_last_below_the_residual(tmp_path: Path) -> None:
    # given ranks that arrive within a microsecond of each other, and clocks that agree to no better than a millisecond
    run = make_run(tmp_path / "run", late=-1)
    for rank in range(4):
        for number, file in enumerate(sorted(rank_dir(run, 0, rank).glob("collectives-*.jsonl"))):
            record = json.loads(file.read_text())
            record["end_unix_ns"] += 1_000_000 * ((rank + number) % 2)
            file.write_text(json.dumps(record) + "\n")
    model, export = exported(run)
    assert export.clock.residual_us is not None
    assert export.clock.residual_us >= 1000
    assert model.of("wait") == []
    assert model.arrows == []
    assert export.arrows == 0


def test_the_verdict_lies_over_its_steps(synthetic: Callable[..., Any]) -> None:
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


def test_without_a_verdict_nothing_is_judged(tmp_path: Path) -> None:
    model, _ = exported(make_run(tmp_path / "run"), verdict=False)
    assert model.of("verdict") == []
    assert len(model.of("clock")) == 1


def test_a_simulated_run_says_so_everywhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", simulated=True)
    append(host_dir(run, "a"), "gpu", HardwareSample(unix_ns=START, gpu_index=0, temperature_celsius=50.0))
    model, export = exported(run)
    assert all(name.endswith("simulated") for name in model.processes)
    assert export.simulated
    assert model.document["otherData"]["simulated"] is True


def test_hardware_is_on_the_common_clock_and_a_missing_value_is_no_zero(tmp_path: Path) -> None:
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


def test_garbage_collection_is_a_counter_as_nobody_knows_when_it_was(tmp_path: Path) -> None:
    model, _ = exported(make_run(tmp_path / "run"))
    counter = model.counters["rank 0 · host a · GPU-8a1b", "garbage collection in the step us"]
    assert [value for _, value in counter] == [250.0, 0.0]


def test_chosen_steps_and_ranks_only_are_exported_but_matched_with_all(tmp_path: Path) -> None:
    model, export = exported(make_run(tmp_path / "run"), first=3, past=5, ranks=frozenset({0, 3}))
    assert (export.ranks, export.steps) == ([0, 3], (3, 5))
    assert {event.args["step"] for event in model.of("step")} == {3, 4}
    assert {event.process[:6] for event in model.of("step")} == {"rank 0", "rank 3"}
    assert [event.name for event in model.of("wait")] == ["waiting for rank 3"]
    assert export.arrows == 1


def test_clocks_of_steps_without_a_profile_are_those_of_the_nearest_one(tmp_path: Path) -> None:
    model, export = exported(make_run(tmp_path / "run"), first=5, past=6)
    assert model.of("collective") == []
    assert export.clock.fitted_to == "steps 2 to 3"
    assert export.clock.matched == 2
    (steps,) = by_step(model.of("step")).values()
    assert max(item.start for item in steps) - min(item.start for item in steps) <= 1


def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=200, profiled=(100, 101))
    model, export = exported(run, max_events=1_000)
    assert export.steps is not None
    assert export.steps[0] <= 100
    assert export.steps[1] == 107
    assert export.events <= 1_000
    assert len(model.of("collective")) == 8
    assert any("of steps 0 to 199" in omission and "--steps" in omission for omission in export.left_out)


@pytest.mark.parametrize(
    ("chosen", "steps"),
    [
        ({}, (0, 124)),
        ({"first": 200}, (200, 325)),
        ({"first": 5}, (5, 129)),
        ({"past": 340}, (0, 124)),
        ({"first": 22, "past": 340}, (22, 147)),
    ],
)
def test_the_steps_exported_use_the_limit(tmp_path: Path, chosen: dict[str, Any], steps: tuple[int, int]) -> None:
    # given a run whose only profile is at its beginning
    run = make_run(tmp_path / "run", steps=350, profiled=(20, 21))
    # when not all chosen steps fit
    _, export = exported(run, verdict=False, max_events=4_000, **chosen)
    # then as many are exported as fit, from the first chosen one, and the report has their number
    assert export.steps == steps
    assert 3_000 < export.events <= 4_000
    (number,) = re.findall(r"about ([\d,]+) of", " ".join(export.left_out))
    assert export.events <= int(number.replace(",", "")) <= 4_000
    # and what it says gets the others
    past = chosen.get("past", 350)
    if chosen:
        assert f"--steps {steps[1]}:{past} " in " ".join(export.left_out)
    (all_events,) = re.findall(r"--max-events (\d+) all", " ".join(export.left_out))
    chosen["max_events"] = int(all_events)
    assert exported(run, verdict=False, **chosen)[1].steps == (chosen.get("first", 0), past)


def test_nothing_that_was_asked_for_is_an_error_that_says_what_there_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(InputError, match="no such steps were recorded; there are steps 0 to 5"):
        exported(run, first=100)
    with pytest.raises(InputError, match="none of these ranks: there are 4, from 0 to 3"):
        exported(run, ranks=frozenset({9}))
    with pytest.raises(InputError, match="one run at a time"):
        exported(run, run)
    with pytest.raises(InputError, match="nothing to export"):
        exported()


def test_records_of_another_age_move_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    append(rank_dir(run, 0, 0), "steps", step_record(6, 5), step_record(7, 2**61), step_record(-1, START))
    append(rank_dir(run, 0, 0), "windows", breakdown(3, 5, "cuda"))
    model, export = exported(run)
    assert len(model.of("step")) == 24
    assert max(event.end for event in model.of("step")) < 10**9
    (verdict,) = model.of("verdict")
    assert verdict.end - verdict.start < 10**9
    assert "1 record: times that make no sense" in export.left_out
    assert any("far from those of the rest" in omission for omission in export.left_out)


def test_windows_are_exported_where_the_step_records_are_gone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for file in run.rglob("steps-*"):
        file.unlink()
    model, export = exported(run, verdict=False)
    assert (export.steps, len(model.of("collective")), len(model.of("window"))) == ((2, 4), 8, 8)
    # and nothing usable is an error
    for file in run.rglob("collectives-*.jsonl"):
        file.write_text(file.read_text().replace('"end_unix_ns":1', '"end_unix_ns":-1'))
    with pytest.raises(InputError, match="no usable record of steps 2 to 3"):
        exported(run)
    for file in run.rglob("collectives-*.jsonl"):
        file.unlink()
    with pytest.raises(InputError, match="no step was recorded"):
        exported(run)


def test_steps_that_seem_to_overlap_by_a_little_stay_on_one_track(tmp_path: Path) -> None:
    # given a wall clock that was set back by 40 us within 10 ms, and once by half a step
    run = make_run(tmp_path / "run", steps=0, profiled=())
    starts = [START, START + 9_960_000, START + 14_960_000]
    append(rank_dir(run, 0, 0), "steps", *(step_record(number, start) for number, start in enumerate(starts)))
    model, _ = exported(run)
    steps = model.of("step")
    assert [step.track for step in steps] == ["steps", "steps", "steps (2)"]
    assert steps[0].end == steps[1].start
    assert steps[0].args["wall_us"] == STEP_US


def test_short_steps_whose_two_clocks_were_read_apart_stay_on_one_track(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=0, profiled=())
    short = [replace(step_record(number, START + number * 1_000_000), wall_us=1023.0) for number in range(4)]
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
    nasty = replace(step_record(6, START + 60_000_000), tags=[wild] * 200, sections_us={wild: 1.0})
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


def test_a_small_run_as_it_is_written(tmp_path: Path) -> None:
    data = bytearray()
    export_perfetto([make_run(tmp_path / "run", ranks=2, steps=2, profiled=(1,), late=1)], data.extend, verdict=False)
    assert data.decode() == GOLDEN.read_text()


def kept_trace(run: Path, rank: int, first: int, host: str) -> None:
    base = START + SKEW_NS[host]
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step}",
            "ts": step * 10_000,
            "dur": 10_000,
            "pid": 7,
            "tid": 7,
        }
        for step in (first, first + 1)
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": at, "dur": 100.125, "pid": 0, "tid": 7, "args": {"grid": [1, 2, 3]}}
        for at in (first * 10_000 + 50, first * 10_000 + 10_050)
    ]
    folder = rank_dir(run, 0, rank) / "traces"
    folder.mkdir()
    document = {"traceEvents": events, "baseTimeNanoseconds": base}
    (folder / f"window-{first:09d}.json").write_text(json.dumps(document))


def test_raw_traces_that_were_kept_are_merged_in_on_request(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    kept_trace(run, 0, 2, "a")
    kept_trace(run, 3, 2, "b")
    (rank_dir(run, 0, 3) / "traces" / "window-000000001.json.gz").write_bytes(b"\x1f\x8bnot gzip")
    # when all steps are exported, they are omitted, and the output reports it
    model, export = exported(run)
    assert model.of("kernel") == []
    assert any("3 were kept; --raw" in omission for omission in export.left_out)
    # when steps are chosen, the traces of these steps are included
    model, export = exported(run, first=2, past=3)
    kernels = model.of("kernel")
    assert {kernel.track for kernel in kernels} == {"device 0 stream 7"}
    assert {kernel.process[:6] for kernel in kernels} == {"rank 0", "rank 3"}
    assert kernels[0].args == {"grid": [1, 2, 3]}
    assert kernels[0].end - kernels[0].start == 100_125
    first = model.of("step", "rank 3")[0]
    assert abs(model.of("kernel", "rank 3")[0].start - first.start - 50_000) <= 1
    assert any("window-000000001" in omission and "gzip" in omission for omission in export.left_out)
    # and on request
    assert len(exported(run, raw=True)[0].of("kernel")) == 4
    assert exported(run, raw=False, first=2, past=3)[0].of("kernel") == []


def test_raw_traces_are_cut_to_the_chosen_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = rank_dir(run, 0, 0) / "traces"
    folder.mkdir()
    events: list[dict[str, Any]] = []
    for step in (2, 3, 4):
        at = STEP_US * step
        call = {"name": f"call{step}", "cat": "cuda_runtime", "pid": 10, "tid": 11, "args": {"correlation": step}}
        work = {"name": f"gemm{step}", "cat": "kernel", "pid": 0, "tid": 7, "args": {"correlation": step}}
        events.append({"ph": "X", "ts": at + 100, "dur": 10, **call})
        # given kernels that run after the step that launched them
        events.append({"ph": "X", "ts": at + STEP_US + 500, "dur": 700, **work})
        events.append({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": step, "pid": 10, "tid": 11, "ts": at + 100})
        events.append({"ph": "f", "cat": "ac2g", "name": "ac2g", "id": step, "pid": 0, "tid": 7, "ts": at + STEP_US + 500})
    (folder / "window-000000002.json").write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": START}))
    # when a step is exported
    model, _ = exported(run, first=3, past=4)
    # then its calls and the work that they launched are shown, whole and connected, and those of other steps are not
    assert [event.name for event in model.of("cuda_runtime")] == ["call3"]
    assert [(kernel.name, kernel.end - kernel.start) for kernel in model.of("kernel")] == [("gemm3", 700_000)]
    assert ("call3", "gemm3") in [(begin.name, end.name) for begin, end in model.arrows]
    assert {event.name for event in exported(run, first=2, past=5)[0].of("kernel")} == {"gemm2", "gemm3", "gemm4"}


def test_the_last_attempt_is_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    create_attempt(run, AttemptInfo(attempt=1, start_unix_ns=START, world_size=1))
    write_record(rank_dir(run, 1, 0) / "rank.json", RankInfo(rank=0, world_size=1, host="a", pid=1, start_unix_ns=START))
    append(rank_dir(run, 1, 0), "steps", step_record(0, START + 10**10))
    assert attempt_dir(run, 1).is_dir()
    model, export = exported(run)
    assert len(model.of("step")) == 1
    assert "1 earlier attempt" in export.left_out

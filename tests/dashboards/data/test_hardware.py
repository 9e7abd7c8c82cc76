"""Samples of the GPUs of a run, per step and over time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.gpu_samples import STEP_NS, rows_of, uuid, write_samples
from tests.dashboards.recorded_run import START_NS
from tests.step_files import keep_rows, steps_file

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.hardware import Hardware, HardwareIndex, SampledGpu, in_steps, no_hardware, read_hardware
from rankscope.dashboards.store.derive import DerivedData
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.follow import FollowerState
from rankscope.dashboards.store.samples import SampleWriter
from rankscope.runs.paths import host_dir, rank_dir
from rankscope.runs.records import HardwareSample, RankInfo

WriteRun = Callable[..., Path]


def sample(rank: int, step: float, **values: Any) -> HardwareSample:
    """Return a sample taken ``step`` steps after the start."""
    return HardwareSample(unix_ns=START_NS + int(step * STEP_NS), gpu_uuid=uuid(rank), gpu_index=rank, **values)


def test_step_has_its_worst_sample_or_the_last_fresh_one_before() -> None:
    starts = np.array([100, 200, 300, 400, 0, 900], np.int64)
    walls = np.array([0.1, 0.1, 0.1, 0.1, np.nan, 0.1])
    rows = rows_of([110, 150, 310, 360, 410], temperature_celsius=[70, 75, 60, np.nan, 65], sm_clock_hertz=[9, 5, 8, 7, np.nan])
    heat = in_steps(rows, "temperature_celsius", starts, walls)
    np.testing.assert_array_equal(heat, np.array([75, 75, 60, 65, np.nan, np.nan], np.float32))
    clock = in_steps(rows, "sm_clock_hertz", starts, walls)
    np.testing.assert_array_equal(clock, np.array([5, 5, 7, 7, np.nan, np.nan], np.float32))
    assert np.isnan(in_steps(rows[:0], "power_watts", starts, walls)).all()
    assert np.isnan(in_steps(rows, "power_watts", starts, walls)).all()


def test_gpu_metrics_are_assigned_to_the_rank_on_the_gpu(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    write_samples(run, "node-1", [sample(3, step, temperature_celsius=50 + step, power_watts=700) for step in range(0, 60, 2)])
    source = DiskRuns(run)
    steps = source.part("run-1", "steps")
    heat = steps.part("temperature_celsius").values
    assert heat[3, 10] == 60
    assert heat[3, 11] == 60, "the last before it"
    assert np.isnan(heat[:3]).all(), "of their GPUs there are no samples"
    assert "sm_clock_hertz" not in steps.metrics
    hardware = source.part("run-1", "hardware")
    (gpu,) = hardware.gpus
    assert (gpu.host, gpu.index, gpu.ranks, gpu.samples) == ("node-1", 3, [3], 30)
    assert (gpu.gauges["temperature_celsius"].highest, gpu.gauges["temperature_celsius"].last) == (108, 108)
    assert "sm_clock_hertz" not in gpu.gauges
    assert hardware.index.unsampled_ranks == [0, 1, 2]
    assert hardware.index.why_none is None


def test_events_have_steps_and_a_simulated_flag(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    hot = [
        sample(2, step + 0.5, throttle_reasons=["hw_thermal"] if 10 <= step < 20 else [], simulated=True) for step in range(60)
    ]
    write_samples(run, "node-1", hot)
    (event,) = DiskRuns(run).part("run-1", "events").events
    assert (event.kind, event.rank, event.step, event.until_step) == ("hw_thermal", 2, 10, 19)
    assert event.simulated


def test_run_without_samples_names_the_exporter_command(tmp_path: Path, write_run: WriteRun) -> None:
    source = DiskRuns(write_run(tmp_path / "run"))
    assert source.part("run-1", "hardware").gpus == []
    for why in (source.part("run-1", "hardware").index.why_none, source.part("run-1", "events").why_none):
        assert "rankscope exporter" in str(why)
    with pytest.raises(RankscopeError, match="no samples of GPU GPU-1"):
        source.part("run-1", "hardware").series("GPU-1")
    assert no_hardware("because").index.why_none == "because"


def test_missing_samples_leave_a_gap_and_their_reason(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    gone = HardwareSample(unix_ns=START_NS + 5 * STEP_NS, missing="the exporter does not answer")
    write_samples(run, "node-0", [sample(0, 1, power_watts=1), gone, sample(0, 9, power_watts=3)])
    source = DiskRuns(run)
    hardware = source.part("run-1", "hardware")
    assert hardware.index.missing == ["node-0: the exporter does not answer"]
    np.testing.assert_array_equal(hardware.series(uuid(0)).values["power_watts"], [1, np.nan, 3])


def test_hosts_are_sorted_numerically(tmp_path: Path) -> None:
    samples = SampleWriter(tmp_path)
    for host in ("node-10", "node-9"):
        samples.add(host, [sample(0, 1, power_watts=1)])
    samples.publish({}, {})
    assert [gpu.host for gpu in read_hardware(tmp_path).gpus] == ["node-9", "node-10"]


def test_run_with_only_missing_samples_shows_their_reason(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    write_samples(run, "node-0", [HardwareSample(unix_ns=START_NS, missing="the exporter does not answer")])
    assert "node-0: the exporter does not answer" in str(DiskRuns(run).part("run-1", "hardware").index.why_none)


def test_metrics_missing_from_a_mig_device_come_from_its_gpu(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run")
    file = rank_dir(run, 0, 1) / "rank.json"
    info = msgspec.json.decode(file.read_bytes(), type=RankInfo)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(info, gpu_uuid="GPU-part")))
    parts = [
        HardwareSample(unix_ns=START_NS + step * STEP_NS, gpu_uuid="MIG-part", parent_uuid=uuid(9), memory_used_bytes=2**30)
        for step in range(60)
    ]
    gpu = [sample(9, step, temperature_celsius=66, memory_used_bytes=2**33) for step in range(60)]
    write_samples(run, "node-0", parts, gpu)
    source = DiskRuns(run)
    steps = source.part("run-1", "steps")
    assert np.nanmax(steps.part("temperature_celsius").values[1]) == 66
    assert np.nanmax(steps.part("memory_used_bytes").values[1]) == 2**30


def in_memory(rows: Any) -> Hardware:
    gpu = SampledGpu(gpu_uuid="GPU-1", host="a", samples=len(rows))
    return Hardware(HardwareIndex([gpu]), lambda _gpu: rows)


@given(st.lists(st.floats(0, 1000, width=32) | st.just(float("nan")), min_size=1, max_size=300), st.integers(2, 60))
def test_downsampled_series_keeps_minimum_and_maximum(values: list[float], most: int) -> None:
    series = in_memory(rows_of(list(range(len(values))), power_watts=values)).series("GPU-1", most_points=most)
    result = series.values["power_watts"]
    assert len(result) == len(series.unix_ns) <= max(most, 2)
    assert (np.diff(series.unix_ns) >= 0).all()
    value = np.array(values)[np.isfinite(values)]
    if len(value):
        assert (np.nanmin(result), np.nanmax(result)) == (value.min(), value.max())
    else:
        assert np.isnan(result).all()
    if series.samples_per_pair == 1:
        np.testing.assert_array_equal(result, values)


def test_short_part_of_a_series_keeps_every_sample() -> None:
    hardware = in_memory(rows_of(list(range(10_000)), power_watts=list(range(10_000))))
    part = hardware.series("GPU-1", since_unix_ns=100, until_unix_ns=199)
    np.testing.assert_array_equal(part.values["power_watts"], range(100, 200))
    all_of_it = hardware.series("GPU-1")
    assert len(all_of_it.unix_ns) <= 2_000
    assert all_of_it.samples_per_pair == 10
    assert list(all_of_it.values["power_watts"][:4]) == [0, 9, 10, 19], "rising within the samples of each two"


def test_samples_added_in_parts_equal_samples_added_at_once(tmp_path: Path) -> None:
    samples = [sample(0, step, power_watts=float(step % 7), xid_errors=step // 20) for step in range(50)]
    once, parts = SampleWriter(tmp_path / "once"), SampleWriter(tmp_path / "parts")
    once.add("node-0", samples)
    for first in range(0, 50, 11):
        parts.add("node-0", samples[first : first + 11])
    for item in (once, parts):
        item.publish({}, {})
    assert (tmp_path / "once" / "hardware.json").read_bytes() == (tmp_path / "parts" / "hardware.json").read_bytes()
    assert (tmp_path / "once" / "events.json").read_bytes() == (tmp_path / "parts" / "events.json").read_bytes()
    at_once, in_parts = (read_hardware(tmp_path / name).series(uuid(0)).values["power_watts"] for name in ("once", "parts"))
    np.testing.assert_array_equal(at_once, in_parts)
    assert len(at_once) == 50


def test_followed_run_has_the_same_data_as_a_finished_run(tmp_path: Path, write_run: WriteRun) -> None:
    """The following process updates twice: before and after steps and samples are added."""
    run = write_run(tmp_path / "run", steps=60, finished=False)
    files = [steps_file(run, rank) for rank in range(4)]
    contents = [file.read_bytes() for file in files]
    for file in files:
        keep_rows(file, 30)
    write_samples(run, "node-0", [sample(0, step, temperature_celsius=40 + step, throttle_reasons=[]) for step in range(30)])
    derived = DerivedData(tmp_path / "live")
    derived.folder.mkdir()
    followed = FollowerState(run, derived.folder)
    followed.update()
    before = derived.version
    assert derived.part("steps").part("temperature_celsius").values[0, 29] == 69
    assert "idle_us" in derived.part("steps").metrics
    for file, data in zip(files, contents, strict=True):
        file.write_bytes(data)
    more = [sample(0, step, temperature_celsius=90, throttle_reasons=["hw_thermal"]) for step in range(30, 60)]
    with next(host_dir(run, "node-0").glob("gpu-*.jsonl")).open("ab") as added:
        added.writelines(msgspec.json.encode(item) + b"\n" for item in more)
    followed.update()
    assert derived.version != before

    at_once = DiskRuns(run)
    theirs = at_once.part("run-1", "steps")
    assert set(derived.part("steps").metrics) == set(theirs.metrics)
    for metric in theirs.metrics:
        np.testing.assert_array_equal(derived.part("steps").part(metric).values, theirs.part(metric).values, err_msg=metric)
    assert derived.part("events") == at_once.part("run-1", "events")
    assert [(event.kind, event.step, event.until_step) for event in derived.part("events").events] == [("hw_thermal", 30, 59)]
    assert derived.part("hardware").index == at_once.part("run-1", "hardware").index
    assert derived.part("topology") == at_once.part("run-1", "topology")


def test_replaced_samples_of_a_live_run_are_read_again(tmp_path: Path, write_run: WriteRun) -> None:
    run = write_run(tmp_path / "run", steps=40, finished=False)
    write_samples(run, "node-0", [sample(0, step, temperature_celsius=40 + step) for step in range(30)])
    derived = DerivedData(tmp_path / "live")
    derived.folder.mkdir()
    followed = FollowerState(run, derived.folder)
    followed.update()
    assert [gpu.samples for gpu in derived.part("hardware").gpus] == [30]
    file = next(host_dir(run, "node-0").glob("gpu-*.jsonl"))
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:10]))
    followed.update()
    assert [gpu.samples for gpu in derived.part("hardware").gpus] == [10]

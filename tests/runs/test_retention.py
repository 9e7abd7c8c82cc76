"""Retention: the oldest records go, they are counted, and everybody who reads is told."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest

from rankscope.analysis.engine import analyze
from rankscope.cli.size import SIZE
from rankscope.profiler.handover import Hello
from rankscope.profiler.helper.store import RETAINED, RETAINED_TRACES, RunStore
from rankscope.profiler.settings import RecorderSettings, from_environment
from rankscope.runs.compact import compact_run
from rankscope.runs.paths import RANK_STREAMS, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import AttemptInfo, KernelRecord, PhaseTimes, RankInfo, RunInfo, StepRecord
from rankscope.runs.writer import JsonLinesWriter


def step(number: int) -> StepRecord:
    times = PhaseTimes(forward=400.0, backward=600.0)
    return StepRecord(step=number, start_unix_ns=10**18 + number, wall_us=1000.0, phases_us=times, blocked_us=PhaseTimes())


def jsonl_bytes(folder: Path, stream: str = "") -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{stream}*.jsonl"))


def test_the_oldest_segments_go_and_what_is_left_stays_within_bounds(tmp_path: Path) -> None:
    writer = JsonLinesWriter(tmp_path, "steps", retain_bytes=20_000)
    sizes = []
    for number in range(1000):
        writer.append(step(number))
        sizes.append(jsonl_bytes(tmp_path))
    writer.close()
    assert 10_000 < sizes[-1] <= 20_000
    assert max(sizes) <= 20_000 + 500
    kept = [msgspec.json.decode(line)["step"] for path in sorted(tmp_path.iterdir()) for line in path.read_bytes().splitlines()]
    # None is missing in the middle, and every one is kept or counted.
    assert kept == list(range(writer.expired, 1000))


def test_without_a_bound_everything_stays(tmp_path: Path) -> None:
    writer = JsonLinesWriter(tmp_path, "steps", segment_bytes=1000)
    for number in range(200):
        writer.append(step(number))
    writer.close()
    assert writer.expired == 0
    assert len(list(tmp_path.iterdir())) > 20


def test_segments_of_another_writer_and_other_files_are_told_apart(tmp_path: Path) -> None:
    first = JsonLinesWriter(tmp_path, "steps", segment_bytes=2000)
    for number in range(100):
        first.append(step(number))
    first.close()
    others = [tmp_path / "steps-notes.jsonl", tmp_path / "windows-000000.jsonl", tmp_path / "rank.json"]
    for path in others:
        path.write_bytes(b"x" * 50_000)
    second = JsonLinesWriter(tmp_path, "steps", retain_bytes=8_000)
    second.append(step(100))
    assert 0 < second.expired < 101
    second.close()
    assert all(path.exists() for path in others)


def hello(run: Path, retain_bytes: int | None) -> Hello:
    return Hello(
        settings=RecorderSettings(run_dir=str(run), run_id="r", name="test", start_unix_ns=1, retain_bytes=retain_bytes),
        run=RunInfo(run_id="r", name="test", start_unix_ns=1),
        attempt=AttemptInfo(attempt=0, start_unix_ns=1, world_size=1),
        rank=RankInfo(rank=0, world_size=1, host="h", pid=1, start_unix_ns=1),
    )


def kernel(number: int) -> KernelRecord:
    return KernelRecord(step=number, name="k" * 100, kind="compute", total_us=1.0, calls=1)


def test_every_stream_has_its_share_and_steps_most_of_it(tmp_path: Path) -> None:
    assert set(RETAINED) == set(RANK_STREAMS)
    assert sum(RETAINED.values()) + RETAINED_TRACES == 1
    assert RETAINED["steps"] >= 0.5


def test_what_expired_is_in_the_record_of_the_rank_and_in_the_analysis(tmp_path: Path) -> None:
    # given a rank that recorded more than it may keep
    run = tmp_path / "run"
    store = RunStore(hello(run, 80_000))
    for first in range(0, 1000, 20):
        store.add("steps", *map(step, range(first, first + 20)))
        store.add("kernels", *map(kernel, range(first, first + 20)))
        assert store.flush(now=True)
    # when it is still running
    reader = RunReader(run)
    info = reader.rank(0, 0)
    kept = [row.step for row in reader.steps(0, 0)]
    # then the count is there, and that of what is left fits
    assert info is not None
    assert info.end_reason is None
    assert info.expired_records == store.expired
    assert kept == list(range(info.expired_records["steps"], 1000))
    assert len(list(reader.kernels(0, 0))) == 1000 - info.expired_records["kernels"]
    # and another helper that goes on where this one was killed counts on, with the end of the rank too
    again = RunStore(hello(run, 80_000))
    again.add("steps", *map(step, range(1000, 2000)))
    assert again.flush(now=True)
    assert again.write_rank(msgspec.structs.replace(hello(run, None).rank, end_unix_ns=2, end_reason="exit"))
    again.close()
    store.close()
    info = RunReader(run).rank(0, 0)
    assert info is not None
    assert info.end_reason == "exit"
    kept = [row.step for row in RunReader(run).steps(0, 0)]
    assert info.expired_records["steps"] == 2000 - len(kept)
    # and who reads the analysis is told
    (warning,) = (text for text in analyze([run]).source.warnings if "retention" in text)
    assert f"all steps before {kept[0]};" in warning
    assert f"{info.expired_records['steps']:,} of steps" in warning
    # so is who compacts what is left
    before = analyze([run])
    compact_run(run)
    assert analyze([run]) == before
    assert jsonl_bytes(rank_dir(run, 0, 0)) == 0


@pytest.mark.parametrize("retain", [None, 5_000_000])
def test_the_bound_travels_to_the_ranks(retain: int | None) -> None:
    settings = hello(Path("/run"), retain).settings
    assert from_environment(settings.environment()) == settings


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("4 g", 2**32), ("500MB", 500_000_000), ("1.5GiB", 3 * 2**29), ("2097152", 2**21), ("all", None)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int | None) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "0", "1kB", "-5GiB", "many", "4 elephants", "9" * 15 + "TiB", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        SIZE.convert(text, None, None)

"""Retention: the oldest records are removed, they are counted, and readers report the count."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest
from tests.profiler.handovers import handover_of

from rankscope.analysis.engine import analyze
from rankscope.base.options import Size
from rankscope.profiler.helper.writing.store import RETAINED, RETAINED_TRACES, RunStore
from rankscope.profiler.settings import from_environment
from rankscope.runs.paths import RANK_STREAMS, Stream
from rankscope.runs.reader import RunReader
from rankscope.runs.records import KernelRecord, PhaseTimes, StepRecord
from rankscope.runs.segment_writer import SEGMENT_BYTES, JsonLinesWriter, RowWriter, SegmentWriter
from rankscope.runs.step_columns import HEADER_BYTES, ROW_BYTES
from rankscope.runs.step_segments import Segment


def step(number: int) -> StepRecord:
    times = PhaseTimes(forward=400.0, backward=600.0)
    return StepRecord(step=number, start_unix_ns=10**18 + number, wall_us=1000.0, phases_us=times, blocked_us=PhaseTimes())


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def writer_of(folder: Path, stream: Stream, *, segment_bytes: int = SEGMENT_BYTES, retain: int | None = None) -> SegmentWriter:
    if stream == "steps":
        return RowWriter(folder, rank=0, attempt=0, segment_bytes=segment_bytes, retain_bytes=retain)
    return JsonLinesWriter(folder, stream, segment_bytes=segment_bytes, retain_bytes=retain)


def numbers_in(segment: Path) -> list[int]:
    if segment.suffix == ".npy":
        return [number for rows in Segment(segment).read() for number in rows["step"].tolist()]
    return [msgspec.json.decode(line)["step"] for line in segment.read_bytes().splitlines()]


@pytest.mark.parametrize("stream", ["steps", "kernels"])
def test_oldest_segments_expire_and_the_size_stays_within_the_bound(tmp_path: Path, stream: Stream) -> None:
    bound = 80_000
    writer = writer_of(tmp_path, stream, retain=bound)
    sizes = []
    for number in range(1000):
        writer.append(step(number) if stream == "steps" else kernel(number))
        sizes.append(size_of(tmp_path))
    writer.close()
    assert bound / 2 < sizes[-1] <= bound
    assert max(sizes) <= bound + HEADER_BYTES + 2 * ROW_BYTES
    kept = [number for path in sorted(tmp_path.iterdir()) for number in numbers_in(path)]
    # There is no gap, and every record is kept or counted.
    assert kept == list(range(writer.expired, 1000))


def test_nothing_expires_without_a_bound(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, "steps", segment_bytes=1000)
    for number in range(200):
        writer.append(step(number))
    writer.close()
    assert writer.expired == 0
    assert len(list(tmp_path.iterdir())) > 20


def test_segments_of_an_earlier_writer_expire_and_other_files_are_kept(tmp_path: Path) -> None:
    first = writer_of(tmp_path, "steps", segment_bytes=4000)
    for number in range(100):
        first.append(step(number))
    first.close()
    others = [tmp_path / "steps-notes.npy", tmp_path / "steps-000000.jsonl", tmp_path / "rank.json"]
    for path in others:
        path.write_bytes(b"x" * 50_000)
    second = writer_of(tmp_path, "steps", retain=16_000)
    second.append(step(100))
    assert 0 < second.expired < 101
    second.close()
    assert all(path.exists() for path in others)


def kernel(number: int) -> KernelRecord:
    return KernelRecord(step=number, name="k" * 100, kind="compute", total_us=1.0, calls=1)


def test_every_stream_has_a_share_and_steps_have_most(tmp_path: Path) -> None:
    assert set(RETAINED) == set(RANK_STREAMS)
    assert sum(RETAINED.values()) + RETAINED_TRACES == 1
    assert RETAINED["steps"] >= 0.5


def test_expired_records_are_counted_in_rank_json_and_in_the_analysis(tmp_path: Path) -> None:
    # given a rank that recorded more than it may keep
    run = tmp_path / "run"
    store = RunStore(handover_of(run, settings={"retain_bytes": 80_000}))
    for first in range(0, 1000, 20):
        for number in range(first, first + 20):
            store.add_step(step(number))
        store.add("kernels", *map(kernel, range(first, first + 20)))
        assert store.flush(now=True)
    # when it is still running
    reader = RunReader(run)
    info = reader.rank(0, 0)
    kept = [row.step for row in reader.steps(0, 0)]
    # then the count is there, and it matches the remaining records
    assert info is not None
    assert info.end_reason is None
    assert info.expired_records == store.expired
    assert kept == list(range(info.expired_records["steps"], 1000))
    assert len(list(reader.kernels(0, 0))) == 1000 - info.expired_records["kernels"]
    # and a helper that replaces a killed one continues its count, including at the end of the rank
    again = RunStore(handover_of(run, settings={"retain_bytes": 80_000}))
    for number in range(1000, 2000):
        again.add_step(step(number))
    assert again.flush(now=True)
    assert again.write_rank(msgspec.structs.replace(handover_of(run).rank, end_unix_ns=2, end_reason="exit"))
    again.close()
    store.close()
    info = RunReader(run).rank(0, 0)
    assert info is not None
    assert info.end_reason == "exit"
    kept = [row.step for row in RunReader(run).steps(0, 0)]
    assert info.expired_records["steps"] == 2000 - len(kept)
    # and the analysis reports it
    (warning,) = (text for text in analyze([run]).source.warnings if "retention" in text)
    assert f"all steps before {kept[0]};" in warning
    assert f"{info.expired_records['steps']:,} of steps" in warning


@pytest.mark.parametrize("retain", [None, 5_000_000])
def test_retention_bound_is_passed_to_the_ranks(retain: int | None) -> None:
    settings = handover_of(Path("/run"), settings={"retain_bytes": retain}).settings
    assert from_environment(settings.environment()) == settings


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("4 g", 2**32), ("500MB", 500_000_000), ("1.5GiB", 3 * 2**29), ("2097152", 2**21), ("all", None)],
)
def test_human_readable_sizes_are_parsed(text: str, size: int | None) -> None:
    assert Size(or_all=True).convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "0", "1kB", "-5GiB", "many", "4 elephants", "9" * 15 + "TiB", "nan"])
def test_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size(or_all=True).convert(text, None, None)

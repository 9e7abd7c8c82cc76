"""Flight Recorder dumps as files: their ranks and attempts, and hostile dumps, which must do no harm."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.dumped_job import DumpedJob
from tests.flight_dump_files import START_NS, write

from rankscope.analysis.hang import files as hang_files
from rankscope.analysis.hang import pickles
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.analysis.hang.files import read_dump
from rankscope.analysis.hang.flight_records import parse
from rankscope.analysis.hang.pickles import PickleError, load_plain
from rankscope.base.errors import InputError
from rankscope.runs.paths import flight_dir
from rankscope.runs.records import AttemptInfo, RunInfo
from rankscope.runs.small_files import create_attempt, create_run

WORLD = {"0": (0, 1, 2, 3)}


def test_oversized_dump_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_files, "MAX_BYTES", 100)
    (tmp_path / "dump_0").write_bytes(b"\x80" * 101)
    with pytest.raises(InputError, match="no dump is that large"):
        read_dump(tmp_path / "dump_0")
    monkeypatch.setattr(pickles, "MAX_BYTES", 5)
    with pytest.raises(PickleError, match="no dump is that large"):
        load_plain(b"\x80\x02NNNN.")


def test_groups_that_share_a_long_rank_list_are_bounded() -> None:
    # Given ten thousand groups of 200,000 ranks each, in a file of a few megabytes
    ranks = str(list(range(200_000)))
    config = {str(number): {"name": str(number), "desc": "", "ranks": ranks} for number in range(10_000)}
    dump = parse({"version": "2", "entries": [], "pg_config": config})
    assert dump is not None
    assert 1 <= len(dump.configs) <= 10


@pytest.mark.parametrize(
    "kind", ["missing", "empty folder", "text", "JSON of something else", "a FIFO", "no rank", "a dump of nothing"]
)
def test_file_that_is_no_dump_is_a_clear_error(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("notes" if kind == "no rank" else "dump_0")
    match kind:
        case "text" | "no rank":
            path.write_text("hello")
        case "JSON of something else":
            path.write_text('{"traceEvents": []}')
        case "a FIFO":
            os.mkfifo(path)
        case "empty folder":
            path.mkdir()
        case "a dump of nothing":
            path.write_bytes(pickle.dumps({}, 2))
    with pytest.raises(InputError) as error:
        analyze_hang([path])
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["nothing", "dump_3"])
def test_missing_path_is_reported_as_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}: no such file or folder"):
        analyze_hang([tmp_path / name])


def test_path_that_is_not_utf_8_can_be_reported(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    write(folder, DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps())
    (folder / "dump_1").write_bytes(b"")
    report = analyze_hang([folder])
    assert report.culprits == [2]
    assert msgspec.json.encode(report)


def test_bad_dump_among_many_is_named_and_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps())
    (folder / "dump_1").write_bytes(b"\x80\x02cos\nsystem\n(tR.")
    (folder / "job_0.log").write_text("not a dump, and not taken for one")
    for paths in ([folder], sorted(folder.glob("dump_*")), [folder / "dump_*"]):
        report = analyze_hang(paths)
        assert (report.culprits, report.coverage, report.ranks) == ([2], 0.75, 3)
        assert [warning for warning in report.warnings if "dump_1" in warning and "refused" in warning]


def test_newest_of_two_dumps_of_a_rank_is_read_and_the_other_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps(), waited_s=211)
    old = write(tmp_path / "old", DumpedJob.of_events(WORLD, ["0"] * 5).dumps(), waited_s=60) / "dump_2"
    report = analyze_hang([old, folder])
    assert report.culprits == [2]
    assert [warning for warning in report.warnings if str(old) in warning]


def recorded_run(folder: Path, size: int = 4) -> Path:
    create_run(folder, RunInfo(run_id="r1", name="test", start_unix_ns=START_NS))
    create_attempt(folder, AttemptInfo(attempt=0, start_unix_ns=START_NS, world_size=size))
    return folder


def keep(run: Path, dumps: dict[int, dict[str, Any]], occasion: str, waited_s: float, backend: str = "nccl") -> None:
    flight = flight_dir(run, 0)
    flight.mkdir(exist_ok=True)
    for rank, dump in dumps.items():
        path = flight / f"rank-{rank:05d}-{occasion}-{backend}.pickle"
        path.write_bytes(pickle.dumps(dump, 2))
        taken = START_NS + int(waited_s * 1e9)
        os.utime(path, ns=(taken, taken))


def test_newest_set_of_dumps_of_a_run_is_read(tmp_path: Path) -> None:
    # Given a dump of a healthy job, one of a job whose rank 2 was late, and none of rank 2 when the watchdogs ended the others
    run = recorded_run(tmp_path / "run")
    well, late = DumpedJob.of_events(WORLD, ["0"] * 5), DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3})
    keep(run, well.dumps(), "1790000000000000001-aaaaaaaa", 10)
    keep(run, late.dumps(), "1790000000000000002-aaaaaaaa", 60)
    report = analyze_hang([run])
    assert (report.culprits, report.attempt, report.coverage) == ([2], 0, 1.0)
    assert report.waiting[0].waited_s == pytest.approx(60, abs=0.1)
    assert [warning for warning in report.warnings if "2 occasions" in warning]
    assert analyze_hang([flight_dir(run, 0)]).culprits == [2]
    at_the_end = {rank: dump for rank, dump in late.dumps().items() if rank != 2}
    keep(run, at_the_end, "watchdog", 700)
    report = analyze_hang([run])
    assert (report.cause, report.culprits, report.coverage) == ("no_dump", [2], 0.75)


def test_dumps_of_two_backends_of_a_rank_are_combined(tmp_path: Path) -> None:
    # Given a job that trains with NCCL and also uses gloo, in which rank 1 is late
    run = recorded_run(tmp_path / "run", 2)
    both = {"0": (0, 1)}
    by_key = {"0": "default_pg"}
    request = "1790000000000000001-aaaaaaaa"
    keep(run, DumpedJob.of_events(both, ["0"] * 5, descriptions=by_key).dumps(), request, 60)
    keep(
        run, DumpedJob.of_events(both, ["0"] * 5, descriptions=by_key, backend="gloo", stops={1: 2}).dumps(), request, 60, "gloo"
    )
    report = analyze_hang([run])
    assert (report.culprits, report.group.backend if report.group else None) == ([1], "gloo")


def test_error_for_a_run_without_dumps_names_the_capture_command(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    with pytest.raises(InputError, match="capture RUN --flight-recorder"):
        analyze_hang([run])
    with pytest.raises(InputError, match="a run beside other paths"):
        analyze_hang([run, tmp_path])
    with pytest.raises(InputError, match="a folder of runs"):
        analyze_hang([tmp_path])


def test_damaged_json_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "dump_0.json"
    text = json.dumps({"version": "2.10", "entries": [], "pg_config": {}})
    for bad in (text[:-1], text.replace("2.10", "\\ud800"), "{" * 10_000, '{"version": 1, "entries": ' + "[" * 5000):
        path.write_text(bad)
        with pytest.raises(InputError):
            read_dump(path)


def test_dumps_of_an_attempt_are_read_by_its_folder(tmp_path: Path) -> None:
    # given a run whose first attempt hung, and whose second left no dumps
    run = recorded_run(tmp_path / "run")
    keep(run, DumpedJob.of_events(WORLD, ["0"] * 5, stops={1: 3}).dumps(), "watchdog", 60)
    create_attempt(run, AttemptInfo(attempt=1, start_unix_ns=START_NS, world_size=4))
    report = analyze_hang([run / "attempts" / "000"])
    assert (report.attempt, report.culprits) == (0, [1])
    assert not any("attempt" in warning for warning in report.warnings)
    with pytest.raises(InputError, match=r"attempts/001: no Flight Recorder dumps"):
        analyze_hang([run / "attempts" / "001"])
    with pytest.raises(InputError, match="no such attempt"):
        analyze_hang([run / "attempts" / "002"])


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("version", ["2.11", "2.99", "3.0", "10"])
def test_newer_dump_version_is_read_with_one_warning(tmp_path: Path, version: str, form: str) -> None:
    job = DumpedJob.of_events({"0": range(4)}, ["0"] * 3, stops={2: 2})
    dumps = {rank: {**dump, "version": version, "later": [1]} for rank, dump in job.dumps().items()}
    report = analyze_hang([write(tmp_path / "dumps", dumps, form=form)])
    assert report.culprits == [2]
    [warning] = report.warnings
    assert version in warning
    assert "2.10" in warning


@pytest.mark.parametrize("version", ["2.10", "2.4", "2.0", "1.5", "", "next", 3, None])
def test_known_or_missing_dump_version_gives_no_warning(tmp_path: Path, version: object) -> None:
    job = DumpedJob.of_events({"0": range(4)}, ["0"] * 3, stops={2: 2})
    dumps = {rank: {**dump, "version": version} for rank, dump in job.dumps().items()}
    assert analyze_hang([write(tmp_path / "dumps", dumps)]).warnings == []


@pytest.mark.parametrize("change", [{"entries": [{"id": 1}]}, {"entries": {"0": []}}, {"entries": None, "pg_config": None}])
def test_unreadable_newer_dump_version_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    dump = DumpedJob.of_events({"0": range(2)}, ["0"]).dumps()[0]
    document = {key: value for key, value in {**dump, "version": "3.0", **change}.items() if value is not None}
    with pytest.raises(InputError, match=r"version 3\.0.*2\.10"):
        analyze_hang([write(tmp_path / "dumps", {0: document})])

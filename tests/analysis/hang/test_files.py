"""Flight Recorder dumps as files: their ranks and attempts, and hostile dumps, which must do no harm."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flight_dumps import START_NS, Job, write

from rankscope.analysis.hang import files as hang_files
from rankscope.analysis.hang import pickles
from rankscope.analysis.hang.diagnosis import analyze_hang, diagnose
from rankscope.analysis.hang.files import LoadedDumps, read_dump
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.hang.hang_terminal import render_text
from rankscope.analysis.hang.pickles import PickleError, load_plain
from rankscope.analysis.hang.records import parse
from rankscope.base.errors import InputError
from rankscope.runs.paths import flight_dir
from rankscope.runs.records import AttemptInfo, RunInfo
from rankscope.runs.small_files import create_attempt, create_run

WORLD = {"0": (0, 1, 2, 3)}

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain, st.integers(2, 5))
def test_plain_data_is_read_as_python_reads_it(data: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(data, protocol)) == data


def test_real_dumps_are_read_as_python_reads_them(shared_data: Path) -> None:
    paths = sorted((shared_data / "flight_recorder").glob("*/_dump_*"))
    assert len(paths) == 32
    for path in paths:
        data = path.read_bytes()
        assert load_plain(data) == pickle.loads(data)


class Calls:
    """Object whose pickle calls a function when loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def inside(thing: Any) -> Any:
    """Return a dump that contains ``thing``."""
    return {"version": "2.9", "pg_config": {}, "entries": [{"record_id": thing}]}


MARK = "hang-test-was-here"
SHORT = struct.pack("<I", 3)

HOSTILE: dict[str, bytes] = {
    **{
        f"{name}, protocol {protocol}": pickle.dumps(inside(Calls(*call)), protocol)
        for name, call in {
            "os.system": (os.system, f"touch {MARK}"),
            "eval": (builtins.eval, f"open({MARK!r}, 'w')"),
            "exec": (builtins.exec, f"open({MARK!r}, 'w')"),
            "import": (builtins.__import__, "antigravity"),
            "a path": (Path, "/etc"),
            "getattr": (getattr, "", "join"),
        }.items()
        for protocol in (2, 4, 5)
    },
    "a call of nothing": b"\x80\x02cos\nsystem\n(tR.",
    "a class": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "an instance": b"\x80\x02(ios\nsystem\n.",
    "an object": b"\x80\x02(cos\nsystem\no.",
    "a state": b"\x80\x02}}b.",
    "persistent ids in each other": b"\x80\x02N" + b"Q" * 1000 + b".",
    "a persistent id": b"\x80\x02Pfile\n.",
    "extensions": b"\x80\x02\x82\x01.",
    "global by stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "a memo of four billion": b"\x80\x02Nr\xff\xff\xff\xffj\xfe\xff\xff\xff.",
    "a string of four gigabytes": b"\x80\x02X\xff\xff\xff\xff.",
    "a string of more than there is": b"\x80\x04\x8d" + b"\xff" * 8,
    "bytes of more than there is": b"\x80\x04\x8e" + b"\xff" * 8,
    "a bytearray of more than there is": b"\x80\x05\x96" + b"\xff" * 7 + b"\x0f",
    "a frame of more than there is": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "a buffer from elsewhere": b"\x80\x05\x97.",
    "a number of two gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "a number as text": b"\x80\x02L" + b"9" * 100_000 + b"L\n.",
    "marks alone": b"\x80\x02" + b"(" * 100_000,
    "an empty stack": b"\x80\x02.",
    "a mark that is not there": b"\x80\x02]e.",
    "items of no dictionary": b"\x80\x02](NNu.",
    "a list as a key": b"\x80\x02}(]Nu.",
    "an odd number of items": b"\x80\x02}(X" + SHORT + b"abcu.",
    "a tuple as a key": b"\x80\x02})Ns.",
    "appended to a string": b"\x80\x02X" + SHORT + b"abc" + b"Na.",
    "an unmatched memo": b"\x80\x02h\x05.",
    "a set": pickle.dumps({1, 2}, 4),
    "bytes": pickle.dumps(b"abc", 4),
    "protocol 0": pickle.dumps({"version": "2"}, 0),
    "nothing": b"\x80",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_runs_nothing_and_is_one_clear_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump_0"
    path.write_bytes(HOSTILE[name])
    modules = set(sys.modules)
    with pytest.raises(InputError) as error:
        read_dump(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    # no code was run, nothing was imported
    assert list(tmp_path.iterdir()) == [path]
    assert "antigravity" not in set(sys.modules) - modules


def test_what_a_pickle_would_run_is_named() -> None:
    with pytest.raises(PickleError, match=r"REDUCE|GLOBAL"):
        load_plain(pickle.dumps(Calls(os.system, "true"), 4))


@pytest.mark.parametrize("data", [{1: None}, {(): 1}, {"1": 1, 2: 2}, {None: {}, "a": 1}], ids=repr)
def test_keys_other_than_strings_are_refused(data: Any) -> None:
    with pytest.raises(PickleError, match="damaged"):
        load_plain(pickle.dumps(data, 2))


def test_a_string_that_is_not_utf_8_is_read() -> None:
    data = b"\x80\x02X" + SHORT + b"a\xffb."
    assert load_plain(data) == "a\N{REPLACEMENT CHARACTER}b"


def test_a_dump_that_ends_early_is_an_error_wherever_it_ends() -> None:
    data = pickle.dumps(Job.of_events({"0": (0, 1)}, ["0"], stops={1: 0}).dumps()[0], 2)
    for length in range(len(data)):
        with pytest.raises(PickleError, match="ends early"):
            load_plain(data[:length])
    assert parse(load_plain(data)) is not None


@given(st.data())
def test_a_dump_with_any_bytes_changed_is_read_or_an_error(data: st.DataObject) -> None:
    document = pickle.dumps(Job.of_events({"0": (0, 1)}, ["0", "0"], stops={1: 1}).dumps()[0], 2)
    changed = bytearray(document)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse(load_plain(bytes(changed)))
    except PickleError:
        return
    assert parsed is None or parsed.damaged <= 2


@given(plain, st.sampled_from(["entries", "pg_config", "pg_status", "version"]), st.data())
def test_a_dump_with_anything_in_the_place_of_anything_is_read_or_none(thing: Any, place: str, data: st.DataObject) -> None:
    document = Job.of_events({"0": (0, 1)}, ["0", "0"], stops={1: 1}).dumps()[0]
    if place == "entries" and data.draw(st.booleans()):
        document["entries"][0][data.draw(st.sampled_from(sorted(document["entries"][0])))] = thing
    else:
        document[place] = thing
    dump = parse(document)
    if dump is None:
        return
    for record in dump.records:
        assert isinstance(record.elements("input"), int)
        assert all(isinstance(frame, str) for frame in record.frames())
    other = parse(Job.of_events({"0": (0, 1)}, ["0", "0"], stops={1: 1}).dumps()[1])
    assert other is not None
    report = diagnose(LoadedDumps("dumps", ranks={0: [dump], 1: [other]}))
    assert msgspec.json.decode(msgspec.json.encode(report), type=HangReport) == report
    assert render_text(report)


BOMBS = """
import resource, sys, time
from pathlib import Path
from rankscope.analysis.hang.files import read_dump
from rankscope.base.errors import InputError
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
MANY = 1_700_000
ref = b"\\x80\\x02}(X\\x07\\x00\\x00\\x00versionX\\x01\\x00\\x00\\x002X\\x07\\x00\\x00\\x00entries]q\\x00("
bombs = {
    "lists": b"\\x80\\x02" + b"]" * MANY,
    "nested tuples": b"\\x80\\x02)" + b"\\x85" * MANY,
    "a deep key": b"\\x80\\x02})" + b"\\x85" * 1_000_000 + b"Ns.",
    "memo": b"\\x80\\x02Nr\\xff\\xff\\xff\\xff0.",
    "frame": b"\\x80\\x04\\x95" + b"\\xff" * 7 + b"\\x0f.",
    "numbers": b"\\x80\\x02" + b"N" * 12_100_000,
    "memoized": b"\\x80\\x02N" + b"\\x94" * 20_000_000,
    "references": ref + b"h\\x00" * (MANY // 3) + b"eu.",
    "json lists": b'{"version": 2, "entries": [' + b"[]," * MANY + b"0]}",
    "json depth": b'{"version": 2, "entries": ' + b"[" * 1_000_000,
}
path = Path(sys.argv[1])
for name in sys.argv[2:]:
    path.write_bytes(bombs[name])
    try:
        read_dump(path)
        print(name, "read")
    except InputError as error:
        print(name, "refused")
# ru_maxrss would be that of the process that started this one, if it had more.
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["lists", "json depth", "a deep key", "memo", "frame"], id="few"),
        pytest.param(
            ["nested tuples", "numbers", "memoized", "references", "json lists"], id="the others", marks=pytest.mark.full
        ),
    ],
)
def test_bombs_are_refused_within_bounds_of_memory(tmp_path: Path, names: list[str]) -> None:
    command = [sys.executable, "-c", BOMBS, str(tmp_path / "dump_0"), *names]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    *text, most = completed.stdout.split("\n")[:-1]
    assert (completed.returncode, completed.stderr) == (0, "")
    assert text == [f"{name} refused" for name in names]
    assert int(most) < 1024


def test_what_is_too_large_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_files, "MAX_BYTES", 100)
    (tmp_path / "dump_0").write_bytes(b"\x80" * 101)
    with pytest.raises(InputError, match="no dump is that large"):
        read_dump(tmp_path / "dump_0")
    monkeypatch.setattr(pickles, "MAX_BYTES", 5)
    with pytest.raises(PickleError, match="no dump is that large"):
        load_plain(b"\x80\x02NNNN.")


def test_groups_that_share_a_long_list_of_ranks_cost_no_more_than_it() -> None:
    # Given ten thousand groups of 200,000 ranks each, in a file of a few megabytes
    ranks = str(list(range(200_000)))
    config = {str(number): {"name": str(number), "desc": "", "ranks": ranks} for number in range(10_000)}
    dump = parse({"version": "2", "entries": [], "pg_config": config})
    assert dump is not None
    assert 1 <= len(dump.configs) <= 10


@pytest.mark.parametrize(
    "kind", ["missing", "empty folder", "text", "JSON of something else", "a FIFO", "no rank", "a dump of nothing"]
)
def test_what_is_no_dump_is_one_clear_error(kind: str, tmp_path: Path) -> None:
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
def test_what_is_not_there_is_said_to_be_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{name}: no such file or folder"):
        analyze_hang([tmp_path / name])


def test_names_that_are_not_utf_8_can_be_said(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    write(folder, Job.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps())
    (folder / "dump_1").write_bytes(b"")
    report = analyze_hang([folder])
    assert report.culprits == [2]
    assert msgspec.json.encode(report)


def test_a_bad_dump_among_many_is_named_and_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", Job.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps())
    (folder / "dump_1").write_bytes(HOSTILE["os.system, protocol 2"])
    (folder / "job_0.log").write_text("not a dump, and not taken for one")
    for paths in ([folder], sorted(folder.glob("dump_*")), [folder / "dump_*"]):
        report = analyze_hang(paths)
        assert (report.culprits, report.coverage, report.ranks) == ([2], 0.75, 3)
        assert [warning for warning in report.warnings if "dump_1" in warning and "refused" in warning]


def test_of_two_dumps_of_a_rank_the_newest_is_read_and_the_other_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", Job.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps(), waited_s=211)
    old = write(tmp_path / "old", Job.of_events(WORLD, ["0"] * 5).dumps(), waited_s=60) / "dump_2"
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


def test_of_a_run_the_dumps_of_the_newest_occasion_are_read(tmp_path: Path) -> None:
    # Given a dump of a healthy job, one of a job whose rank 2 was late, and none of rank 2 when the watchdogs ended the others
    run = recorded_run(tmp_path / "run")
    well, late = Job.of_events(WORLD, ["0"] * 5), Job.of_events(WORLD, ["0"] * 5, stops={2: 3})
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


def test_dumps_of_two_backends_of_a_rank_are_one(tmp_path: Path) -> None:
    # Given a job that trains with NCCL and also uses gloo, in which rank 1 is late
    run = recorded_run(tmp_path / "run", 2)
    both = {"0": (0, 1)}
    by_key = {"0": "default_pg"}
    request = "1790000000000000001-aaaaaaaa"
    keep(run, Job.of_events(both, ["0"] * 5, descriptions=by_key).dumps(), request, 60)
    keep(run, Job.of_events(both, ["0"] * 5, descriptions=by_key, backend="gloo", stops={1: 2}).dumps(), request, 60, "gloo")
    report = analyze_hang([run])
    assert (report.culprits, report.group.backend if report.group else None) == ([1], "gloo")


def test_a_run_without_dumps_says_how_to_get_them(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    with pytest.raises(InputError, match="capture RUN --flight-recorder"):
        analyze_hang([run])
    with pytest.raises(InputError, match="a run beside other paths"):
        analyze_hang([run, tmp_path])
    with pytest.raises(InputError, match="a folder of runs"):
        analyze_hang([tmp_path])


def test_json_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "dump_0.json"
    text = json.dumps({"version": "2.10", "entries": [], "pg_config": {}})
    for bad in (text[:-1], text.replace("2.10", "\\ud800"), "{" * 10_000, '{"version": 1, "entries": ' + "[" * 5000):
        path.write_text(bad)
        with pytest.raises(InputError):
            read_dump(path)


def test_dumps_of_an_attempt_are_read_by_its_folder(tmp_path: Path) -> None:
    # given a run whose first attempt hung, and whose second left no dumps
    run = recorded_run(tmp_path / "run")
    keep(run, Job.of_events(WORLD, ["0"] * 5, stops={1: 3}).dumps(), "watchdog", 60)
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
def test_dumps_of_a_newer_version_are_read_with_one_warning(tmp_path: Path, version: str, form: str) -> None:
    job = Job.of_events({"0": range(4)}, ["0"] * 3, stops={2: 2})
    dumps = {rank: {**dump, "version": version, "later": [1]} for rank, dump in job.dumps().items()}
    report = analyze_hang([write(tmp_path / "dumps", dumps, form=form)])
    assert report.culprits == [2]
    [warning] = report.warnings
    assert version in warning
    assert "2.10" in warning


@pytest.mark.parametrize("version", ["2.10", "2.4", "2.0", "1.5", "", "next", 3, None])
def test_versions_that_are_known_or_are_none_give_no_warning(tmp_path: Path, version: object) -> None:
    job = Job.of_events({"0": range(4)}, ["0"] * 3, stops={2: 2})
    dumps = {rank: {**dump, "version": version} for rank, dump in job.dumps().items()}
    assert analyze_hang([write(tmp_path / "dumps", dumps)]).warnings == []


@pytest.mark.parametrize("change", [{"entries": [{"id": 1}]}, {"entries": {"0": []}}, {"entries": None, "pg_config": None}])
def test_a_newer_version_that_cannot_be_read_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    dump = Job.of_events({"0": range(2)}, ["0"]).dumps()[0]
    document = {key: value for key, value in {**dump, "version": "3.0", **change}.items() if value is not None}
    with pytest.raises(InputError, match=r"version 3\.0.*2\.10"):
        analyze_hang([write(tmp_path / "dumps", {0: document})])

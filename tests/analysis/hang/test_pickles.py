"""Pickles of dumps: plain data is read as Python reads it, and nothing in a file is ever run."""

from __future__ import annotations

import builtins
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
from tests.dumped_job import DumpedJob

from rankscope.analysis.hang.diagnosis import diagnose
from rankscope.analysis.hang.files import LoadedDumps, read_dump
from rankscope.analysis.hang.flight_records import parse
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.hang.hang_terminal import render_text
from rankscope.analysis.hang.pickles import PickleError, load_plain
from rankscope.base.errors import InputError

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain, st.integers(2, 5))
def test_plain_data_is_read_as_by_pickle(data: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(data, protocol)) == data


def test_real_dumps_are_read_as_by_pickle(shared_data: Path) -> None:
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
def test_hostile_pickle_executes_no_code_and_is_a_clear_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_refused_pickle_opcode_is_named() -> None:
    with pytest.raises(PickleError, match=r"REDUCE|GLOBAL"):
        load_plain(pickle.dumps(Calls(os.system, "true"), 4))


@pytest.mark.parametrize("data", [{1: None}, {(): 1}, {"1": 1, 2: 2}, {None: {}, "a": 1}], ids=repr)
def test_non_string_keys_are_refused(data: Any) -> None:
    with pytest.raises(PickleError, match="damaged"):
        load_plain(pickle.dumps(data, 2))


def test_invalid_utf_8_is_replaced() -> None:
    data = b"\x80\x02X" + SHORT + b"a\xffb."
    assert load_plain(data) == "a\N{REPLACEMENT CHARACTER}b"


def test_truncated_dump_is_an_error_at_every_length() -> None:
    data = pickle.dumps(DumpedJob.of_events({"0": (0, 1)}, ["0"], stops={1: 0}).dumps()[0], 2)
    for length in range(len(data)):
        with pytest.raises(PickleError, match="ends early"):
            load_plain(data[:length])
    assert parse(load_plain(data)) is not None


@given(st.data())
def test_dump_with_changed_bytes_is_read_or_an_error(data: st.DataObject) -> None:
    document = pickle.dumps(DumpedJob.of_events({"0": (0, 1)}, ["0", "0"], stops={1: 1}).dumps()[0], 2)
    changed = bytearray(document)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse(load_plain(bytes(changed)))
    except PickleError:
        return
    assert parsed is None or parsed.damaged <= 2


@given(plain, st.sampled_from(["entries", "pg_config", "pg_status", "version"]), st.data())
def test_dump_with_arbitrary_values_is_read_or_refused(thing: Any, place: str, data: st.DataObject) -> None:
    document = DumpedJob.of_events({"0": (0, 1)}, ["0", "0"], stops={1: 1}).dumps()[0]
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
    other = parse(DumpedJob.of_events({"0": (0, 1)}, ["0", "0"], stops={1: 1}).dumps()[1])
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
def test_pickle_bombs_are_refused_within_bounded_memory(tmp_path: Path, names: list[str]) -> None:
    command = [sys.executable, "-c", BOMBS, str(tmp_path / "dump_0"), *names]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    *text, most = completed.stdout.split("\n")[:-1]
    assert (completed.returncode, completed.stderr) == (0, "")
    assert text == [f"{name} refused" for name in names]
    assert int(most) < 1024

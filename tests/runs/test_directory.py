"""Run directory: records are read back as written, and damage is counted, not fatal."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.full_disk import disk_with_room_for
from tests.profiler.handovers import step
from tests.step_files import append

from rankscope.base.errors import InputError
from rankscope.runs.paths import (
    RANK_STREAMS,
    activity_file,
    attempt_dir,
    control_dir,
    findings_file,
    flight_dir,
    host_dir,
    inspector_dir,
    memory_dir,
    rank_dir,
    ras_dir,
    reports_dir,
    run_file,
    segment,
    verdict_file,
)
from rankscope.runs.reader import RunReader, is_headless_run, is_run
from rankscope.runs.records import PHASES, KernelRecord, PhaseTimes, RankInfo, RunInfo, StepRecord
from rankscope.runs.segment_writer import JsonLinesWriter
from rankscope.runs.segments import BLOCK_BYTES, MAX_LINE_BYTES, decode_blocks, read_blocks
from rankscope.runs.small_files import append_whole, create_run, write_record


def kernel(number: int) -> KernelRecord:
    return KernelRecord(step=number, name="k", kind="compute", total_us=1.0, calls=1)


def test_written_records_are_read_back(run: Path) -> None:
    # given two ranks
    phases = {"phases_us": PhaseTimes(data=10.5, backward=20), "blocked_us": PhaseTimes(backward=5)}
    rows = [msgspec.structs.replace(step(number), samples=4, **phases) for number in range(3)]
    for rank in (0, 1):
        info = RankInfo(rank=rank, world_size=2, host="n1", pid=1, start_unix_ns=1)
        write_record(rank_dir(run, 0, rank) / "rank.json", info)
        append(rank_dir(run, 0, rank), "steps", *rows)
    # when they are read
    reader = RunReader(run)
    # then everything is there
    assert is_run(run)
    assert (reader.info.run_id, reader.attempts(), reader.ranks(0)) == ("r1", [0], [0, 1])
    attempt, written = reader.attempt(0), reader.rank(0, 1)
    assert attempt is not None
    assert attempt.world_size == 2
    assert written is not None
    assert written.host == "n1"
    assert list(reader.steps(0, 1)) == rows
    assert reader.skipped_lines == 0


def test_first_writer_of_run_json_wins(run: Path) -> None:
    assert create_run(run, RunInfo(run_id="other", name="late", start_unix_ns=2)) is False
    assert RunReader(run).info.run_id == "r1"


@pytest.mark.parametrize("links", [True, False])
def test_many_ranks_creating_a_run_agree_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    path = tmp_path / "run"
    created = []
    if not links:
        together = threading.Barrier(16)

        def refuse(*_: object, **__: object) -> None:
            together.wait(20)
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)

    def create(number: int) -> None:
        created.append(create_run(path, RunInfo(run_id=str(number), name="race", start_unix_ns=1)))

    threads = [threading.Thread(target=create, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(created) == 1
    assert RunReader(path).info.name == "race"
    assert [entry.name for entry in path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    "damage",
    [
        b'{"step": 3, "name": "k", "kind":',  # torn: the writer died in the line
        b"not json\n",
        b'{"step": "three"}\n',
        b"\xff\xfe\x00\n",
        b"\n",
    ],
)
def test_damaged_lines_are_skipped_and_counted(run: Path, damage: bytes) -> None:
    append(rank_dir(run, 0, 0), "kernels", kernel(0), kernel(1))
    path = segment(rank_dir(run, 0, 0), "kernels", 0)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(damage)
    reader = RunReader(run)
    assert [row.step for row in reader.kernels(0, 0)] == [0, 1]
    assert reader.skipped == {path: (1, size)}
    assert f"attempts/000/ranks/00000/kernels-000000.jsonl (1, at byte {size})" in reader.damage()


def test_overlong_line_costs_only_itself_and_bounded_memory(run: Path) -> None:
    folder = rank_dir(run, 0, 0)
    folder.mkdir(parents=True)
    path = segment(folder, "kernels", 0)
    good = msgspec.json.encode(kernel(7)) + b"\n"
    path.write_bytes(b"x" * (3 * MAX_LINE_BYTES) + b"\n" + good + b"not json\n" + good)
    reader = RunReader(run)
    assert [row.step for row in reader.kernels(0, 0)] == [7, 7]
    assert reader.skipped == {path: (2, 0)}
    with path.open("rb") as file:
        places = [at for _, damaged in decode_blocks(read_blocks(file), msgspec.json.Decoder(KernelRecord)) for at in damaged]
    assert places == [0, 3 * MAX_LINE_BYTES + 1 + len(good)]


def test_damage_report_names_some_of_many_damaged_files(run: Path) -> None:
    for rank in range(5):
        append(rank_dir(run, 0, rank), "kernels", kernel(0))
        with segment(rank_dir(run, 0, rank), "kernels", 0).open("ab") as file:
            file.write(b"x\n" * (rank + 1))
    reader = RunReader(run)
    for rank in range(5):
        assert list(reader.kernels(0, rank))
    assert reader.skipped_lines == 15
    named = reader.damage()
    assert named.startswith("attempts/000/ranks/00000/kernels-000000.jsonl (1, at byte ")
    assert "attempts/000/ranks/00002/kernels-000000.jsonl (3, from byte " in named
    assert "00003" not in named
    assert named.endswith("2 more files")


def test_unknown_fields_are_ignored(run: Path) -> None:
    writer = JsonLinesWriter(rank_dir(run, 0, 0), "kernels")
    writer.append(json.dumps({**msgspec.to_builtins(kernel(1)), "from_the_future": [1]}).encode() + b"\n")
    writer.close()
    assert [row.step for row in RunReader(run).kernels(0, 0)] == [1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a rankscope run"),
        (b'{"schema": "rankscope.run/3"}', "upgrade rankscope"),
        (b'{"schema": "rankscope.run/1", "run_id": "r", "name": "n", "start_unix_ns": 1}', "version of rankscope that wrote it"),
        (b'{"schema": "something.else/1"}', "not a rankscope run"),
        (b"{}", "not a rankscope run"),
        (b'{"schema": "rankscope.run/2", "run_id": "\xff"}', "not JSON"),
        (b'{"schema": "rankscope.run/2", "run_id": 1, "name": "\xff"}', "run.json"),
        (b'{"schema": "rankscope.run/2"}', "run_id"),
    ],
)
def test_invalid_run_json_raises_an_input_error_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        RunReader(tmp_path)
    assert "run.json" in str(caught.value)
    assert reason in str(caught.value)


def test_missing_folder_and_folder_without_a_run_raise_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        RunReader(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no run\.json"):
        RunReader(tmp_path)


def in_the_way(path: Path, what: str) -> None:
    """Put an object at ``path`` that is no regular file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        # A socket's path has to be short, so it is bound from inside the folder.
        with socket.socket(socket.AF_UNIX) as sock:
            here = Path.cwd()
            os.chdir(path.parent)
            try:
                sock.bind(path.name)
            finally:
                os.chdir(here)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("what", ["pipe", "socket", "device"])
def test_file_that_is_not_regular_is_skipped_without_blocking(run: Path, what: str) -> None:
    folder = rank_dir(run, 0, 0)
    append(folder, "steps", step(0))
    blocked = [segment(folder, "steps", 1), segment(folder, "windows", 0), segment(folder, "collectives", 0)]
    blocked += [run / "attempts" / "000" / "attempt.json", folder / "rank.json"]
    for path in blocked:
        in_the_way(path, what)
    reader = RunReader(run)
    assert [row.step for row in reader.steps(0, 0)] == [0]
    assert [*reader.windows(0, 0), *reader.collectives(0, 0)] == []
    assert (reader.attempt(0), reader.rank(0, 0), reader.rank(0, 0)) == (None, None, None)
    assert sorted(reader.unusable) == sorted(blocked)


def test_unreadable_records_are_listed_and_the_others_are_read(run: Path) -> None:
    folder = rank_dir(run, 0, 0)
    segment(folder, "steps", 0).mkdir(parents=True)  # root cannot read a folder as a file either
    append(folder, "steps", step(5))
    reader = RunReader(run)
    assert [row.step for row in reader.steps(0, 0)] == [5]
    assert reader.unusable == [segment(folder, "steps", 0)]


@pytest.mark.parametrize("what", ["pipe", "socket", "folder", "device"])
def test_run_json_that_is_not_a_regular_file_raises_an_input_error(run: Path, what: str) -> None:
    in_the_way(run / "run.json", what)
    with pytest.raises(InputError, match=r"run\.json: not a regular file"):
        RunReader(run)


def test_run_without_run_json_is_distinguished_from_another_folder(run: Path, tmp_path: Path) -> None:
    assert not is_headless_run(run)
    (run / "run.json").unlink()
    assert is_headless_run(run)
    assert not is_headless_run(tmp_path)
    with pytest.raises(InputError, match=r"looks like a run directory.*run\.json is missing"):
        RunReader(run)


def test_damaged_rank_json_is_distinguished_from_a_missing_rank_json(run: Path) -> None:
    reader = RunReader(run)
    assert (reader.rank(0, 0), reader.unusable) == (None, [])
    file = rank_dir(run, 0, 0) / "rank.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"rank": 0')
    assert (reader.rank(0, 0), reader.unusable) == (None, [file])


def test_folders_with_invalid_rank_numbers_are_skipped(run: Path) -> None:
    ranks = run / "attempts" / "000" / "ranks"
    for name in ("00001", "1", "100000", "9" * 30, "\N{ARABIC-INDIC DIGIT TWO}"):
        (ranks / name).mkdir(parents=True)
    reader = RunReader(run)
    assert reader.ranks(0) == [1, 100_000]
    assert len(reader.unusable) == 3


def test_lines_are_appended_completely_or_not_at_all(run: Path) -> None:
    path = segment(attempt_dir(run, 0), "plan", 0)
    attempt_dir(run, 0).chmod(0o750)
    append_whole(path, b"one\n")
    with disk_with_room_for(6), pytest.raises(OSError, match="File too large"):
        append_whole(path, b"two\n")
    assert path.read_bytes() == b"one\n"
    append_whole(path, b"two\n")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one\ntwo\n", 0o640)
    # And only into a regular file of this name
    victim = run / "victim"
    victim.touch()
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        append_whole(path, b"three\n")
    for what in ("device", "pipe", "folder"):
        in_the_way(path, what)
        with pytest.raises(OSError, match=r".*"):
            append_whole(path, b"three\n")
    assert victim.read_bytes() == b""


def test_documented_tree_matches_the_written_files(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "run-directory.md").read_text()
    tree = page.partition("```\nRUN/\n")[2].partition("```")[0]
    documented: set[str] = set()
    for line in tree.splitlines():
        name = line.split()[0]
        # Indented by six columns: content of a rank's folder.
        documented.add(f"attempts/000/ranks/00005/{name}" if line.startswith("      ") else name)
    ranks = [segment(rank_dir(Path(), 0, 5), stream, 0) for stream in RANK_STREAMS]
    written = [
        run_file(Path()),
        findings_file(Path()),
        verdict_file(Path()),
        segment(attempt_dir(Path(), 0), "plan", 0),
        segment(host_dir(Path(), "NAME"), "gpu", 0),
        activity_file(Path(), 0, 5),
        *ranks,
    ]
    folders = [
        flight_dir(Path(), 0),
        ras_dir(Path(), 0),
        reports_dir(Path(), 0),
        control_dir(Path()),
        inspector_dir(Path()),
        memory_dir(Path()),
        rank_dir(Path(), 0, 5),
    ]
    patterns = {str(path).replace("000000", "*") for path in written} | {f"{path}/" for path in folders}
    others = {"attempts/000/attempt.json", "attempts/000/ranks/00005/traces/"}
    assert documented == patterns | others


times = st.none() | st.floats(0, 1e9)


@given(st.builds(PhaseTimes, **dict.fromkeys(PHASES, times)), st.none() | st.builds(PhaseTimes, **dict.fromkeys(PHASES, times)))
def test_own_time_is_wall_minus_blocked_and_unknown_without_a_signal(phases: PhaseTimes, blocked: PhaseTimes | None) -> None:
    record = StepRecord(step=0, start_unix_ns=0, wall_us=1e10, phases_us=phases, blocked_us=blocked)
    if blocked is None:
        assert record.own_us is None
    else:
        total = sum(blocked.get(phase) or 0.0 for phase in PHASES)
        assert record.own_us == pytest.approx(1e10 - total)
    assert msgspec.json.decode(msgspec.json.encode(record), type=StepRecord) == record


@given(st.integers(0, 3000), st.integers(0, 400))
def test_samples_since_a_time_are_found_in_a_long_file(
    tmp_path_factory: pytest.TempPathFactory, since: int, damaged: int
) -> None:
    # Given a file of several blocks, in which a line is damaged
    run = tmp_path_factory.mktemp("runs") / "run"
    create_run(run, RunInfo(run_id="r1", name="test", start_unix_ns=1))
    lines = [json.dumps({"unix_ns": ns, "gpu_uuid": "GPU-0" + "0" * 400}) + "\n" for ns in range(1, 2500)]
    lines[damaged] = "{damaged\n"
    file = segment(host_dir(run, "node0"), "gpu", 0)
    file.parent.mkdir(parents=True)
    file.write_text("".join(lines))
    times = [sample.unix_ns for sample in RunReader(run).hardware("node0", since)]
    # Then nothing is missing from that time on, and at most a block before it is read
    assert [ns for ns in times if ns >= since] == [ns for ns in range(max(1, since), 2500) if ns != damaged + 1]
    assert len([ns for ns in times if ns < since]) < 2 * BLOCK_BYTES / len(lines[-1])
    assert times == sorted(times)

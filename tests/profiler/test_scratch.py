"""Scratch folders in local memory, and the dumps that come through them into the run."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from rankscope.profiler import scratch
from rankscope.profiler.flight_files import MAX_BYTES, copy_file
from rankscope.profiler.launch import _wait_for_helpers
from rankscope.runs.paths import attempt_dir, flight_dir


def test_scratch_folder_is_private_and_inside_an_existing_launcher_folder(tmp_path: Path) -> None:
    inside = scratch.make_scratch("rank0", str(tmp_path))
    assert inside.parent == tmp_path
    assert inside.stat().st_mode & 0o077 == 0
    elsewhere = scratch.make_scratch("rank0", str(tmp_path / "on-another-node"))
    try:
        assert elsewhere.parent != tmp_path
        assert elsewhere.is_dir()
    finally:
        elsewhere.rmdir()


@pytest.fixture
def nothing_else_to_sweep(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setattr(scratch, "LOCAL_MEMORY", empty)
    monkeypatch.setattr(tempfile, "tempdir", str(empty))


@pytest.mark.usefixtures("nothing_else_to_sweep")
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_only_old_unlocked_folders_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    prefix = f"rankscope-{os.getuid()}-"
    in_use, abandoned, young, foreign = (
        tmp_path / name for name in (f"{prefix}held", f"{prefix}left", f"{prefix}young", "rankscope-x-1")
    )
    for folder in (in_use, abandoned, young, foreign):
        (folder / "rank0").mkdir(parents=True)
        os.close(scratch.hold(folder / "rank0"))
        if folder != young:
            os.utime(folder, (0, 0))
    handle = scratch.hold(in_use / "rank0")
    assert (
        scratch.is_abandoned(in_use / "rank0"),
        scratch.is_abandoned(abandoned / "rank0"),
        scratch.is_abandoned(tmp_path),
    ) == (
        False,
        True,
        False,
    )
    if place == "memory":
        monkeypatch.setattr(scratch, "LOCAL_MEMORY", tmp_path)
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch.sweep()
    assert set(tmp_path.iterdir()) == {in_use, young, foreign}
    # The lock is released when its holder exits for any reason.
    os.close(handle)
    scratch.sweep()
    assert set(tmp_path.iterdir()) == {young, foreign}


def test_foreign_files_in_local_memory_neither_block_nor_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given old folders of the right name: one whose lock is a FIFO without a writer, one whose lock is a link
    piped, linked, outside = (tmp_path / name for name in ("rankscope-1-piped", "rankscope-1-linked", "outside"))
    for folder in (piped, linked):
        folder.mkdir()
    os.mkfifo(piped / "lock")
    (linked / "lock").symlink_to(outside)
    # Then nothing blocks, and nothing is created through the link
    completed = threading.Thread(target=lambda: [scratch.is_abandoned(folder) for folder in (piped, linked)], daemon=True)
    completed.start()
    completed.join(20)
    assert not completed.is_alive()
    with pytest.raises(OSError, match="symbolic link"):
        scratch.hold(linked)
    assert not outside.exists()
    # And those of another user are left alone
    for folder in (piped, linked):
        os.utime(folder, (0, 0))
    monkeypatch.setattr(scratch, "LOCAL_MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owner = piped.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    monkeypatch.setattr(scratch, "_prefix", lambda: "rankscope-1-")
    scratch.sweep()
    assert piped.is_dir()
    monkeypatch.setattr(os, "getuid", lambda: owner)
    scratch.sweep()
    assert not piped.exists()


@pytest.mark.parametrize("reason", ["full", "read-only"])
@pytest.mark.parametrize("of_launcher", [False, True])
def test_unusable_folders_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, of_launcher: bool, reason: str) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for folder in (memory, disk):
        folder.mkdir()
    monkeypatch.setattr(scratch, "LOCAL_MEMORY", memory)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    # Given a launcher that could still use local memory, or none
    job = scratch.make_scratch("job") if of_launcher else None
    handle = None if job is None else scratch.hold(job)
    # When a rank no longer can
    if reason == "full":
        monkeypatch.setattr(scratch, "_free", lambda folder: scratch.MIN_SCRATCH_BYTES - (not folder.is_relative_to(disk)))
    else:
        monkeypatch.setattr(os, "access", lambda folder, _mode: Path(folder).is_relative_to(disk))
    rank = scratch.make_scratch("rank0", None if job is None else str(job))
    flight = scratch.flight_prefix(None if job is None else str(job), "1")
    # Then its folder is on disk, where it is found if it is left behind
    assert (rank.parent, flight.parent) == (disk, disk)
    assert rank.name.startswith(f"rankscope-{os.getuid()}-rank0-")
    assert scratch.is_flight_file(flight)
    if job is None or handle is None:
        return
    # And the launcher sees all that it would see in its own: that it is held, and what it notes
    lock = scratch.hold(rank)
    waiting = threading.Thread(target=_wait_for_helpers, args=[job])
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    scratch.note_recorded(rank, 1, 5)
    scratch.note_spooled(rank, "x.prom")
    assert (scratch.recorded_ranks(job), scratch.spooled(job)) == (frozenset({(1, 5)}), ["x.prom"])
    scratch.forget_spooled(rank, "x.prom")
    assert scratch.spooled(job) == []
    os.close(lock)
    shutil.rmtree(rank)
    waiting.join(60)
    assert not waiting.is_alive()
    os.close(handle)


def test_first_folder_is_tried_when_none_has_enough_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "LOCAL_MEMORY", tmp_path)
    monkeypatch.setattr(scratch, "_free", lambda _folder: 0)
    assert scratch.make_scratch("rank0").parent == tmp_path


def test_world_writable_launcher_folder_gets_no_notes(tmp_path: Path) -> None:
    rank = scratch.make_scratch("rank0", str(tmp_path))
    os.close(scratch.hold(tmp_path))
    tmp_path.chmod(0o1777)
    scratch.note_recorded(rank, 1, 5)
    assert scratch.recorded_ranks(tmp_path) == frozenset()
    tmp_path.chmod(0o700)
    scratch.note_recorded(rank, 1, 5)
    assert scratch.recorded_ranks(tmp_path) == frozenset({(1, 5)})


def test_trace_goes_to_disk_if_memory_is_full_and_is_dropped_if_both_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scratch.trace_folder(tmp_path, 1) == tmp_path
    room = {tmp_path: 0}
    monkeypatch.setattr(scratch, "_free", lambda folder: room.get(folder, 10**12))
    folder = scratch.trace_folder(tmp_path, 1)
    assert folder is not None
    assert folder != tmp_path
    (folder / "trace.json").touch()
    scratch.remove_trace(folder / "trace.json", tmp_path)
    assert not folder.exists()
    monkeypatch.setattr(scratch, "_free", lambda _folder: 0)
    assert scratch.trace_folder(tmp_path, 1) is None


def test_traces_of_all_ranks_of_a_host_share_the_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = {tmp_path: 8 * scratch.MIN_FREE_BYTES}
    monkeypatch.setattr(scratch, "_free", lambda folder: room.get(folder, 0))
    assert scratch.room_for_trace(tmp_path, 8) == tmp_path
    assert scratch.room_for_trace(tmp_path, 9) is None


def test_copied_dump_keeps_the_modification_time(tmp_path: Path) -> None:
    # the time of the dump shows how long a rank had waited
    source, target = tmp_path / "source", tmp_path / "flight" / "target"
    source.write_bytes(b"record_id")
    os.utime(source, ns=(10**18, 10**18))
    copy_file(source, target)
    assert (target.read_bytes(), target.stat().st_mtime_ns) == (b"record_id", 10**18)


def test_only_regular_files_within_the_size_limit_are_copied(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "out").mkdir()
    for name in ("large", "fifo", "link", "nothing"):
        with pytest.raises(OSError, match=r".*"):
            copy_file(tmp_path / name, tmp_path / "out" / "copy")
    assert [*(tmp_path / "out").glob("*"), *(tmp_path / "out").glob(".*")] == []


def test_dumps_have_the_permissions_of_the_run_and_recreate_no_removed_run(tmp_path: Path) -> None:
    source, attempt = tmp_path / "source", attempt_dir(tmp_path / "run", 0)
    source.write_bytes(b"dump")
    attempt.mkdir(parents=True)
    attempt.chmod(0o2770)
    target = flight_dir(tmp_path / "run", 0) / "rank-00000-watchdog-nccl.pickle"
    before = os.umask(0o077)
    try:
        copy_file(source, target)
    finally:
        os.umask(before)
    assert (target.read_bytes(), target.stat().st_mode & 0o777, target.parent.stat().st_mode & 0o7777) == (b"dump", 0o640, 0o2770)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        copy_file(source, target)
    assert not (tmp_path / "run").exists()

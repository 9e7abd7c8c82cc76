"""The file of the Xid journal: torn, damaged, of another version, on a full disk, removed, or shared."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.xid.journal_node import GPU, PCI, Node, values

from rankscope.exporter.source import XidEvent
from rankscope.exporter.xid.journal import MAX_ENTRIES, XidJournal


@pytest.mark.slow
def test_compaction_bounds_the_file_and_keeps_the_counts(node: Node) -> None:
    for _ in range(20):
        for _ in range(MAX_ENTRIES // 4):
            node.wait(1)
            node.event(31)
        node.journal.flush()
    total = 20 * (MAX_ENTRIES // 4)
    path = node.folder / "xids.jsonl"
    assert path.read_bytes().count(b"\n") < 3 * MAX_ENTRIES
    assert path.stat().st_mode & 0o777 == 0o600

    node.restart()

    assert node.count(31) == total
    assert len(node.journal.entries()) == MAX_ENTRIES


@pytest.mark.parametrize("cut", [1, 20])
def test_truncated_last_line_loses_only_that_error(cut: int, node: Node) -> None:
    for code in (48, 79):
        node.event(code)
        node.journal.flush()
    node.journal.close()
    path = node.folder / "xids.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])

    node.journal = node.start()
    node.event(64)
    node.restart()

    # a line that lost only its newline is complete
    assert (node.count(48), node.count(79), node.count(64)) == (1, 1 if cut == 1 else 0, 1)
    assert node.journal.skipped_lines == (0 if cut == 1 else 1)


def test_damage_in_the_middle_is_counted_and_skipped(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    for code in (48, 79, 64):
        node.event(code)
        node.wait(60)
    node.journal.close()
    path = node.folder / "xids.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[2] = b'\x00\xff{"type":"entry"'
    lines[3:3] = [b'{"type":"entry","id":"no number"}', b'{"type":"unknown"}', b"[]"]
    path.write_bytes(b"\n".join(lines))

    node.journal = node.start()

    assert (node.count(48), node.count(79), node.count(64)) == (1, 0, 1)
    assert node.journal.skipped_lines == 4
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert ": 4, from line 3 " in record.getMessage()
    assert node.journal.problem is None


def test_journal_of_a_newer_version_is_left_unchanged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.journal.close()
    path = node.folder / "xids.jsonl"
    newer = b'{"type":"snapshot","format":"rankscope.xids/2"}\n{"type":"entry"}\n'
    path.write_bytes(newer)

    node.journal = node.start()
    node.event(79)
    node.journal.flush()

    assert path.read_bytes() == newer
    assert "rankscope.xids/2" in (node.journal.problem or "")
    assert node.count() == 1
    assert caplog.text.count("rankscope.xids/2") == 1


def test_second_exporter_takes_over_without_counting_twice(node: Node) -> None:
    node.event(48)
    node.journal.flush()
    second = node.start()
    assert "another exporter" in (second.problem or "")
    assert values(second.series([GPU]), "gpu_xid_errors_total", xid="48") == [1.0]

    # given an error that both see, and one after the first has exited
    node.wait(60)
    node.event(79)
    second.record(GPU.uuid, PCI, XidEvent(node.unix_s, 79))
    second.flush()
    node.journal.close()
    node.wait(60)
    second.record(GPU.uuid, PCI, XidEvent(node.unix_s, 79))

    second.flush()
    assert second.problem is None
    node.journal = second
    assert (node.count(48), node.count(79)) == (1, 2)
    node.restart()
    assert (node.count(48), node.count(79)) == (1, 2)


def test_full_disk_affects_only_durability(node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    node.event(48)
    node.journal.flush()
    before = (node.folder / "xids.jsonl").read_bytes()
    write = os.write

    def full(fd: int, data: bytes) -> int:
        return write(fd, data[:10])  # as on a disk with room for ten bytes

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        node.event(79)
        node.wait(60)
        node.journal.flush()
    assert node.count(79) == 3
    assert (node.folder / "xids.jsonl").read_bytes() == before
    assert os.strerror(errno.ENOSPC) in (node.journal.problem or "")
    assert caplog.text.count("not kept on disk") == 1

    monkeypatch.undo()
    node.journal.flush()
    assert node.journal.problem is None
    node.restart()
    assert (node.count(48), node.count(79)) == (1, 3)
    assert node.journal.skipped_lines == 0


def test_unwritable_folder_is_logged_once_and_recovers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    node = Node(tmp_path / "file" / "state")
    node.event(79)
    node.journal.flush()
    node.journal.flush()
    assert node.count() == 1
    assert str(tmp_path / "file") in (node.journal.problem or "")
    assert caplog.text.count("not kept on disk") == 1

    (tmp_path / "file").unlink()
    node.journal.flush()
    node.restart()
    assert node.count() == 1


def test_journal_without_a_folder_is_kept_in_memory() -> None:
    journal = XidJournal(None, job_at=lambda uuid: None)
    journal.record(GPU.uuid, PCI, XidEvent(1.0, 79))
    journal.flush()
    journal.close()

    assert values(journal.series([GPU]), "gpu_xid_errors_total", xid="79") == [1.0]
    assert (journal.durable, journal.problem) == (None, None)


@pytest.mark.parametrize("removed", ["file", "folder", "content"])
def test_removed_journal_is_rewritten(removed: str, node: Node) -> None:
    node.event(48)
    node.journal.flush()
    if removed == "folder":
        shutil.rmtree(node.folder)
    elif removed == "file":
        (node.folder / "xids.jsonl").unlink()
    else:
        (node.folder / "xids.jsonl").write_bytes(b"")
    node.event(79)

    node.journal.flush()
    node.journal.flush()

    assert node.journal.problem is None
    node.restart()
    assert (node.count(48), node.count(79)) == (1, 1)


@pytest.mark.slow
def test_flushed_entries_survive_sigkill(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from rankscope.exporter.source import XidEvent
from rankscope.exporter.xid import journal as module
module.MAX_ENTRIES = 100  # so that the file is soon written anew
journal = module.XidJournal(Path(sys.argv[1]), job_at=lambda uuid: "job")
number = 0
while True:
    number += 1
    journal.record("GPU-1", "00000000:1a:00.0", XidEvent(float(number), 31))
    journal.flush()
    print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(500):
            flushed = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        flushed = max([flushed, *map(int, writer.stdout.read().split())])

    again = XidJournal(tmp_path, job_at=lambda uuid: None)

    (counted,) = values(again.series([GPU]), "gpu_xid_errors_total", xid="31")
    assert counted in (flushed, flushed + 1)
    assert again.problem is None


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_another_users_link_or_pipe_is_neither_written_to_nor_waited_for(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    folder = tmp_path / "state"
    folder.mkdir()
    if kind == "link":
        (folder / "xids.jsonl").symlink_to(target)
    else:
        os.mkfifo(folder / "xids.jsonl")
    node = Node(folder)
    node.event(79)
    node.journal.flush()
    assert node.count(79) == 1
    assert target.read_text() == "precious"
    node.journal.close()


def test_temporary_file_of_a_killed_exporter_is_removed(node: Node) -> None:
    unfinished = node.folder / ".xids.jsonl.7-0123456789ab"
    unfinished.write_text("{")
    second = node.start()  # the first one holds the lock, and may be writing
    assert unfinished.exists()
    node.journal.close()
    second.flush()
    assert not unfinished.exists()
    second.close()


def test_journal_file_is_json_lines(node: Node) -> None:
    node.job = "4711"
    node.event(79)
    node.journal.flush()

    first, entry = map(json.loads, (node.folder / "xids.jsonl").read_text().splitlines())

    assert first["format"] == "rankscope.xids/1"
    assert (entry["code"], entry["uuid"], entry["job_id"], entry["unix_s"]) == (79, "GPU-1", "4711", 1_000_000.0)


def test_concurrent_recording_and_flushing_loses_no_entry(node: Node) -> None:
    import threading

    def repeat(record: Callable[[], None]) -> None:
        for _ in range(200):
            record()

    threads = [threading.Thread(target=repeat, args=(lambda: node.event(31),)) for _ in range(4)]
    threads.append(threading.Thread(target=repeat, args=(node.journal.flush,)))
    threads.append(threading.Thread(target=repeat, args=(lambda: node.values() and None,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    node.restart()

    assert node.count(31) == 800

"""The Xid journal: each error counts once, whoever tells of it and however often the exporter starts."""

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
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.exporter.source import GpuIdentity, Series, XidEvent
from rankscope.exporter.xid.entry import KernelXid
from rankscope.exporter.xid.journal import EARLY_S, LATE_S, MAX_ENTRIES, XidJournal
from rankscope.exporter.xid.tallies import MAX_OTHER_CODES, MAX_SXID_CODES, OTHER
from rankscope.exporter.xids import FROM_ZERO

PCI = "00000000:1a:00.0"
GPU = GpuIdentity(uuid="GPU-1", index=0, model="H100", pci_bus_id=PCI)
SWITCH = "00000000:05:00.0"


class Node:
    """A node whose clocks stand still until told otherwise, and that can restart its exporter or boot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unix_s = 1_000_000.0
        self.boot_s = 5_000.0
        self.boot_id = "boot-1"
        self.job: str | None = None
        self.seq = 100
        self.journal = self.start()

    def start(self, folder: Path | None = None) -> XidJournal:
        return XidJournal(
            folder or self.folder,
            job_at=lambda uuid: self.job if uuid == GPU.uuid else None,
            boot_id=self.boot_id,
            now=lambda: self.unix_s,
            monotonic=lambda: self.boot_s,
        )

    def restart(self) -> None:
        self.journal.close()
        self.journal = self.start()

    def wait(self, seconds: float) -> None:
        self.unix_s += seconds
        self.boot_s += seconds

    def event(self, code: int = 79) -> None:
        self.journal.record(GPU.uuid, PCI, XidEvent(self.unix_s, code))

    def line(self, code: int = 79, *, ago_s: float = 0.0, **changes: Any) -> KernelXid:
        self.seq += 1
        one = KernelXid(
            **{
                "kind": "xid",
                "seen_by": "kernel_log",
                "pci_bus_id": PCI,
                "code": code,
                "text": "said the driver",
                "seq": self.seq,
                "boot_s": self.boot_s - ago_s,
                **changes,
            }
        )
        self.journal.record_line(one, GPU.uuid if one.pci_bus_id == PCI else "")
        return one

    def values(self, metric: str = "gpu_xid_errors_total", **labels: str) -> list[float]:
        return values(self.journal.series([GPU]), metric, **labels)

    def count(self, code: int = 79) -> float:
        (value,) = self.values(xid=str(code))
        return value


def values(series: tuple[Series, ...], metric: str, **labels: str) -> list[float]:
    return [one.value for one in series if one.metric == metric and labels.items() <= dict(one.labels).items()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "state")


def test_codes_that_ask_for_an_action_are_there_from_zero_and_others_from_their_first_time(node: Node) -> None:
    assert node.values() == [0.0] * len(FROM_ZERO)
    assert node.values("gpu_xid_last_code") == [0.0]
    assert node.values("gpu_xid_last_timestamp_seconds") == []

    node.event(31)
    node.wait(60)
    node.event(31)

    assert node.values(xid="31") == [2.0]
    assert len(node.values()) == len(FROM_ZERO) + 1
    assert node.values("gpu_xid_last_timestamp_seconds", xid="31") == [1_000_060.0]
    assert node.values("gpu_xid_last_code") == [31.0]


def test_the_event_and_the_line_of_one_error_count_once_in_either_order(node: Node) -> None:
    node.event()
    node.wait(1)
    node.line()
    assert node.count() == 1
    (entry,) = node.journal.entries()
    assert (entry.seen_by, entry.text) == (("nvml", "kernel_log"), "said the driver")

    node.wait(3600)
    node.line(ago_s=0.5)
    node.event()
    assert node.count() == 2


def test_repeats_are_errors_of_their_own(node: Node) -> None:
    for _ in range(3):
        node.event(94)
        node.line(94)
    node.event(94)

    assert node.count(94) == 4


@given(order=st.lists(st.sampled_from(["nvml", "kernel_log"]), max_size=30))
def test_of_a_burst_seen_by_both_the_count_is_what_the_better_informed_saw(
    order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = Node(tmp_path_factory.mktemp("state"))
    for seen_by in order:
        if seen_by == "nvml":
            node.event()
        else:
            node.line()

    assert node.count() == max(order.count("nvml"), order.count("kernel_log"))


def test_what_is_too_far_apart_or_of_another_gpu_or_code_is_not_the_same(node: Node) -> None:
    node.event(95)
    node.line(94)
    node.line(95, pci_bus_id="00000000:1b:00.0")
    node.wait(2 * EARLY_S)
    node.line(95)
    assert (node.count(94), node.count(95)) == (1, 2)

    node.wait(2 * LATE_S)
    node.event(95)
    assert node.count(95) == 3


def test_an_event_that_the_driver_gives_late_is_still_the_errors_of_the_line(node: Node) -> None:
    node.line(119)
    node.line(119)
    node.wait(60)
    node.event(119)
    node.event(119)

    assert node.count(119) == 2


def test_that_a_gpu_is_off_the_bus_counts_once_however_often_the_log_says_so(node: Node) -> None:
    node.line(79)
    for _ in range(5):
        node.wait(20)
        node.line(79, seen_by="kernel_log_fallen")
    assert node.count(79) == 1

    node.wait(3600)
    node.line(79, seen_by="kernel_log_fallen")
    node.line(79, seen_by="kernel_log_fallen")
    node.event(79)
    assert node.count(79) == 2


def test_a_restart_reads_the_same_log_again_and_counts_nothing_twice(node: Node) -> None:
    lines = [node.line(79), node.line(79), node.line(31)]
    node.event(79)
    node.event(48)

    node.restart()
    for line in lines:
        node.journal.record_line(line, GPU.uuid)
    node.line(48)

    assert (node.count(79), node.count(31), node.count(48)) == (2, 1, 1)


def test_after_a_boot_the_kernel_counts_its_lines_anew(node: Node) -> None:
    node.line(79)
    node.journal.close()
    node.boot_id, node.boot_s, node.seq = "boot-2", 20.0, 5

    node.journal = node.start()
    node.line(79)

    assert node.count() == 2
    assert node.values("gpu_xid_last_code") == [79.0]


def test_the_job_of_that_moment_is_kept_and_none_is_invented_for_the_past(node: Node) -> None:
    node.job = "4711"
    node.event(48)
    node.wait(600)
    node.job = "4712"
    node.line(64, ago_s=300)
    assert node.values("gpu_xid_last_job_info", xid="48", job_id="4711") == [1.0]
    assert node.values("gpu_xid_last_job_info") == [1.0]

    node.restart()
    assert node.values("gpu_xid_last_job_info", xid="48", job_id="4711") == [1.0]
    assert node.values("gpu_xid_last_code") == [0.0]
    assert [entry.job_id for entry in node.journal.entries()] == ["4711", None]


def test_a_gpu_that_nobody_knew_yet_gets_its_errors_when_it_is_known(node: Node) -> None:
    late = GpuIdentity(uuid="GPU-late", index=1, model="H100", pci_bus_id="00000000:3b:00.0")
    node.line(48, pci_bus_id=late.pci_bus_id)
    assert node.count(48) == 0

    assert values(node.journal.series([late]), "gpu_xid_errors_total", uuid="GPU-late", xid="48") == [1.0]
    node.restart()
    assert values(node.journal.series([late]), "gpu_xid_errors_total", uuid="GPU-late", xid="48") == [1.0]


def test_another_gpu_at_that_address_after_a_boot_does_not_inherit_the_errors(node: Node) -> None:
    there = GpuIdentity(uuid="GPU-new", index=1, model="H100", pci_bus_id="00000000:3b:00.0")
    node.line(48, pci_bus_id=there.pci_bus_id)
    node.journal.close()
    node.boot_id = "boot-2"

    node.journal = node.start()

    assert values(node.journal.series([there]), "gpu_xid_errors_total", xid="48") == [0.0]
    assert [entry.uuid for entry in node.journal.entries()] == [""]


def test_a_wall_clock_that_jumps_neither_splits_nor_merges_errors(node: Node) -> None:
    node.event(79)
    node.unix_s -= 86_400
    node.line(79)
    assert node.count() == 1

    node.wait(100)
    node.unix_s += 1_000_000
    node.event(79)
    assert node.count() == 2
    assert node.values("gpu_xid_last_timestamp_seconds", xid="79") == [node.unix_s]

    node.wait(100)
    node.unix_s -= 5_000_000
    node.event(79)
    assert node.values("gpu_xid_last_timestamp_seconds", xid="79") == [node.unix_s]


def test_an_older_error_found_later_is_not_the_last(node: Node) -> None:
    node.event(31)
    node.line(31, ago_s=600)

    assert node.count(31) == 2
    assert node.values("gpu_xid_last_timestamp_seconds", xid="31") == [1_000_000.0]


def test_a_storm_of_codes_makes_no_storm_of_series(node: Node) -> None:
    codes = [code for code in range(200, 400) if code not in FROM_ZERO]
    for code in codes:
        node.event(code)
        node.line(code % 65_536, kind="sxid", pci_bus_id=SWITCH, severity="non_fatal")
    own = len(FROM_ZERO) + MAX_OTHER_CODES
    assert len(node.values()) == own + 1
    assert node.values(xid=OTHER) == [float(len(codes) - MAX_OTHER_CODES)]
    assert len(node.values("nvswitch_sxid_errors_total")) == MAX_SXID_CODES + 1

    shown = set(node.journal.series([GPU]))
    node.restart()
    assert {one for one in shown if one.metric != "gpu_xid_last_code"} < set(node.journal.series([GPU]))


def test_errors_of_switches_are_counted_by_severity(node: Node) -> None:
    node.line(20034, kind="sxid", pci_bus_id=SWITCH, severity="fatal")
    node.line(12028, kind="sxid", pci_bus_id=SWITCH, severity="non_fatal")
    node.line(12028, kind="sxid", pci_bus_id=SWITCH, severity="non_fatal")

    assert node.values("nvswitch_sxid_errors_total", severity="fatal", sxid="20034", pci_bus_id=SWITCH) == [1.0]
    assert node.values("nvswitch_sxid_errors_total", severity="non_fatal") == [2.0]


def test_the_file_stays_small_and_the_counts_stay_right(node: Node) -> None:
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
def test_a_torn_last_line_costs_that_error_only(cut: int, node: Node) -> None:
    for code in (48, 79):
        node.event(code)
        node.journal.flush()
    node.journal.close()
    path = node.folder / "xids.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])

    node.journal = node.start()
    node.event(64)
    node.restart()

    # a line that only lost its end of line is whole
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
    assert [record.getMessage() for record in caplog.records] == ["the Xid journal has damaged lines, which are left out: 4"]
    assert node.journal.problem is None


def test_a_journal_of_a_newer_version_is_left_alone(node: Node, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_second_exporter_on_the_folder_says_so_and_takes_over_without_counting_twice(node: Node) -> None:
    node.event(48)
    node.journal.flush()
    second = node.start()
    assert "another exporter" in (second.problem or "")
    assert values(second.series([GPU]), "gpu_xid_errors_total", xid="48") == [1.0]

    # given both see the same error, and one that the first does not live to see
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


def test_a_full_disk_costs_nothing_but_durability(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node.event(48)
    node.journal.flush()
    before = (node.folder / "xids.jsonl").read_bytes()
    write = os.write

    def full(fd: int, data: bytes) -> int:
        return write(fd, data[:10])  # as a disk that just has ten bytes left

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


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
def test_a_really_full_disk(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from rankscope.exporter.source import GpuIdentity, XidEvent
from rankscope.exporter.xid.journal import XidJournal
folder = Path(sys.argv[1])
journal = XidJournal(folder / "state", job_at=lambda uuid: None)
filler = folder / "filler"
with filler.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
gpu = GpuIdentity(uuid="GPU-1", index=0, model="", pci_bus_id="00000000:1a:00.0")
for number in range(5000):
    journal.record("GPU-1", gpu.pci_bus_id, XidEvent(float(number), 79))
journal.flush()
print(journal.problem)
filler.unlink()
journal.flush()
print(journal.problem)
journal.close()
again = XidJournal(folder / "state", job_at=lambda uuid: None)
print([one.value for one in again.series([gpu]) if ("xid", "79") in one.labels and one.metric == "gpu_xid_errors_total"])
"""
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1M none "$1" && shift && exec "$@"', "sh", tmp_path]
    done = subprocess.run(
        [*map(str, mount), sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no file systems can be mounted here")

    problem, healed, counted = done.stdout.splitlines()
    assert os.strerror(errno.ENOSPC) in problem, done.stderr
    assert (healed, counted) == ("None", "[5000]")


def test_a_folder_that_cannot_be_written_is_said_once_and_heals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_without_a_folder_it_lives_in_memory() -> None:
    journal = XidJournal(None, job_at=lambda uuid: None)
    journal.record(GPU.uuid, PCI, XidEvent(1.0, 79))
    journal.flush()
    journal.close()

    assert values(journal.series([GPU]), "gpu_xid_errors_total", xid="79") == [1.0]
    assert (journal.durable, journal.problem) == (None, None)


@pytest.mark.parametrize("what", ["file", "folder", "content"])
def test_a_journal_that_somebody_removed_is_written_anew(what: str, node: Node) -> None:
    node.event(48)
    node.journal.flush()
    if what == "folder":
        shutil.rmtree(node.folder)
    elif what == "file":
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
def test_what_was_flushed_survives_sigkill(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from rankscope.exporter.source import XidEvent
from rankscope.exporter.xid.journal import XidJournal
journal = XidJournal(Path(sys.argv[1]), job_at=lambda uuid: "job")
number = 0
while True:
    number += 1
    journal.record("GPU-1", "00000000:1a:00.0", XidEvent(float(number), 31))
    journal.flush()
    print(number, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(3 * MAX_ENTRIES):
            flushed = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        flushed = max([flushed, *map(int, writer.stdout.read().split())])

    again = XidJournal(tmp_path, job_at=lambda uuid: None)

    (counted,) = values(again.series([GPU]), "gpu_xid_errors_total", xid="31")
    assert counted in (flushed, flushed + 1)
    assert again.problem is None


def test_the_file_is_json_lines_that_a_person_can_read(node: Node) -> None:
    node.job = "4711"
    node.event(79)
    node.journal.flush()

    first, entry = map(json.loads, (node.folder / "xids.jsonl").read_text().splitlines())

    assert first["format"] == "rankscope.xids/1"
    assert (entry["code"], entry["uuid"], entry["job_id"], entry["unix_s"]) == (79, "GPU-1", "4711", 1_000_000.0)


def test_many_threads_may_record_while_another_writes_and_reads(node: Node) -> None:
    import threading

    def tell(record: Callable[[], None]) -> None:
        for _ in range(200):
            record()

    threads = [threading.Thread(target=tell, args=(lambda: node.event(31),)) for _ in range(4)]
    threads.append(threading.Thread(target=tell, args=(node.journal.flush,)))
    threads.append(threading.Thread(target=tell, args=(lambda: node.values() and None,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    node.restart()

    assert node.count(31) == 800


@pytest.mark.slow
@given(
    story=st.lists(
        st.sampled_from(["event, line", "line, event", "event, crash, line", "line, crash", "crash", "restart", "flush", "wait"]),
        max_size=25,
    )
)
def test_whatever_happens_to_the_exporter_every_error_counts_once(
    story: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # given errors that NVML and the kernel log both tell of, while the exporter is killed, restarted and flushed at any moment
    node = Node(tmp_path_factory.mktemp("state"))
    log: list[KernelXid] = []
    errors = 0

    def crash() -> None:
        assert node.journal._file is not None
        node.journal._file.close()  # all that a killed process still does
        node.journal = node.start()
        for line in log:  # what the kernel remembers is read again
            node.journal.record_line(line, GPU.uuid)

    for chapter in story:
        errors += "line" in chapter
        for step in chapter.split(", "):
            if step == "event":
                node.event()
            elif step == "line":
                log.append(node.line())
            elif step == "crash":
                crash()
            elif step == "restart":
                node.restart()
            elif step == "flush":
                node.journal.flush()
            else:
                node.wait(3 * EARLY_S)

    # then each counts once, before and after the next start
    assert node.count() == errors
    crash()
    assert node.count() == errors

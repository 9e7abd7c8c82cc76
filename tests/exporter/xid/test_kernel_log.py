"""The kernel log: the driver's messages are recognized in every form, forged ones from other sources are not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.exporter.source import FleetState, GpuIdentity, GpuState, XidEvent
from rankscope.exporter.xid.collector import XidCollector
from rankscope.exporter.xid.entry import KernelXid
from rankscope.exporter.xid.journal import XidJournal
from rankscope.exporter.xid.kernel_lines import KernelLines, pci_bus_id
from rankscope.exporter.xid.kernel_log import KMSG, KernelLog

PCI = "00000000:1a:00.0"


def record(message: str, *, priority: int = 3, seq: int = 7, stamp_us: int = 5_000_000) -> bytes:
    """Return a /dev/kmsg record as the kernel writes it, with unprintable bytes escaped."""
    escaped = "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in message.encode())
    return f"{priority},{seq},{stamp_us},-;{escaped}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1a:00.0\n".encode()


def errors(*messages: str, priority: int = 3, apart_us: int = 1000) -> list[KernelXid]:
    lines = KernelLines()
    collected = []
    for number, message in enumerate(messages):
        read = lines.read(record(message, priority=priority, seq=number, stamp_us=5_000_000 + number * apart_us))
        assert read is not None
        if read[2] is not None:
            collected.append(read[2])
    return collected


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (
            "NVRM: Xid (PCI:0000:1a:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            79,
            "pid=1234, name=python3, GPU has fallen off the bus.",
        ),
        ("NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.", 79, "GPU has fallen off the bus."),
        (
            "NVRM: Xid (0000:1a:00): 31, Ch 00000010, engmask 00000101, intr 10000000",
            31,
            "Ch 00000010, engmask 00000101, intr 10000000",
        ),
        ("NVRM: Xid (PCI:0000:1A:00.0): 62, 0096(1c54) 00000000 00000000", 62, "0096(1c54) 00000000 00000000"),
        (
            "NVRM: Xid (PCI:0000:1a:00): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No",
            94,
            "pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No",
        ),
        ("NVRM: Xid (PCI:0000:1a:00 GPU-I:05): 31, pid=9, name=x, Ch 00000008", 31, "pid=9, name=x, Ch 00000008"),
        ("NVRM: Xid (PCI:00000000:1a:00): 43, pid=9, name=x, Ch 00000008", 43, "pid=9, name=x, Ch 00000008"),
        (
            "NVRM: Xid (PCI:0000:1a:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
        ),
        (
            "NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            154,
            "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        ),
        ("NVRM: Xid (PCI:0000:1a:00): 79", 79, ""),
    ],
)
def test_every_xid_format_is_parsed(message: str, code: int, text: str) -> None:
    (error,) = errors(message)
    assert (error.kind, error.seen_by, error.pci_bus_id, error.code, error.text) == ("xid", "kernel_log", PCI, code, text)
    assert (error.seq, error.boot_s) == (0, 5.0)


@pytest.mark.parametrize(
    ("message", "severity"),
    [
        ("144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000001 0x00000000 0x00000000)", "non_fatal"),
        ("144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002 0x00000000 0x00000000)", "fatal"),
        ("145, pid=4711, name=python3, RLW_REMAP Non-fatal XC1 i0 Link 03 (0x00000004 0x00000001)", "non_fatal"),
        ("146, TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link -1 (0x0000000a 0x00000004)", "fatal"),
        ("147, TREX Nonfatal XC0 i0 Link 00 (0x0000000e 0x00000001)", "non_fatal"),
        ("148, NVLPW_CTRL Fatal XC0 i0 Link 00 (0x0000000f 0x80000000)", "fatal"),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)", "fatal"),
        ("150, MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)", "fatal"),
        # what a program calls itself says nothing
        ("145, pid=9, name=Fatal XC0 i0, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000)", "non_fatal"),
        ("149, NETIR_LINK_EVT XC0 i0 Link 08 (0x004505c6 0x00000000)", ""),
        ("155, Fatal words of another code", ""),
        ("79, pid=1, name=Fatal, GPU has fallen off the bus.", ""),
    ],
)
def test_the_severity_of_an_nvlink_error_is_read(message: str, severity: str) -> None:
    (error,) = errors(f"NVRM: Xid (PCI:0000:1a:00): {message}")
    assert error.severity == severity


def test_three_log_lines_of_an_nvswitch_are_one_error() -> None:
    switch = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0):"

    result = errors(
        f"{switch} 22013, Data {{0x0000002b, 0x0000002b, 0x00000000}}",
        f"{switch} 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt",
        f"{switch} 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
        f"{switch} 20034, Fatal, Link 30 LTSSM Fault Up",
    )

    assert [(item.kind, item.pci_bus_id, item.code, item.severity) for item in result] == [
        ("sxid", "00000000:04:00.0", 22013, "non_fatal"),
        ("sxid", "00000000:04:00.0", 20034, "fatal"),
    ]


@pytest.mark.parametrize(
    "messages",
    [
        ("NVRM: The NVIDIA GPU 0000:1a:00.0\nNVRM: (PCI ID: 10de:26b5) installed here has\nNVRM: fallen off the bus and",),
        (
            "NVRM: The NVIDIA GPU 0000:1a:00.0",
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ),
        ("NVRM: GPU 0000:1a:00.0: GPU has fallen off the bus.",),
        ("NVRM: GPU at PCI:0000:1a:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7", "NVRM: GPU has fallen off the bus."),
    ],
)
def test_gpu_off_the_bus_is_detected_without_an_xid(messages: tuple[str, ...]) -> None:
    (error,) = errors(*messages)
    assert (error.kind, error.seen_by, error.pci_bus_id, error.code) == ("xid", "kernel_log_fallen", PCI, 79)


def test_off_the_bus_message_without_an_address_is_ignored() -> None:
    assert errors("NVRM: GPU has fallen off the bus.") == []
    assert errors("NVRM: GPU at PCI:0000:1a:00: GPU-b850f46d", "NVRM: something has fallen off the bus", apart_us=3_000_000) == []


def test_the_lines_of_one_exception_are_one_error() -> None:
    exception = [
        "NVRM: Xid (PCI:0000:cb:00): 13, pid=1, name=a, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction",
        "NVRM: Xid (PCI:0000:cb:00): 13, pid=1, name=a, Graphics SM Global Exception on (GPC 7, TPC 7, SM 0): Multiple Warp",
        "NVRM: Xid (PCI:0000:cb:00): 13, pid=1, name=a, Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24",
    ]
    assert len(errors(*exception)) == 1
    assert len(errors(*exception, apart_us=1_000_000)) == 3
    assert len(errors(*(line.replace(" 13,", " 45,") for line in exception))) == 3


@pytest.mark.parametrize("priority", [8, 11, 14, 191])
def test_log_records_from_user_space_are_ignored(priority: int) -> None:
    assert errors("NVRM: Xid (PCI:0000:1a:00): 79, forged", priority=priority) == []


@pytest.mark.parametrize(
    "message",
    [
        "systemd[1]: NVRM: Xid (PCI:0000:1a:00): 79, quoted",
        "audit: comm=x\nNVRM: Xid (PCI:0000:1a:00): 79, on a line of its own",
        "NVRM: Xid (PCI:0000:1a:00): many",
        "NVRM: Xid (PCI:0000:1a:00): 123456, no such number",
        "NVRM: Xid (PCI:zzzz:1a:00): 79,",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.195.03",
        "nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 12028",
        "",
    ],
)
def test_similar_messages_are_no_errors(message: str) -> None:
    assert errors(message) == []


def test_error_text_is_bounded_and_printable() -> None:
    (error,) = errors("NVRM: Xid (PCI:0000:1a:00): 31, name=\x1b[2J\n\t\x7f" + "ä" * 5000)
    assert len(error.text) <= 256
    assert error.text.startswith("name= [2J ää")


@given(record=st.binary(max_size=400))
def test_arbitrary_records_give_no_error(record: bytes) -> None:
    read = KernelLines().read(record)
    assert read is None or read[2] is None


def test_pci_address_has_the_nvml_format() -> None:
    assert pci_bus_id("0000:1A:00") == PCI
    assert pci_bus_id("00000019:01:00.0") == "00000019:01:00.0"


class Kmsg:
    """Stand-in for /dev/kmsg, read through the same calls; written records are returned by the next read."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.now_s = 100.0
        self.seq = 0
        self.log = KernelLog(path, monotonic=lambda: self.now_s)
        assert self.log.read() == []
        self._writer = os.open(path, os.O_WRONLY)

    def say(self, message: str, *, at_s: float | None = None, skip: int = 0) -> None:
        self.seq += 1 + skip
        os.write(self._writer, record(message, seq=self.seq, stamp_us=int((self.now_s if at_s is None else at_s) * 1e6)))

    def close(self) -> None:
        self.log.close()
        os.close(self._writer)


@pytest.fixture
def kmsg(tmp_path: Path) -> Iterator[Kmsg]:
    kernel_log = Kmsg(tmp_path / "kmsg")
    yield kernel_log
    kernel_log.close()


def test_log_is_followed_without_blocking(kmsg: Kmsg) -> None:
    assert kmsg.log.read() == []
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 48, text")
    kmsg.say("eth0: link is up")
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 63, text")

    assert [event.code for event in kmsg.log.read()] == [48, 63]
    assert kmsg.log.read() == []
    assert (kmsg.log.problem, kmsg.log.lost) == (None, 0)


def test_records_that_were_overwritten_are_counted(kmsg: Kmsg) -> None:
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 48, text")
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 48, text", skip=1000)

    assert len(kmsg.log.read()) == 2
    assert kmsg.log.lost == 1000


def test_overwritten_records_do_not_stop_reading(kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch) -> None:
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 48, text")
    assert len(kmsg.log.read()) == 1
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 63, text", skip=7)
    collected: list[OSError] = [OSError(errno.EPIPE, "overwritten"), OSError(errno.EINVAL, "a record too large")]
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: (_ for _ in ()).throw(collected.pop()) if collected else read(fd, size))

    assert [event.code for event in kmsg.log.read()] == [63]
    assert (kmsg.log.problem, kmsg.log.lost) == (None, 7)


def test_record_that_breaks_the_parser_affects_no_other(
    kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parse = KernelLines._error

    def faulty(lines: KernelLines, text: str, seq: int, boot_s: float) -> KernelXid | None:
        if "break" in text:
            raise IndexError("no such group")
        return parse(lines, text, seq, boot_s)

    monkeypatch.setattr(KernelLines, "_error", faulty)
    for text in ("48, text", "63, break", "63, break", "79, text"):
        kmsg.say(f"NVRM: Xid (PCI:0000:1a:00): {text}")

    assert [event.code for event in kmsg.log.read()] == [48, 79]
    assert (kmsg.log.problem, kmsg.log.lost) == (None, 2)
    assert caplog.text.count("no such group") == 1


def test_record_refused_by_the_journal_affects_no_other(
    kmsg: Kmsg, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = GpuIdentity(uuid="GPU-1", index=0, model="H100", pci_bus_id=PCI)
    journal = XidJournal(None, job_at=lambda uuid: None, monotonic=lambda: kmsg.now_s)
    record = journal._record_report

    def faulty(seen: KernelXid, uuid: str) -> None:
        if seen.code == 63:
            raise KeyError("gone")
        record(seen, uuid)

    monkeypatch.setattr(journal, "_record_report", faulty)
    collector = XidCollector(journal, kmsg.log)
    for code in (48, 63, 79):
        kmsg.say(f"NVRM: Xid (PCI:0000:1a:00): {code}, text")
    collector.on_xid(gpu, XidEvent(1e6, 63))  # in the fleet's thread

    page = {
        dict(family.labels).get("xid"): family.value
        for family in collector.read(FleetState((GpuState(gpu, up=True),), None, {}, 0, 0, None, None))
        if family.metric == "gpu_xid_errors_total"
    }

    assert (page["48"], page.get("63"), page["79"]) == (1, None, 1)
    assert caplog.text.count("gone") == 1


def test_record_times_are_clamped_to_the_time_since_the_last_read(kmsg: Kmsg) -> None:
    kmsg.log.read()
    kmsg.now_s = 101.0
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 48, text", at_s=40.0)
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 48, text", at_s=900.0)

    assert [event.boot_s for event in kmsg.log.read()] == [100.0, 101.0]


def test_unreadable_log_is_retried(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    log = KernelLog(path)

    assert (log.read(), log.problem) == ([], f"{path}: No such file or directory")

    path.write_bytes(record("NVRM: Xid (PCI:0000:1a:00): 48, text"))
    assert [event.code for event in log.read()] == [48]
    assert log.problem is None
    log.close()


@pytest.mark.skipif(not os.access(KMSG, os.R_OK), reason="the kernel log of this machine cannot be read")
def test_kernel_log_of_the_host_is_read_to_the_end() -> None:
    log = KernelLog()
    log.read()
    log.read()
    assert log.problem is None
    assert log._next_seq is not None
    assert log._partial_line == b""
    log.close()


def test_events_and_log_lines_are_merged_on_the_page(kmsg: Kmsg, tmp_path: Path) -> None:
    gpu = GpuIdentity(uuid="GPU-1", index=0, model="H100", pci_bus_id=PCI)
    state = FleetState((GpuState(gpu, up=True),), None, {}, 0, 0, 1, None)
    journal = XidJournal(
        tmp_path / "state", job_at=lambda uuid: "4711", boot_id="b", now=lambda: 1e6 + kmsg.now_s, monotonic=lambda: kmsg.now_s
    )
    collector = XidCollector(journal, kmsg.log)

    # given an error from both sources, one in the log only, and one of a switch, when the page is rendered
    collector.on_xid(gpu, XidEvent(1e6 + kmsg.now_s, 79))
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 79, pid=1, name=x, GPU has fallen off the bus.")
    kmsg.say("NVRM: GPU 0000:1a:00.0: GPU has fallen off the bus.")
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    kmsg.say("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    collector.read(state)
    collector.on_xid(gpu, XidEvent(1e6 + kmsg.now_s, 149))
    kmsg.say("NVRM: Xid (PCI:0000:1a:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)")
    page = {(family.metric, dict(family.labels).get("xid")): family.value for family in collector.read(state)}

    # then each counts once, with its job
    assert page["gpu_xid_errors_total", "79"] == 1
    assert page["gpu_xid_errors_total", "154"] == 1
    assert page["gpu_xid_errors_total", "149"] == 1
    assert page["gpu_xid_last_job_info", "149"] == 1
    assert page["nvswitch_sxid_errors_total", None] == 1
    assert page["rankscope_exporter_kernel_log_readable", None] == 1
    assert page["rankscope_exporter_xid_journal_durable", None] == 1
    assert collector.read(state) == collector.read(state)
    collector.close()


def test_unreadable_kernel_log_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = XidJournal(tmp_path / "state", job_at=lambda uuid: None)
    collector = XidCollector(journal, KernelLog(tmp_path / "missing"))
    state = FleetState((), None, {}, 0, 0, None, None)

    for _ in range(3):
        page = {family.metric: family.value for family in collector.read(state)}

    assert page["rankscope_exporter_kernel_log_readable"] == 0
    assert caplog.text.count("No such file") == 1
    collector.close()

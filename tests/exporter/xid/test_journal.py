"""The Xid journal: each error counts once, for every source and any number of restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporter.xid.journal_node import GPU, PCI, SWITCH, Node, values

from rankscope.exporter.source import GpuIdentity
from rankscope.exporter.xid.entry import KernelXid
from rankscope.exporter.xid.journal import SEVERITY_WAIT_S
from rankscope.exporter.xid.matching import EARLY_S, LATE_S
from rankscope.exporter.xid.series import RECENT_S
from rankscope.exporter.xid.tallies import NEW_CODES, NEW_CODES_S
from rankscope.exporter.xids import ACTIONABLE, CRITICAL, GRADED


def test_critical_codes_start_at_zero_and_others_at_the_first_event(node: Node) -> None:
    assert node.values() == [0.0] * len(CRITICAL)
    assert node.values("gpu_xid_last_code") == [0.0]
    assert node.values("gpu_xid_last_timestamp_seconds") == []

    node.event(31)
    node.wait(60)
    node.event(31)

    assert node.values(xid="31") == [2.0]
    assert len(node.values()) == len(CRITICAL) + 1
    assert node.values("gpu_xid_last_timestamp_seconds", xid="31") == [1_000_060.0]
    assert node.values("gpu_xid_last_code") == [31.0]


def test_event_and_log_line_of_one_error_count_once_in_any_order(node: Node) -> None:
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


def test_repeated_errors_are_counted_separately(node: Node) -> None:
    for _ in range(3):
        node.event(94)
        node.line(94)
    node.event(94)

    assert node.count(94) == 4


@given(order=st.lists(st.sampled_from(["nvml", "kernel_log"]), max_size=30))
def test_burst_count_is_the_maximum_of_both_sources(order: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    node = Node(tmp_path_factory.mktemp("state"))
    for seen_by in order:
        if seen_by == "nvml":
            node.event()
        else:
            node.line()

    assert node.count() == max(order.count("nvml"), order.count("kernel_log"))


def test_distant_or_different_errors_are_not_merged(node: Node) -> None:
    node.event(95)
    node.line(94)
    node.line(95, pci_bus_id="00000000:1b:00.0")
    node.wait(2 * EARLY_S)
    node.line(95)
    assert (node.count(94), node.count(95)) == (1, 2)

    node.wait(2 * LATE_S)
    node.event(95)
    assert node.count(95) == 3


def test_late_driver_event_is_matched_to_the_log_line(node: Node) -> None:
    node.line(119)
    node.line(119)
    node.wait(60)
    node.event(119)
    node.event(119)

    assert node.count(119) == 2


def test_gpu_off_the_bus_counts_once_despite_repeated_messages(node: Node) -> None:
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


def test_log_read_again_after_a_restart_is_not_counted_twice(node: Node) -> None:
    lines = [node.line(79), node.line(79), node.line(31)]
    node.event(79)
    node.event(48)

    node.restart()
    for line in lines:
        node.journal.record_line(line, GPU.uuid)
    node.line(48)

    assert (node.count(79), node.count(31), node.count(48)) == (2, 1, 1)


def test_reused_log_sequence_numbers_after_a_boot_are_new_errors(node: Node) -> None:
    node.line(79)
    node.journal.close()
    node.boot_id, node.boot_s, node.seq = "boot-2", 20.0, 5

    node.journal = node.start()
    node.line(79)

    assert node.count() == 2
    assert node.values("gpu_xid_last_code") == [79.0]


def test_job_is_recorded_for_current_errors_but_not_for_past_errors(node: Node) -> None:
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


def test_errors_of_an_unknown_gpu_are_assigned_once_identified(node: Node) -> None:
    late = GpuIdentity(uuid="GPU-late", index=1, model="H100", pci_bus_id="00000000:3b:00.0")
    node.line(48, pci_bus_id=late.pci_bus_id)
    assert node.count(48) == 0

    assert values(node.journal.series([late]), "gpu_xid_errors_total", uuid="GPU-late", xid="48") == [1.0]
    node.restart()
    assert values(node.journal.series([late]), "gpu_xid_errors_total", uuid="GPU-late", xid="48") == [1.0]


def test_a_new_gpu_at_an_address_after_a_boot_does_not_inherit_errors(node: Node) -> None:
    replacement = GpuIdentity(uuid="GPU-new", index=1, model="H100", pci_bus_id="00000000:3b:00.0")
    node.line(48, pci_bus_id=replacement.pci_bus_id)
    node.journal.close()
    node.boot_id = "boot-2"

    node.journal = node.start()

    assert values(node.journal.series([replacement]), "gpu_xid_errors_total", xid="48") == [0.0]
    assert [entry.uuid for entry in node.journal.entries()] == [""]


def test_clock_jumps_neither_split_nor_merge_errors(node: Node) -> None:
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


def test_timestamps_follow_clock_changes(node: Node) -> None:
    node.event(79)
    assert node.values("gpu_xid_last_timestamp_seconds") == [1_000_000.0]
    node.wait(60)
    node.unix_s -= 30 * 86_400.0
    assert node.values("gpu_xid_last_timestamp_seconds") == [node.unix_s - 60]

    # The errors of an earlier boot are from before this one, whatever their clock was
    node.unix_s += 60 * 86_400.0
    node.event(62)
    node.unix_s -= 30 * 86_400.0
    node.boot_id, node.boot_s = "boot-2", 10.0
    node.restart()
    assert node.values("gpu_xid_last_timestamp_seconds", xid="62") == [node.unix_s - 10]
    assert node.values("gpu_last_reset_timestamp_seconds") == [node.unix_s - 10]


def test_last_reset_is_the_latest_reset_or_boot_and_is_persistent(node: Node) -> None:
    booted = node.unix_s - node.boot_s
    assert node.values("gpu_last_reset_timestamp_seconds") == [booted]
    node.event(62)
    node.wait(600)
    node.journal.record_reset(GPU.uuid, PCI, node.boot_s - 5)
    node.wait(1)
    node.event(62)
    assert node.values("gpu_last_reset_timestamp_seconds") == [node.unix_s - 6]
    assert node.values("gpu_xid_last_timestamp_seconds", xid="62") == [node.unix_s]
    assert node.count(62) == 2

    node.wait(1)
    node.unix_s += 86_400.0
    node.restart()
    assert node.values("gpu_last_reset_timestamp_seconds") == [node.unix_s - 7]
    assert node.values("gpu_xid_last_code") == [0.0]


def test_older_error_found_later_does_not_update_the_last_error(node: Node) -> None:
    node.event(31)
    node.line(31, ago_s=600)

    assert node.count(31) == 2
    assert node.values("gpu_xid_last_timestamp_seconds", xid="31") == [1_000_000.0]


def test_many_new_codes_get_series_gradually_without_loss(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        for code in range(200, 400):
            node.event(code)
            node.line(code, kind="sxid", pci_bus_id=SWITCH, severity="non_fatal")
    for code in ACTIONABLE:
        node.event(code)

    # then what asks for an operator is there at once, the others so many at a time, and the log names it once
    codes = [code for code in ACTIONABLE if not 200 <= code < 400]
    assert len([value for value in node.values() if value]) == len(codes) + NEW_CODES
    assert len(node.values("nvswitch_sxid_errors_total")) == NEW_CODES
    assert [f"from {200 + NEW_CODES} on" in record.getMessage() for record in caplog.records] == [True, True]

    node.wait(NEW_CODES_S)
    assert len([value for value in node.values() if value]) == len(codes) + 2 * NEW_CODES
    assert node.count(200 + 2 * NEW_CODES - 1) == 2
    for _ in range(200 // NEW_CODES):
        node.wait(NEW_CODES_S)
        node.values()
    assert [node.count(code) for code in range(200, 400)] == [2] * 200

    # and a restart takes no series away
    shown = set(node.journal.series([GPU]))
    node.restart()
    assert {item for item in shown if item.metric != "gpu_xid_last_code"} < set(node.journal.series([GPU]))


def test_restart_removes_no_series_of_new_codes(node: Node) -> None:
    for code in range(200, 200 + NEW_CODES):
        node.event(code)
    node.wait(NEW_CODES_S)
    for code in range(300, 300 + NEW_CODES):
        node.event(code)
    before = node.values()

    node.restart()

    assert sorted(node.values()) == sorted(before)


def test_nvlink_severity_comes_from_the_log_line_in_any_order(node: Node) -> None:
    node.journal.expects_lines = True
    for code in GRADED:
        node.event(code)
        node.line(code, severity="fatal")
        node.line(code, severity="non_fatal")
        node.event(code)

    for code in GRADED:
        assert node.values(xid=str(code), severity="fatal") == [1]
        assert node.values(xid=str(code), severity="non_fatal") == [1]
        assert node.values(xid=str(code)) == [1, 1]
    assert {entry.seen_by for entry in node.journal.entries()} == {("nvml", "kernel_log"), ("kernel_log", "nvml")}


def test_event_waits_for_the_log_line_only_briefly(node: Node) -> None:
    node.journal.expects_lines = True
    node.event(149)
    node.event(79)
    assert (node.values(xid="149"), node.count(79)) == ([], 1)
    node.journal.flush()
    assert node.values(xid="149") == []

    node.wait(SEVERITY_WAIT_S)
    assert node.values(xid="149", severity="unknown") == [1]
    assert node.values("gpu_xid_last_timestamp_seconds", xid="149", severity="unknown") == [1_000_000.0]

    # a line that comes too late gives the record its severity and counts nothing again
    node.line(149, severity="fatal")
    assert node.values(xid="149") == [1]
    assert [entry.severity for entry in node.journal.entries() if entry.code == 149] == ["fatal"]


def test_events_do_not_wait_without_the_kernel_log(node: Node) -> None:
    node.event(149)
    assert node.values(xid="149", severity="unknown") == [1]


def test_waiting_event_survives_a_kill_and_a_restart(node: Node) -> None:
    node.journal.expects_lines = True
    node.event(149)
    node.journal.flush()
    node.restart()
    assert node.values(xid="149", severity="unknown") == [1]

    node.journal.expects_lines = True
    node.event(144)
    node.restart()
    node.restart()
    assert node.values(xid="144", severity="unknown") == [1]


def test_recent_errors_count_for_five_minutes_across_a_restart(node: Node) -> None:
    node.event(31)
    node.wait(60)
    node.event(31)
    node.line(43)
    assert node.values("gpu_xid_recent_errors", xid="31") == [2]

    node.restart()
    assert node.values("gpu_xid_recent_errors", xid="31") == [2]
    assert node.values("gpu_xid_recent_errors", xid="43") == [1]
    node.wait(RECENT_S - 60)
    assert node.values("gpu_xid_recent_errors") == [1, 1]
    node.wait(60)
    assert node.values("gpu_xid_recent_errors") == []


def test_errors_of_switches_are_counted_by_severity(node: Node) -> None:
    node.line(20034, kind="sxid", pci_bus_id=SWITCH, severity="fatal")
    node.line(12028, kind="sxid", pci_bus_id=SWITCH, severity="non_fatal")
    node.line(12028, kind="sxid", pci_bus_id=SWITCH, severity="non_fatal")

    assert node.values("nvswitch_sxid_errors_total", severity="fatal", sxid="20034", pci_bus_id=SWITCH) == [1.0]
    assert node.values("nvswitch_sxid_errors_total", severity="non_fatal") == [2.0]
    assert node.values("nvswitch_sxid_last_timestamp_seconds", severity="fatal") == [1_000_000.0]


@pytest.mark.slow
@given(
    story=st.lists(
        st.sampled_from(["event, line", "line, event", "event, crash, line", "line, crash", "crash", "restart", "flush", "wait"]),
        max_size=25,
    )
)
def test_every_error_counts_once_despite_crashes(story: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    # given errors that both NVML and the kernel log report, while the exporter is killed, restarted and flushed at any moment
    node = Node(tmp_path_factory.mktemp("state"))
    log: list[KernelXid] = []
    errors = 0

    def crash() -> None:
        assert node.journal._file is not None
        node.journal._file.close()  # a killed process only closes its files
        node.journal = node.start()
        for line in log:  # the kernel's buffer is read again
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

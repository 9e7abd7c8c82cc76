"""Logs of the NCCL Inspector plugin: who makes the others wait, and what damaged or hostile logs do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.nccl.faults import FAULTS
from tests.nccl.inspector import host_and_pid, write_logs
from tests.nccl.layouts import LAYOUTS, LayoutJob

from rankscope.analysis.durations import logs
from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.base.errors import InputError

pytestmark = pytest.mark.slow

STEPS = 32
Record = dict[str, Any]


def job(layout: str = "ddp", fault: str = "slow device", *, steps: int = STEPS, late: int = 3) -> LayoutJob:
    return LayoutJob(LAYOUTS[layout], FAULTS[fault], late=late, steps=steps)


def log_of(folder: Path, rank: int) -> Path:
    host, pid = host_and_pid(rank)
    return folder / f"{host}-pid{pid}.log"


def edit(folder: Path, change: Callable[[int, int, Record], None]) -> Path:
    """Change every record; ``change`` is called with rank, place in the log, and record."""
    for rank in range(8):
        rows = [json.loads(line) for line in log_of(folder, rank).read_text().splitlines()]
        for number, row in enumerate(rows):
            change(rank, number, row)
        log_of(folder, rank).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("fault", ["slow device", "pause of the host"])
@pytest.mark.parametrize("layout", ["ddp", "fsdp", "tp", "tp x dp"])
def test_late_rank_is_named(tmp_path: Path, layout: str, fault: str, *, verbose: bool) -> None:
    # given the logs of a job in which rank 3 is slow
    analysis = analyze([write_logs(job(layout, fault), tmp_path / "logs", verbose=verbose)])
    verdict = analysis.verdict
    # then it is named, and not the ranks that are late because they waited for it
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", [3], "unknown")
    assert (verdict.evidence_source, analysis.source.kind, analysis.imposed_wait_source) == ("nccl_inspector",) * 3
    # and its cost is not overstated: the faults cost 26 to 31 % of a step
    assert verdict.slowdown is not None
    assert 1.05 < verdict.slowdown < 1.33
    assert analysis.source.world_size == 8


@pytest.mark.sampled(3)
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("layout", ["ddp", "fsdp", "tp", "tp x dp"])
def test_no_rank_is_named_without_a_fault(tmp_path: Path, layout: str, *, verbose: bool) -> None:
    verdict = analyze([write_logs(job(layout, "none"), tmp_path / "logs", verbose=verbose)]).verdict
    assert (verdict.kind, verdict.rank) == ("balanced", None), verdict.summary


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["slow link", "one hiccup"])
@pytest.mark.parametrize("layout", ["ddp", "tp x dp"])
def test_slow_link_or_single_slow_step_names_no_rank(tmp_path: Path, layout: str, fault: str) -> None:
    verdict = analyze([write_logs(job(layout, fault), tmp_path / "logs")]).verdict
    assert (verdict.kind in ("balanced", "insufficient_data"), verdict.rank) == (True, None), verdict.summary


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["ddp", "tp", "tp x dp"])
def test_logs_of_plugins_before_2_30_are_accepted(tmp_path: Path, layout: str) -> None:
    analysis = analyze([write_logs(job(layout), tmp_path / "logs", old=True)])
    assert analysis.verdict.ranks == [3]
    assert any("2.30" in warning and "sends and receives" in warning for warning in analysis.source.warnings)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("layout", ["pp", "pp x tp"])
def test_pipelines_are_not_judged_by_collectives_alone(tmp_path: Path, layout: str, *, old: bool) -> None:
    # given pipelines, whose sends and receives old plugins do not log
    verdict = analyze([write_logs(job(layout, steps=20), tmp_path / "logs", old=old)]).verdict
    assert (verdict.kind, verdict.rank) == ("insufficient_data", None)
    assert "sends and receives" in verdict.summary


@pytest.mark.sampled(5)
@pytest.mark.parametrize("layout", ["pp", "pp x tp", "pp interleaved"])
@pytest.mark.parametrize(("fault", "named"), [("slow device", [3]), ("none", [])])
def test_verbose_logs_show_the_slow_rank_of_a_pipeline(tmp_path: Path, layout: str, fault: str, named: list[int]) -> None:
    # given stages that meet in sends and receives only, and late for each other
    verdict = analyze([write_logs(job(layout, fault), tmp_path / "logs", verbose=True)]).verdict
    assert (verdict.kind, verdict.ranks) == ("straggler" if named else "balanced", named), verdict.summary


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("fault", "named"), [("none", []), ("slow device", [1]), ("slow link", [])])
def test_ring_of_sends_and_receives_has_no_stages(tmp_path: Path, fault: str, named: list[int]) -> None:
    verdict = analyze([write_logs(job("ring attention", fault, late=1), tmp_path / "logs", verbose=True)]).verdict
    assert (verdict.ranks, verdict.stage) == (named, None), verdict.summary


@pytest.mark.parametrize("numbered", [False, True])
def test_unlogged_messages_of_a_pipeline_name_no_rank(tmp_path: Path, *, numbered: bool) -> None:
    # given logs without receives: too small for the plugin, which does not number these, or overwritten before the dump
    folder = write_logs(job("pp"), tmp_path / "logs", verbose=True)
    for rank in range(8):
        rows = [json.loads(line) for line in log_of(folder, rank).read_text().splitlines()]
        rows = [row for row in rows if row.get("p2p_perf", {}).get("p2p") != "Recv"]
        for number, row in enumerate(row for row in rows if "p2p_perf" in row):
            row["p2p_perf"]["p2p_sn"] = row["p2p_perf"]["p2p_sn"] if numbered else number + 1
        log_of(folder, rank).write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = analyze([folder]).verdict
    # then ranks that wait in them are not taken for slow ones
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", [])
    assert ("all of these" if numbered else "messages that are not in the logs") in verdict.summary


def test_parts_of_a_batch_that_end_early_blame_no_other_rank(tmp_path: Path) -> None:
    # given batches whose first part ends long before the kernel does
    def shorten(_rank: int, number: int, row: Record) -> None:
        perf = row.get("p2p_perf")
        if perf is not None and number % 2 and perf["p2p"] == "Send":
            kernel = perf["event_trace_ts"]["kernel_events"][0]
            perf["p2p_exec_time_us"] = min(100, perf["p2p_exec_time_us"])
            kernel["kernel_stop_ts"] = kernel["kernel_start_ts"] + perf["p2p_exec_time_us"]

    analysis = analyze([edit(write_logs(job("pp"), tmp_path / "logs", verbose=True), shorten)])
    assert analysis.verdict.rank in (3, None), analysis.verdict.summary


def test_ranks_come_from_the_communicator_of_all_processes(tmp_path: Path) -> None:
    # given a job whose process ids do not ascend with the rank
    folder = edit(write_logs(job(), tmp_path / "logs"), lambda rank, _, row: row["metadata"].update(pid=9000 - rank))
    analysis = analyze([folder])
    assert analysis.verdict.ranks == [3]
    assert not analysis.source.warnings


def test_processes_without_a_world_communicator_are_numbered_and_named(tmp_path: Path) -> None:
    analysis = analyze([write_logs(job("tp x dp"), tmp_path / "logs")])
    host, pid = host_and_pid(3)
    assert any("numbered by host and process id" in warning for warning in analysis.source.warnings)
    assert f"rank 3 is process {pid} on {host}" in analysis.source.warnings


def test_numbers_in_node_names_sort_numerically(tmp_path: Path) -> None:
    # given eight hosts, of which the tenth comes after the ninth
    change: Callable[[int, int, Record], None] = lambda rank, _, row: row["metadata"].update(hostname=f"node{rank + 7}")  # noqa: E731
    folder = edit(write_logs(job("tp x dp"), tmp_path / "logs"), change)
    assert analyze([folder]).verdict.ranks == [3]


def test_unlogged_small_messages_do_not_shift_the_others(tmp_path: Path) -> None:
    # given a plugin that ignores the smaller buckets on one rank only
    folder = write_logs(job(), tmp_path / "logs")
    rows = log_of(folder, 5).read_text().splitlines(keepends=True)
    log_of(folder, 5).write_text("".join(rows[:30] + rows[40:]))
    analysis = analyze([folder])
    assert analysis.verdict.ranks == [3]
    assert analysis.collectives.unmatched_by == {"incomplete": 10}


def test_unlogged_collectives_of_each_step_are_insufficient_data(tmp_path: Path) -> None:
    # given a healthy job in which every other collective is too small to be logged
    folder = write_logs(job(fault="none"), tmp_path / "logs")
    edit(folder, lambda _rank, _number, row: row["coll_perf"].update(coll_sn=2 * row["coll_perf"]["coll_sn"]))
    verdict = analyze([folder]).verdict
    assert verdict.kind == "insufficient_data"
    assert "not in the logs" in verdict.summary


def test_logs_of_one_rank_are_insufficient_data(tmp_path: Path) -> None:
    analysis = analyze([write_logs(job(), tmp_path / "logs", ranks=[3])])
    assert (analysis.verdict.kind, analysis.verdict.rank) == ("insufficient_data", None)
    assert "one rank cannot show" in analysis.verdict.summary
    assert "logs of 1 of 8 ranks" in " ".join(analysis.source.warnings)


def test_missing_log_leads_to_no_named_rank(tmp_path: Path) -> None:
    folder = write_logs(job("tp x dp"), tmp_path / "logs", ranks=[0, 1, 2, 4, 5, 6, 7])
    assert analyze([folder]).verdict.kind == "insufficient_data"


def test_logs_of_an_earlier_job_are_left_out(tmp_path: Path) -> None:
    # given the logs of a job that was late on rank 3, and those of its restart, which is late on rank 6
    folder = write_logs(job(late=3), tmp_path / "logs")
    before = {path.name: path.read_text() for path in folder.iterdir()}
    write_logs(job(late=6), folder)

    def restarted(_rank: int, _number: int, row: Record) -> None:
        row["header"]["id"] += "1"
        row["metadata"]["pid"] += 100
        row["metadata"]["dump_timestamp_us"] += 3_600_000_000

    edit(folder, restarted)
    for name, text in before.items():
        (folder / f"before-{name}").write_text(text)
    analysis = analyze([folder])
    assert analysis.verdict.ranks == [6]
    assert any("8 logs left out" in warning for warning in analysis.source.warnings)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["concatenated", "indented", "compressed", "array"])
def test_other_encodings_of_the_log_are_accepted(tmp_path: Path, form: str) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    for path in list(folder.iterdir()):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if form == "compressed":
            path.with_suffix(".log.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        elif form == "array":
            path.write_text(json.dumps(rows))
        else:
            path.write_text("".join(json.dumps(row, indent=2 if form == "indented" else None) for row in rows))
    analysis = analyze([folder])
    assert (analysis.verdict.ranks, analysis.source.warnings) == ([3], [])


def test_incomplete_last_record_of_a_log_is_no_damage(tmp_path: Path) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    path = log_of(folder, 2)
    path.write_text(path.read_text()[:-40])
    analysis = analyze([folder])
    assert (analysis.verdict.ranks, analysis.source.warnings) == ([3], [])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\xff\xfe not JSON\n",
        b'{"header":{"id":"0x1","rank":0,"n_ranks":8},"metadata":{"hostname":"\xff","pid":1,"dump_timestamp_us":1}}\n',
        b'{"header":' + b"[" * 100_000 + b"\n",
        b'{"header":{"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001 + b"}\n",
        b'{"header":"' + b"x" * 3_000_000 + b'"}\n',
        b'{"header":{"id":"0x1","rank":1e400,"n_ranks":8},"metadata":{}}\n',
    ],
)
def test_damaged_records_are_counted(tmp_path: Path, damage: bytes) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    path = log_of(folder, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:40], damage, *lines[40:]]))
    analysis = analyze([folder])
    assert analysis.verdict.ranks == [3]
    assert any("left out, which make no sense" in warning and str(path) in warning for warning in analysis.source.warnings)


SENSELESS: list[object] = [-1, 0, 10**30, 1e300, float("nan"), "1", True, None, [1], {"a": 1}, 2**53 + 1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", ["coll_sn", "coll_exec_time_us", "coll_msg_size_bytes", "rank", "n_ranks", "dump_timestamp_us"])
def test_absurd_values_do_not_change_the_verdict(tmp_path: Path, key: str) -> None:
    # given one record with each such value in the log of each rank
    def change(_rank: int, number: int, row: Record) -> None:
        if number % 8 == 7 and number // 8 < len(SENSELESS):
            next(part for part in row.values() if key in part)[key] = SENSELESS[number // 8]

    analysis = analyze([edit(write_logs(job(steps=48), tmp_path / "logs"), change)])
    assert analysis.verdict.rank in (3, None)
    assert any("no sense" in warning for warning in analysis.source.warnings)
    msgspec.json.encode(analysis)


def test_huge_communicator_does_not_exhaust_memory(tmp_path: Path) -> None:
    folder = edit(write_logs(job(), tmp_path / "logs"), lambda _rank, _number, row: row["header"].update(n_ranks=2**24))
    analysis = analyze([folder])
    assert (analysis.verdict.kind, analysis.source.world_size) == ("insufficient_data", 2**24)


def test_only_the_last_operations_of_long_logs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.analysis.durations.nccl_inspector.MAX_CALLS", 8 * 60)
    monkeypatch.setattr(logs, "_HEAD_BYTES", 1000)
    monkeypatch.setattr(logs, "_USUAL_RECORD_BYTES", 500)
    analysis = analyze([write_logs(job(steps=60), tmp_path / "logs")])
    assert (analysis.verdict.ranks, analysis.source.steps) == ([3], 17)
    assert any("last 60 operations" in warning for warning in analysis.source.warnings)
    assert not any("no sense" in warning for warning in analysis.source.warnings)


def test_host_durations_are_refused(tmp_path: Path) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    edit(folder, lambda _rank, _number, row: row["coll_perf"].update(coll_timing_source="collective_cpu"))
    with pytest.raises(InputError, match="NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING"):
        analyze([folder])


def test_process_with_several_ranks_is_refused(tmp_path: Path) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    text = "".join(path.read_text() for path in sorted(folder.iterdir()))
    for path in folder.iterdir():
        path.unlink()
    pid = host_and_pid(0)[1]
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        row["metadata"]["pid"] = pid
    (folder / f"node0-pid{pid}.log").write_text("".join(json.dumps(row) for row in rows))
    with pytest.raises(InputError, match="several ranks of one communicator"):
        analyze([folder])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("node0-pid1.log", "", "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"),
        ("node0-pid1.log", "Epoch 1: loss 3.2\n" * 100, "node0-pid1"),
        # the plugin's other format
        ("nccl_inspector_metrics.prom", 'nccl_bus_bandwidth_gbs{version="v5.1"} 678.263\n', "NCCL_INSPECTOR_PROM_DUMP=0"),
    ],
)
def test_files_without_records_are_an_error(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        analyze([tmp_path])


def test_other_files_beside_the_logs_are_left_out(tmp_path: Path) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    (folder / "train.log").write_text("Epoch 1\n")
    (folder / "README.md").write_text("# Logs\n")
    (folder / "config.json").write_text("{}")
    (folder / "old").mkdir()
    analysis = analyze([folder])
    assert analysis.verdict.ranks == [3]
    assert len(analysis.source.warnings) == 1
    assert "train.log" in analysis.source.warnings[0]


def test_unreadable_log_is_left_out(tmp_path: Path) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    log_of(folder, 6).write_bytes(b"")
    analysis = analyze([str(folder / "*.log")])
    assert analysis.source.ranks == 7
    assert any("left out" in warning and log_of(folder, 6).name in warning for warning in analysis.source.warnings)


def test_traces_beside_logs_take_precedence(tmp_path: Path) -> None:
    folder = write_logs(job(), tmp_path / "logs")
    (folder / "rank-0.json").write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(InputError, match="rank-0"):
        analyze([folder])


def test_trace_options_are_refused_for_logs(tmp_path: Path) -> None:
    logs = write_logs(job(steps=4), tmp_path / "logs")
    with pytest.raises(InputError, match="for traces"):
        analyze([logs], cycle=1)
    assert analyze([logs], detail=True) == analyze([logs])


def test_text_names_its_source(tmp_path: Path) -> None:
    text = render_text(analyze([write_logs(job(), tmp_path / "logs")]), width=100)
    assert "judged by nccl inspector" in text


def test_dump_statistics_are_no_damage(tmp_path: Path) -> None:
    folder = write_logs(job("tp"), tmp_path / "logs", verbose=True)
    for rank in range(8):
        lines = log_of(folder, rank).read_text().splitlines()
        record = json.loads(lines[0])
        stats = {"coll_records": 1, "coll_dropped_total": 3, "coll_dropped_since_last_dump": 3}
        first = {"header": record["header"], "metadata": record["metadata"], "dump_stats": stats}
        log_of(folder, rank).write_text("\n".join([json.dumps(first), *lines]))
    analysis = analyze([folder])
    assert analysis.verdict.ranks == [3]
    assert not any("make no sense" in warning for warning in analysis.source.warnings)


@pytest.mark.parametrize("verbose", [True, False])
def test_verbose_logs_are_requested_only_where_they_are_missing(tmp_path: Path, *, verbose: bool) -> None:
    logs_of_job = write_logs(job("tp x dp", "slow link"), tmp_path, verbose=verbose)
    summary = analyze([logs_of_job]).verdict.summary
    assert "record the job with `rankscope run`" in summary
    assert ("NCCL_INSPECTOR_DUMP_VERBOSE=1" in summary) == (not verbose)

"""Which rank holds the others up, by what the ranks are doing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.analysis.hang.activity import BELIEVED_NS, Activities, hang_by_activity, read_activities, with_activity
from rankscope.analysis.hang.hang_result import HangReport, RasReport
from rankscope.analysis.hang.hang_terminal import render_text
from rankscope.runs.paths import activity_file, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import AttemptInfo, Phase, RankActivity, RankInfo, RunInfo
from rankscope.runs.small_files import create_attempt, create_run, write_record

NOW = 1_700_000_000 * 10**9
SECOND = 10**9


def doing(rank: int, phase: Phase = "backward", *, waiting: bool | None = True, **others: Any) -> RankActivity:
    """Return what a rank does for 40 s."""
    about = {"attempt": 0, "step": 12, "since_unix_ns": NOW - 40 * SECOND, "updated_unix_ns": NOW - 9 * SECOND, **others}
    return RankActivity(rank=rank, phase=phase, waiting=waiting, **about)


def job(*rows: RankActivity, ended: dict[int, str] | None = None, unknown: list[int] | None = None) -> Activities:
    """Return the activities of ranks on hosts ``n0`` to ``n9``."""
    ended, unknown = ended or {}, unknown or []
    ranks = [*(row.rank for row in rows), *ended, *unknown]
    infos = {rank: RankInfo(rank=rank, world_size=len(ranks), host=f"n{rank}", pid=50 + rank, start_unix_ns=1) for rank in ranks}
    return Activities({row.rank: row for row in rows}, ended, unknown, infos, "/runs/a", 0, len(ranks), NOW)


BUSY: dict[str, Any] = {"phase": "data", "waiting": False}
CASES = {
    "one loads data": (job(doing(0), doing(1, **BUSY), doing(2)), "hang", "not_arrived", [1]),
    "one writes a checkpoint": (
        job(doing(0, "between_steps", waiting=False, section="checkpoint"), doing(1), doing(2)), "hang", "not_arrived", [0],
    ),
    "two do not wait": (job(doing(0), doing(1, **BUSY), doing(2, "forward", waiting=False)), "hang", "not_arrived", [1, 2]),
    "a process is stopped while it waits": (job(doing(0), doing(1, process="stopped")), "hang", "not_arrived", [1]),
    "all wait": (job(doing(0), doing(1), doing(2)), "hang", "stuck", []),
    "one waits elsewhere": (job(doing(0), doing(1, "forward"), doing(2)), "hang", "deadlock", [1]),
    "half wait elsewhere": (job(doing(0), doing(1, "forward")), "hang", "stuck", []),
    "one has ended": (job(doing(0), doing(1), ended={2: "killed"}), "hang", "not_arrived", [2]),
    "one has ended, and of another nothing is known": (
        job(doing(0), ended={2: "exit"}, unknown=[1]), "insufficient_data", None, [],
    ),
    "of one nothing is known": (job(doing(0), doing(1), unknown=[2]), "insufficient_data", None, []),
    "none waits": (job(doing(0, **BUSY), doing(1, **BUSY)), "insufficient_data", None, []),
    "one of many on devices loads data": (
        job(*(doing(rank, "forward", waiting=None) for rank in range(3)), doing(3, "data", waiting=None)),
        "hang", "not_arrived", [3],
    ),
    "all on devices load data": (job(*(doing(rank, "data", waiting=None) for rank in range(4))), "insufficient_data", None, []),
    "devices in forward": (job(*(doing(rank, "forward", waiting=None) for rank in range(4))), "insufficient_data", None, []),
    "waits are known of some only": (job(doing(0), doing(1, "forward", waiting=None)), "insufficient_data", None, []),
    "alone and busy": (job(doing(0, **BUSY)), "insufficient_data", None, []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rank_that_delays_the_others_is_the_culprit(name: str) -> None:
    activities, kind, cause, culprits = CASES[name]
    report = hang_by_activity(activities)
    assert (report.kind, report.cause, report.culprits) == (kind, cause, culprits)
    assert [row.rank for row in report.evidence] == culprits
    assert not any(row.certain for row in report.evidence)
    assert report.activity is not None
    assert report.activity.standing == len(activities.doing)
    text = render_text(report, width=200)
    assert all(f"rank {rank} on n{rank} (likely)" in text for rank in culprits)


def test_answer_names_activity_and_duration() -> None:
    report = hang_by_activity(job(doing(0), doing(1, **BUSY), doing(2), unknown=[7]))
    for fact in ("Rank 1", "loading data", "step 12", "for 40 s", "2 ranks wait", "in backward", "rank 7"):
        assert fact in report.summary
    assert any("py-spy dump --pid 51" in step for step in report.next)


def test_section_name_cannot_control_the_terminal() -> None:
    report = hang_by_activity(job(doing(0), doing(1, "forward", waiting=False, section="\x1b[31m" + "x" * 500)))
    assert report.summary.isprintable()
    assert len(report.summary) < 400


def recorded(tmp_path: Path, ranks: int = 3, **about: Any) -> RunReader:
    """Write a run whose ranks stand still, of which the last does not wait."""
    create_run(tmp_path, RunInfo(run_id="r", name="r", start_unix_ns=1))
    create_attempt(tmp_path, AttemptInfo(attempt=0, start_unix_ns=1, world_size=ranks))
    for rank in range(ranks):
        write_record(
            rank_dir(tmp_path, 0, rank) / "rank.json", RankInfo(rank=rank, world_size=ranks, host="h", pid=1, start_unix_ns=1)
        )
        write_record(activity_file(tmp_path, 0, rank), doing(rank, waiting=rank < ranks - 1, **about))
    return RunReader(tmp_path)


def read(reader: RunReader) -> Activities | None:
    return read_activities(reader, 0, reader.infos(0), now_unix_ns=NOW)


def test_activity_files_of_a_run_are_read(tmp_path: Path) -> None:
    activities = read(recorded(tmp_path))
    assert activities is not None
    assert (sorted(activities.doing), activities.unknown, activities.ended) == ([0, 1, 2], [], {})
    assert hang_by_activity(activities).culprits == [2]


@pytest.mark.parametrize(
    "about", [{"updated_unix_ns": NOW - BELIEVED_NS - 1}, {"updated_unix_ns": NOW + BELIEVED_NS + 1}, {"attempt": 1}]
)
def test_activity_file_of_another_time_or_attempt_is_ignored(tmp_path: Path, about: dict[str, int]) -> None:
    assert read(recorded(tmp_path, **about)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{", b"\xff" * 100, json.dumps({"attempt": 0, "rank": 2}).encode(),
        json.dumps(msgspec.to_builtins(doing(2)) | {"phase": "<script>"}).encode(),
        json.dumps(msgspec.to_builtins(doing(2)) | {"since_unix_ns": -5}).encode(),
        json.dumps(msgspec.to_builtins(doing(2)) | {"since_unix_ns": 2**70}).encode(),
        json.dumps(msgspec.to_builtins(doing(2)) | {"rank": 1}).encode(),
        b" " * (17 * 2**20),
    ],
)  # fmt: skip
def test_hostile_activity_file_is_left_out_and_its_rank_unknown(tmp_path: Path, content: bytes) -> None:
    reader = recorded(tmp_path)
    activity_file(tmp_path, 0, 2).write_bytes(content)
    activities = read(reader)
    assert activities is not None
    assert (sorted(activities.doing), activities.unknown) == ([0, 1], [2])


def test_pipe_in_place_of_the_activity_file_does_not_block(tmp_path: Path) -> None:
    reader = recorded(tmp_path)
    activity_file(tmp_path, 0, 2).unlink()
    os.mkfifo(activity_file(tmp_path, 0, 2))
    activities = read(reader)
    assert activities is not None
    assert activities.unknown == [2]


def test_ended_rank_has_no_activity_despite_its_file(tmp_path: Path) -> None:
    reader = recorded(tmp_path)
    ended = RankInfo(rank=2, world_size=3, host="h", pid=1, start_unix_ns=1, end_unix_ns=5, end_reason="killed")
    write_record(rank_dir(tmp_path, 0, 2) / "rank.json", ended)
    activities = read(reader)
    assert activities is not None
    assert (sorted(activities.doing), activities.ended) == ([0, 1], {2: "killed"})
    assert hang_by_activity(activities).culprits == [2]


def by_dumps(kind: str, cause: str | None = None, culprits: tuple[int, ...] = (), *, moved: bool | None = None) -> HangReport:
    """Return a report of dumps, or of NCCL RAS that was asked now."""
    base = hang_by_activity(job(doing(0)))
    ras = None
    if moved is not None:
        ras = msgspec.convert(
            {
                "address": "localhost:1", "live": True, "asked_unix_ns": 1, "answers": 2, "interval_s": 5, "moved": moved,
                "nccl_version": None, "format": "json", "communicators": 1, "gpus": 3, "timeouts": 0, "kind": kind,
                "cause": None, "culprits": [], "certain": False, "summary": "s", "differing": [],
            },
            RasReport,
        )  # fmt: skip
    return msgspec.structs.replace(
        base, kind=kind, cause=cause, culprits=[*culprits], evidence=[], summary="By the dumps.", activity=None, ras=ras
    )


LATE = job(doing(0), doing(1, **BUSY), doing(2))


@pytest.mark.parametrize(
    ("report", "culprits", "warned"),
    [
        (by_dumps("hang", "not_arrived", (1,)), [1], False),
        (by_dumps("hang", "not_arrived", (2,)), [2], True),
        (by_dumps("hang", "mismatch", (0,)), [0], True),
        (by_dumps("hang", "stuck"), [1], True),
        (by_dumps("hang", "no_dump", (0,)), [1], True),
        (by_dumps("insufficient_data"), [1], False),
        (by_dumps("no_hang"), [1], True),
        (by_dumps("no_hang", moved=True), [], False),
        (by_dumps("insufficient_data", moved=False), [1], False),
    ],
)
def test_culprits_from_calls_take_precedence_over_activities(report: HangReport, culprits: list[int], warned: bool) -> None:
    joined = with_activity(report, LATE)
    assert joined.culprits == culprits
    assert bool(joined.warnings) == warned
    assert joined.activity is not None
    assert joined.activity.culprits == [1]


def test_activities_without_a_culprit_do_not_change_the_dump_report() -> None:
    report = by_dumps("hang", "stuck")
    joined = with_activity(report, job(doing(0), doing(1)))
    assert msgspec.structs.replace(joined, activity=None) == report

"""Diagnosis of hangs: real dumps with planted faults, and synthetic dumps of every kind of hang."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dumped_job import Call, DumpedJob, leave_pending, p2p, report_of
from tests.flight_dump_files import START_NS, as_json, write

from rankscope.analysis.hang.diagnosis import analyze_hang, diagnose
from rankscope.analysis.hang.files import LoadedDumps
from rankscope.analysis.hang.flight_records import parse

WORLD = {"0": (0, 1, 2, 3)}
LONG = dict.fromkeys(range(4), 211.0)
"""Seconds to the dumps of a job that hangs."""


def planted(folder: Path) -> list[int]:
    first = (folder / "fault_injection.log").read_text().splitlines()[0]
    return [int(part) for part in first.partition("[")[2].rstrip("]").split(",")]


@pytest.mark.parametrize(
    ("case", "cause", "group"),
    [
        ("lock_gil_1st", "not_arrived", "EXPERT_MODEL_PARALLEL_GROUP"),
        ("gpu_error_1st", "lost_device", "EXPERT_MODEL_PARALLEL_GROUP"),
    ],
)
def test_real_dumps_name_exactly_the_planted_ranks(shared_data: Path, case: str, cause: str, group: str) -> None:
    # Given 16 ranks of a Megatron job (tensor, pipeline, data, expert parallel), two of which have a planted fault
    folder = shared_data / "flight_recorder" / case
    report = analyze_hang([folder])
    # then only these two are named, with the collective that the others wait in
    assert (report.kind, report.cause, report.culprits) == ("hang", cause, planted(folder))
    assert report.group is not None
    assert report.group.description == group
    assert set(report.culprits) <= set(report.group.ranks)
    assert sorted(row.rank for row in report.waiting) == [rank for rank in range(16) if rank not in report.culprits]
    # and the chain goes over the pipeline's groups to the first of them
    assert len(report.chain) >= 2
    assert report.chain[0].operation.op in {"send", "recv"}
    assert report.chain[-1].waits_for in report.culprits
    assert all(before.waits_for == after.rank for before, after in zip(report.chain, report.chain[1:], strict=False))


def test_half_of_the_real_dumps_names_no_innocent_rank_as_certain(shared_data: Path) -> None:
    folder = shared_data / "flight_recorder" / "lock_gil_1st"
    choice = random.Random(0)
    for _ in range(20):
        files = [folder / f"_dump_{rank}" for rank in choice.sample(range(16), 8)]
        report = analyze_hang(files)
        certain = {row.rank for row in report.evidence if row.certain}
        assert certain <= set(planted(folder))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[DumpedJob, int]:
    """Draw a job of any groups and any order of collectives, and the rank that stops before a collective that others need."""
    size = draw(st.integers(2, 8))
    groups: dict[str, tuple[int, ...]] = {"0": tuple(range(size))}
    for number in range(draw(st.integers(0, 4))):
        members = draw(st.sets(st.integers(0, size - 1), min_size=2))
        groups[str(number + 1)] = tuple(sorted(members))
    events = draw(st.lists(st.sampled_from(sorted(groups)), min_size=1, max_size=25))
    job = DumpedJob.of_events(groups, events, ahead=draw(st.integers(1, 6)))
    culprit = draw(st.sampled_from([rank for rank, calls in job.calls.items() if calls]))
    job.stops[culprit] = draw(st.integers(0, len(job.calls[culprit]) - 1))
    return job, culprit


@given(jobs(), st.booleans(), st.sampled_from([2000, 7]), st.booleans())
def test_stopped_rank_is_always_the_only_culprit(
    planted: tuple[DumpedJob, int], only_active: bool, ring: int, in_json: bool
) -> None:
    job, culprit = planted
    dumps = job.dumps(ring=ring, only_active=only_active)
    report = report_of({rank: as_json(dump) if in_json else dump for rank, dump in dumps.items()})
    assert (report.kind, report.cause, report.culprits) == ("hang", "not_arrived", [culprit])
    assert report.collective is not None
    made = job.calls[culprit][: job.stops[culprit]]
    assert culprit in job.groups[report.collective.group]
    assert report.collective.sequence > sum(call.group == report.collective.group for call in made)
    # and the waits of every waiting rank lead to it
    assert all(row.waits_for for row in report.waiting)


@given(jobs(), st.randoms(use_true_random=False))
def test_file_order_does_not_change_the_report(planted: tuple[DumpedJob, int], shuffle: random.Random) -> None:
    dumps = planted[0].dumps()
    order = list(dumps)
    shuffle.shuffle(order)
    assert report_of({rank: dumps[rank] for rank in order}) == report_of(dumps)


@given(jobs())
def test_job_that_ran_to_its_end_does_not_hang(planted: tuple[DumpedJob, int]) -> None:
    job, _ = planted
    job.stops.clear()
    report = report_of(job.dumps())
    assert (report.kind, report.culprits, report.waiting) == ("no_hang", [], [])


def test_rank_without_a_dump_is_the_likely_culprit_if_all_others_came() -> None:
    job = DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3})
    dumps = job.dumps()
    del dumps[2]
    report = report_of(dumps)
    assert (report.kind, report.cause, report.culprits) == ("hang", "no_dump", [2])
    assert [row.certain for row in report.evidence] == [False]
    assert report.coverage == 0.75


def test_no_rank_is_named_while_most_dumps_are_missing() -> None:
    dumps = DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps()
    report = report_of({0: dumps[0]})
    assert (report.kind, report.culprits, report.suspects) == ("insufficient_data", [], [1, 2, 3])
    assert "3 ranks" in report.summary


def test_missing_half_of_a_pipeline_yields_suspects_and_no_culprit(shared_data: Path) -> None:
    # Given dumps of the first stage alone, whose eight ranks each wait for another rank of the second
    folder = shared_data / "flight_recorder" / "lock_gil_1st"
    report = analyze_hang([folder / f"_dump_{rank}" for rank in range(8)])
    assert (report.kind, report.culprits, report.coverage) == ("insufficient_data", [], 0.5)
    assert report.suspects == list(range(8, 16))


def test_rank_without_a_dump_is_only_a_suspect_beside_a_late_one() -> None:
    dumps = DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3, 3: 3}).dumps()
    del dumps[3]
    report = report_of(dumps)
    assert (report.culprits, report.suspects) == ([2], [3])


def test_wait_chain_crosses_groups_to_the_missing_rank() -> None:
    # Given rank 0 that waits for 1 in one group, 1 for 2 in another, 2 for 3 in a third
    groups = {"a": (0, 1), "b": (1, 2), "c": (2, 3)}
    job = DumpedJob(groups, {0: [Call("a")], 1: [Call("b"), Call("a")], 2: [Call("c"), Call("b")], 3: []})
    report = report_of(job.dumps())
    assert report.culprits == [3]
    assert [(link.rank, link.waits_for, link.operation.group) for link in report.chain] == [(0, 1, "a"), (1, 2, "b"), (2, 3, "c")]


def test_culprits_of_different_groups_are_shown_with_their_groups() -> None:
    groups = {"0": range(4), "a": (0, 1), "b": (2, 3)}
    start = Call("0")
    calls = {0: [start, Call("a")], 1: [start], 2: [start, Call("b")], 3: [start]}
    report = report_of(DumpedJob(groups, calls).dumps(), waited_s=LONG)
    assert report.culprits == [1, 3]
    assert "rank 1" in report.next[0]
    assert "rank 3" in report.next[0]
    assert (
        "(rank 1) did not arrive at all_reduce 1 of group a; (rank 3) did not arrive at all_reduce 1 of group b" in report.summary
    )


def test_culprit_awaited_by_more_ranks_is_named_first() -> None:
    groups = {"0": range(5), "a": (0, 1), "b": (2, 3, 4)}
    start = Call("0")
    calls = {0: [start, Call("a")], 1: [start], 2: [start, Call("b")], 3: [start], 4: [start, Call("b")]}
    report = report_of(DumpedJob(groups, calls).dumps())
    assert [row.rank for row in report.evidence] == [3, 1]
    assert report.group is not None
    assert report.group.name == "b"


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    groups = {"a": (0, 1), "b": (0, 1)}
    for ahead in (1, 2):
        job = DumpedJob(groups, {0: [Call("a"), Call("b")], 1: [Call("b"), Call("a")]}, ahead=ahead)
        report = report_of(job.dumps())
        assert (report.cause, report.culprits) == ("deadlock", [0, 1])
        assert "Deadlock" in report.summary


def test_deadlocked_rank_with_another_order_is_named() -> None:
    groups = {"0": (0, 1, 2, 3), "1": (0, 1, 2, 3)}
    calls = {rank: [Call("0"), Call("1")] for rank in range(4)}
    calls[2] = [Call("1"), Call("0")]
    report = report_of(DumpedJob(groups, calls).dumps())
    assert (report.cause, report.culprits) == ("deadlock", [2])


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (Call("0", op="all_gather"), "op"),
        (Call("0", sizes=(9, 4)), "size"),
        (Call("0", dtype="Half"), "dtype"),
    ],
)
def test_rank_that_calls_another_operation_is_named(other: Call, what: str) -> None:
    dumps = DumpedJob(WORLD, {rank: [Call("0")] * 2 + [other if rank == 1 else Call("0")] for rank in range(4)}).dumps()
    leave_pending(dumps)
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("mismatch", [1])
    assert [(mismatch.what, mismatch.sequence) for mismatch in report.mismatches] == [(what, 3)]


def test_equal_element_counts_and_uneven_all_to_alls_are_no_mismatch() -> None:
    for first, second in [
        (Call("0", sizes=(8, 4)), Call("0", sizes=(32,))),
        (Call("0", "all_to_all", (3,)), Call("0", "all_to_all", (5,))),
    ]:
        dumps = DumpedJob({"0": (0, 1)}, {0: [first], 1: [second]}).dumps()
        leave_pending(dumps)
        report = report_of(dumps)
        assert (report.cause, report.mismatches) == ("stuck", [])


def test_two_ranks_that_disagree_are_shown_and_neither_is_accused() -> None:
    dumps = DumpedJob({"0": (0, 1)}, {0: [Call("0", sizes=(1,))], 1: [Call("0", sizes=(2,))]}).dumps()
    leave_pending(dumps)
    report = report_of(dumps)
    assert (report.kind, report.cause, report.culprits) == ("hang", "mismatch", [])
    assert report.mismatches[0].values == {"1 element": [0], "2 elements": [1]}


def test_group_is_named_and_no_rank_if_all_ranks_arrived() -> None:
    dumps = DumpedJob.of_events(WORLD, ["0"] * 3, descriptions={"0": "default_pg"}).dumps()
    leave_pending(dumps, state="started")
    report = report_of(dumps)
    assert (report.kind, report.cause, report.culprits) == ("hang", "stuck", [])
    assert report.group is not None
    assert report.group.ranks == [0, 1, 2, 3]
    assert "network" in report.summary


def test_device_that_did_not_start_the_common_operation_is_named() -> None:
    # Given a torch that records starts
    dumps = DumpedJob.of_events(WORLD, ["0"] * 3).dumps()
    for rank, dump in dumps.items():
        for entry in dump["entries"][:-1]:
            entry["time_discovered_started_ns"] = entry["time_created_ns"] + 1
        started = {"state": "scheduled"} if rank == 3 else {"state": "started", "time_discovered_started_ns": START_NS}
        dump["entries"][-1] |= {"retired": False, "time_discovered_completed_ns": None} | started
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("not_started", [3])


def test_send_without_a_receive_waits_for_the_receiver() -> None:
    # Given a pipeline of three stages, the last of which does nothing
    dumps = {rank: DumpedJob({"0": (4, 5, 6)}, {rank: [] for rank in (4, 5, 6)}).dumps()[rank] for rank in (4, 5, 6)}
    p2p(dumps[4], "send 0->1", "0", 1)
    p2p(dumps[5], "send 1->2", "0", 1)
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("not_arrived", [6])
    assert [(link.rank, link.waits_for) for link in report.chain] == [(4, 5), (5, 6)]
    assert report.collective is not None
    assert (report.collective.op, report.collective.peer) == ("send", 6)


def test_transfers_enqueued_on_both_sides_match_in_order() -> None:
    dumps = {rank: DumpedJob({"0": (0, 1)}, {0: [], 1: []}).dumps()[rank] for rank in (0, 1)}
    for number in (1, 2):
        p2p(dumps[0], "send 0->1", "0", number)
    p2p(dumps[1], "recv 1<-0", "0", 1)
    report = report_of(dumps)
    # The first is there on both sides and does not end.
    assert (report.cause, report.culprits) == ("stuck", [])


def test_last_record_of_a_coalesced_batch_shows_its_completion() -> None:
    # Given sends that torch never marks, as it times only the batch
    dumps = {rank: DumpedJob({"0": (0, 1)}, {0: [], 1: []}).dumps()[rank] for rank in (0, 1)}
    p2p(dumps[0], "send 0->1", "0", 1)
    p2p(dumps[0], "recv 0<-1", "0", 1)
    p2p(dumps[0], "coalesced", "0", 1, state="completed", retired=True)
    assert report_of(dumps).kind == "no_hang"
    dumps[0]["entries"][-1] |= {"state": "scheduled", "retired": False}
    report = report_of(dumps)
    assert (report.cause, report.culprits) == ("not_arrived", [1])


def test_running_job_dumped_at_different_times_does_not_hang() -> None:
    # Given rank 1 that was dumped while the others still made progress, for half a second
    full = DumpedJob.of_events(WORLD, ["0"] * 100)
    early = DumpedJob.of_events(WORLD, ["0"] * 100, stops={1: 50})
    dumps = full.dumps()
    dumps[1] = early.dumps()[1]
    leave_pending({rank: dumps[rank] for rank in (0, 2, 3)})
    report = report_of(dumps, waited_s={0: 1.1, 1: 0.5, 2: 1.2, 3: 1.0})
    assert (report.kind, report.culprits) == ("no_hang", [])
    # but when they were dumped a minute later, rank 1 is late
    report = report_of(dumps, waited_s=dict.fromkeys(range(4), 60.0))
    assert report.culprits == [1]
    assert report.waiting[0].waited_s == pytest.approx(59, abs=1)


def test_gloo_records_neither_completion_nor_group_members() -> None:
    job = DumpedJob.of_events(WORLD, ["0"] * 4, backend="gloo", descriptions={"0": "default_pg"}, stops={3: 2})
    report = report_of(job.dumps())
    assert (report.culprits, report.group.ranks_known if report.group else None) == ([3], False)
    # and with the size of the world a rank without a dump is reported as missing
    dumps = job.dumps()
    del dumps[3]
    report = report_of(dumps, world_size=4)
    assert (report.cause, report.culprits) == ("no_dump", [3])
    assert report_of(dumps).culprits == []


def test_gloo_operation_that_timed_out_has_not_completed() -> None:
    # Given ranks that an exception ended after ten minutes, in a collective that rank 3 did not reach
    job = DumpedJob.of_events(WORLD, ["0"] * 4, backend="gloo", descriptions={"0": "default_pg"}, stops={3: 2})
    documents = job.dumps()
    for rank in range(3):
        documents[rank]["entries"][-1]["retired"] = True
    dumps = LoadedDumps("dumps", world_size=4, crashed=dict.fromkeys(range(3), START_NS + 601 * 10**9))
    dumps.ranks = {rank: [dump] for rank, document in documents.items() if (dump := parse(document))}
    assert diagnose(dumps).culprits == [3]
    # also when it was killed and left nothing
    del dumps.ranks[3]
    report = diagnose(dumps)
    assert (report.cause, report.culprits) == ("no_dump", [3])
    # but an exception a moment after the last collective has another cause
    dumps.crashed = dict.fromkeys(range(3), START_NS + 10**9)
    assert diagnose(dumps).kind == "no_hang"


def test_missing_first_use_of_a_group_is_certain_only_with_pg_status() -> None:
    # Given a group that rank 3 never used, and its dump, which holds only a part of its past
    groups = {"0": (0, 1, 2, 3), "1": (2, 3)}
    job = DumpedJob(groups, {rank: [Call("0")] * 20 + ([Call("1")] if rank == 2 else []) for rank in range(4)})
    dumps = job.dumps(ring=5)
    dumps[3]["pg_status"] = {}
    report = report_of(dumps)
    assert [(row.rank, row.cause, row.certain) for row in report.evidence] == [(3, "not_arrived", False)]
    report = report_of(job.dumps(ring=5), waited_s=LONG)
    assert [(row.rank, row.cause, row.certain) for row in report.evidence] == [(3, "not_arrived", True)]


def test_dumps_are_read_as_pickle_and_json(tmp_path: Path) -> None:
    dumps = DumpedJob.of_events(WORLD, ["0"] * 5, stops={2: 3}).dumps()
    assert analyze_hang([write(tmp_path / "p", dumps)]).culprits == [2]
    assert analyze_hang([write(tmp_path / "j", dumps, form="json")]).culprits == [2]

"""Verdicts by NCCL RAS: what two answers prove, in JSON and in text, of jobs that hang, go on, stand, or are damaged."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.ras_server import Comm, answer, text_answer

from rankscope.analysis.hang.ras.json_form import MAX_OBJECTS, read_json
from rankscope.analysis.hang.ras.ras_judgement import RasJudgement, differing, judge
from rankscope.analysis.hang.ras.snapshot import LARGEST, AnswerError, Snapshot
from rankscope.analysis.hang.ras.text_form import MAX_KINDS, MAX_RANKS, read_text
from rankscope.analysis.hang.ras.wording import summary_of

EQUAL = dict.fromkeys(range(8), 42)
TP0, TP1 = (0, 1, 2, 3), (4, 5, 6, 7)


def seen(*comms: Comm) -> Snapshot:
    return read_json(answer(*comms).decode())


def ranks(judgement: RasJudgement) -> list[int | None]:
    return sorted((item.row.global_rank for item in judgement.named), key=lambda rank: (rank is None, rank))


def standing(*comms: Comm, world_size: int | None = None, pids: Mapping[int, int] | None = None) -> RasJudgement:
    """Judge a job of which two answers are the same."""
    return judge(seen(*comms), seen(*comms), world_size=world_size, pids=pids)


def test_rank_with_fewer_launches_is_named_if_counts_do_not_move() -> None:
    job = Comm({**EQUAL, 2: 41})
    judgement = standing(job)
    assert (judgement.kind, judgement.cause, ranks(judgement), judgement.certain) == ("hang", "not_arrived", [2], False)
    summary = summary_of(judgement, seen(job), 5.0)
    assert summary.startswith("Rank 2 has not launched AllReduce 42 of the communicator of all 8 ranks")
    assert "7 ranks" in summary
    (row,) = differing(judgement)
    assert (row.whole_job, row.waiting, [rank.rank for rank in row.ranks]) == (True, 7, [2])
    assert row.ranks[0].launched is not None
    assert row.ranks[0].launched["AllReduce"] == 41


def test_ranks_furthest_behind_are_named() -> None:
    judgement = standing(Comm({0: 45, 1: 41, 2: 44, 3: 41, 4: 42, 5: 45, 6: 43, 7: 42}))
    assert (ranks(judgement), [suspect.row.rank for suspect in judgement.suspects]) == ([1, 3], [1, 3])


def test_moving_job_does_not_hang_although_a_rank_is_always_behind() -> None:
    judgement = judge(seen(Comm({**EQUAL, 2: 43, 3: 41})), seen(Comm({**EQUAL, 2: 41})))
    assert (judgement.kind, judgement.named, judgement.moved) == ("no_hang", [], True)


def test_single_answer_proves_no_hang() -> None:
    judgement = judge(seen(Comm({**EQUAL, 2: 41})), None)
    assert (judgement.kind, judgement.named) == ("insufficient_data", [])
    assert [suspect.row.rank for suspect in judgement.suspects] == [2]


def test_equal_counts_that_do_not_move_are_insufficient_data() -> None:
    judgement = standing(Comm(EQUAL))
    assert (judgement.kind, judgement.moved, judgement.suspects) == ("insufficient_data", False, [])
    assert "all ranks launched the same" in summary_of(judgement, seen(Comm(EQUAL)), 5.0)


def test_job_without_counts_is_insufficient_data() -> None:
    judgement = standing(Comm(dict.fromkeys(range(8), 0)))
    assert (judgement.kind, judgement.moved) == ("insufficient_data", None)
    assert (standing().kind, standing().moved) == ("insufficient_data", None)


@pytest.mark.parametrize("gone", ["unresponsive", "dead"])
def test_process_that_does_not_answer_is_named(gone: str) -> None:
    job = Comm({rank: 42 for rank in range(8) if rank != 5}, unresponsive=[5] * (gone != "dead"), dead=[5] * (gone == "dead"))
    judgement = standing(job)
    assert (judgement.kind, judgement.cause, ranks(judgement), judgement.certain) == ("hang", "unreachable", [5], True)
    assert judgement.suspects[0].row.why == {"unresponsive": "unreachable", "dead": "dead"}[gone]
    alone = judge(seen(job), None)
    assert (alone.kind, alone.certain) == ("hang", gone == "dead")


def test_unresponsive_process_of_a_moving_job_is_no_hang_yet() -> None:
    before = Comm(dict.fromkeys(range(7), 41), unresponsive=[7])
    judgement = judge(seen(Comm(dict.fromkeys(range(7), 42), unresponsive=[7])), seen(before))
    assert (judgement.kind, judgement.named, [suspect.row.rank for suspect in judgement.suspects]) == (
        "insufficient_data",
        [],
        [7],
    )


def test_rank_that_waits_in_another_communicator_is_not_named() -> None:
    # Rank 6 sleeps; 4, 5, 7 wait for it in their tensor-parallel group and so are missed in the one of all ranks.
    everyone = Comm({0: 9, 1: 9, 2: 9, 3: 9, 4: 8, 5: 8, 6: 8, 7: 8})
    tensor = [Comm({0: 30, 1: 30, 2: 30, 3: 30}, TP0, name=1), Comm({0: 30, 1: 30, 2: 29, 3: 30}, TP1, name=2)]
    judgement = standing(everyone, *tensor)
    assert (judgement.cause, set(ranks(judgement))) == ("not_arrived", {6})
    assert judgement.named[0].communicator.size == 8, "the most ranks wait there"


def test_ranks_that_wait_for_each_other_in_two_communicators_deadlock() -> None:
    judgement = standing(Comm({0: 5, 1: 4}, name=1), Comm({0: 7, 1: 8}, name=2))
    assert (judgement.kind, judgement.cause, set(ranks(judgement))) == ("hang", "deadlock", {0, 1})


def test_other_kind_of_collective_is_a_mismatch() -> None:
    usual, odd = {"AllReduce": 42, "Broadcast": 3}, {"AllReduce": 41, "Broadcast": 4}
    judgement = standing(Comm({0: usual, 1: odd, 2: usual, 3: usual}))
    assert (judgement.kind, judgement.cause, ranks(judgement)) == ("hang", "mismatch", [1])
    assert ranks(standing(Comm({0: usual, 1: odd}))) == [0, 1], "two ranks have no majority"


def test_error_is_attributed_to_its_rank_and_not_to_its_victims() -> None:
    status = {0: {"async_error": 6}, 1: {"async_error": 6}, 2: {"async_error": 1}, 3: {"async_error": 7}}
    judgement = standing(Comm(dict.fromkeys(range(4), 3), status=status))
    assert (judgement.kind, judgement.cause, ranks(judgement)) == ("hang", "nccl_error", [2])
    victims = standing(Comm(dict.fromkeys(range(4), 3), status={0: {"async_error": 6}}))
    assert (victims.kind, victims.cause, victims.named) == ("hang", "nccl_error", [])


def test_rank_that_left_a_communicator_is_named_but_a_teardown_is_not() -> None:
    assert ranks(standing(Comm({0: 4, 1: 4, 2: 4}, left=[3]))) == [3]
    leaving = {rank: {"finalize_called": True} for rank in range(3)}
    assert standing(Comm({0: 4, 1: 4, 2: 4}, left=[3], status=leaving)).kind == "insufficient_data"


def test_global_ranks_come_from_the_full_communicator_or_from_process_ids() -> None:
    late = Comm({0: 30, 1: 30, 2: 29, 3: 30}, TP1, name=2)
    assert ranks(standing(Comm(EQUAL), late)) == [6]
    # Without that communicator the global rank is known by the run only
    assert ranks(standing(late, world_size=8)) == [None]
    assert ranks(standing(late, world_size=8, pids={rank: 1000 + rank for rank in range(8)})) == [6]
    assert ranks(standing(late, world_size=8, pids=dict.fromkeys(range(8), 1006))) == [None], "the same id on several hosts"
    # and two orders of all ranks tell nothing
    other = Comm(EQUAL, tuple(reversed(range(8))), name=9)
    assert ranks(standing(Comm(EQUAL), other, late)) == [None]
    summary = summary_of(standing(late, world_size=8), seen(late), 5.0)
    assert "rank 2 of communicator 0x2 (4 ranks) (process 1006 on 10.0.0.0, GPU 6)" in summary.replace("Rank", "rank")


TABLE = "      0         1         1         8         8         8   RUNNING  {}\n"


def lines(*text_lines: str) -> str:
    return "".join(f"{line}\n" for line in text_lines) + "\n"


@pytest.mark.parametrize("kind", ["collective", "AllReduce"])  # up to 2.25, and later
@pytest.mark.parametrize(
    "detail", [" -- GPU 2 managed by process 1002 on node 10.0.0.0", " -- [process information not found]", ""]
)
def test_text_answer_names_the_rank_with_fewer_launches(kind: str, detail: str) -> None:
    warnings = lines(
        "#0-0 (cf264af53edbe986) MISMATCH",
        f"  Communicator ranks have different {kind} operation counts",
        "  7 ranks have launched up to operation 42",
        f"  Rank 2 has launched up to operation 41{detail}",
    )
    snapshot = read_text(text_answer(TABLE.format("MISMATCH"), warnings=warnings).decode())
    judgement = judge(snapshot, snapshot)
    assert (judgement.kind, judgement.cause, ranks(judgement), judgement.moved) == ("hang", "not_arrived", [2], False)
    assert [(communicator.key, len(communicator.waiting)) for communicator in snapshot.communicators] == [("cf264af53edbe986", 7)]
    assert snapshot.nccl_version == "2.27.3"
    healthy = read_text(text_answer(TABLE.format("OK")).decode())
    assert judge(healthy, snapshot).kind == "no_hang", "what differed before does not any more"
    assert (judge(healthy, healthy).kind, judge(healthy, healthy).moved) == ("insufficient_data", None)


def test_text_answer_lists_the_ranks_of_a_smaller_set() -> None:
    warnings = lines(
        "#0-0 (27a079b828ff1a75) MISMATCH",
        "  Communicator ranks have different AllGather operation counts",
        "  6 ranks have launched up to operation 7",
        "  2 ranks have not launched any operations",
        "  Rank 1 -- GPU 0 (NVML 1) managed by process 1001 on node 10.0.0.0",
        "  Rank 5 -- GPU 0 (NVML 5) managed by process 1005 on node 10.0.0.0",
    )
    snapshot = read_text(text_answer(TABLE.format("MISMATCH"), warnings=warnings).decode())
    judgement = judge(snapshot, snapshot)
    assert ranks(judgement) == [1, 5]
    assert [(communicator.key, len(communicator.waiting)) for communicator in snapshot.communicators] == [("27a079b828ff1a75", 6)]
    assert [row.gpu for row in differing(judgement)[0].ranks] == [1, 5]


@pytest.mark.parametrize(
    "of_rank",
    ["  The missing rank: 5", "  Rank 5 -- GPU 5 managed by process 1005 on node 10.0.0.0"],  # up to 2.25, and later
)
@pytest.mark.parametrize("dead", [False, True])
def test_text_answer_names_the_rank_of_an_unresponsive_process(of_rank: str, dead: bool) -> None:
    process = "  Process 1005 on node 10.0.0.0 managing GPU 5"
    job = ("INCOMPLETE", "  Missing communicator data from 1 job process", process)
    if dead:
        job = ("DEAD", "  1 job process is considered dead (unreachable via the RAS network)", process)
    errors = lines(*job) + lines("#0-0 (cf264af53edbe986) INCOMPLETE", "  Missing communicator data from 1 rank", of_rank)
    timeouts = lines("TIMEOUT", "  Encountered 2 communication timeouts while gathering communicator data")
    snapshot = read_text(text_answer(TABLE.format("INCOMPLETE"), errors, timeouts).decode())
    judgement = judge(snapshot, snapshot)
    assert (judgement.kind, judgement.cause, ranks(judgement)) == ("hang", "unreachable", [5])
    assert (snapshot.timeouts, judgement.suspects[0].row.why) == (2, "dead" if dead and "process" in of_rank else "unreachable")


def test_text_answer_names_errors_and_ranks_that_left() -> None:
    errors = lines(
        "#0-0 (cf264af53edbe986) ERROR",
        "  Asynchronous errors on 3 ranks",
        "  2 ranks reported Remote process error",
        "  Rank 0 -- GPU 0 managed by process 1000 on node 10.0.0.0",
        "  Rank 1 -- GPU 1 managed by process 1001 on node 10.0.0.0",
        "  Rank 3 reported Unhandled CUDA error -- GPU 3 managed by process 1003 on node 10.0.0.0",
    )
    snapshot = read_text(text_answer(TABLE.format("ERROR"), errors).decode())
    judgement = judge(snapshot, snapshot)
    assert (judgement.cause, ranks(judgement)) == ("nccl_error", [3])
    for of_rank in (
        "  Rank 6 has status UNKNOWN",
        "  Rank 6 has status NOCOMM -- GPU 6 managed by process 1006 on node 10.0.0.0",
    ):
        warnings = lines(
            "#0-0 (9e17999afaa87dbb) MISMATCH",
            "  Communicator ranks have different status",
            "  7 ranks have status RUNNING",
            of_rank,
        )
        snapshot = read_text(text_answer(TABLE.format("MISMATCH"), warnings=warnings).decode())
        judgement = judge(snapshot, snapshot)
        assert (judgement.cause, ranks(judgement), judgement.suspects[0].row.why) == ("not_arrived", [6], "left")


def test_truncated_answer_is_an_error_and_not_a_verdict() -> None:
    warnings = lines(
        "#0-0 (cf264af53edbe986) MISMATCH",
        "  Communicator ranks have different AllReduce operation counts",
        "  7 ranks have launched up to operation 42",
        "  Rank 2 has launched up to operation 41",
    )
    full_text = text_answer(TABLE.format("MISMATCH"), warnings=warnings).decode()
    for end in range(full_text.index("Warnings")):
        with pytest.raises(AnswerError):
            read_text(full_text[:end])
    document = answer(Comm({0: 1, 1: 2})).decode().rstrip()
    for end in range(0, len(document), 7):
        with pytest.raises(AnswerError):
            read_json(document[:end])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"communicators": [{"hash": "0x1", "size": 0, "ranks": []}]}',
        '{"communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": -1}]}]}',
        '{"communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": 1e400}]}]}',
        '{"communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": 1, "collective_counts": {"AllReduce": -3}}]}]}',
        '{"communicators": ' + "[" * 100_000,
        "\ud800",
        '{"communicators": [' + '{"hash":"","size":1,"ranks":[]},' * (MAX_OBJECTS + 1),
    ],
)
def test_hostile_document_is_an_error(text: str) -> None:
    with pytest.raises(AnswerError):
        read_json(text)


def test_hostile_text_takes_bounded_time_and_memory() -> None:
    rows = f"      0         1         1         8   {LARGEST}         8   RUNNING  MISMATCH\n"
    many = "".join(f"#0-0 ({number:016x}) MISMATCH\n  9 ranks have status INIT\n" for number in range(10))
    with pytest.raises(AnswerError, match=f"{MAX_RANKS:,}"):
        read_text(text_answer(rows, warnings=many).decode())
    kinds = "".join(
        f"  Communicator ranks have different K{number} operation counts\n  9 ranks have launched up to operation 1\n"
        for number in range(10_000)
    )
    (communicators,) = read_text(text_answer(TABLE.format("OK"), warnings="#0-0 (1) MISMATCH\n" + kinds).decode()).communicators
    assert len(communicators.members[0].counts) == MAX_KINDS
    nonsense = "".join(f"  Rank {number} has launched up to operation {number}\n" for number in range(20))
    snapshot = read_text(text_answer(TABLE.format("OK"), warnings=nonsense + "#7-0 (1) MISMATCH\n" + nonsense).decode())
    assert snapshot.communicators == []


def test_text_without_ranks_of_two_halves_names_none() -> None:
    def halves(less: int) -> Snapshot:
        warnings = lines(
            "#0-0 (cf264af53edbe986) MISMATCH",
            "  Communicator ranks have different AllReduce operation counts",
            "  4 ranks have launched up to operation 42",
            f"  4 ranks have launched up to operation {less}",
        )
        return read_text(text_answer(TABLE.format("MISMATCH"), warnings=warnings).decode())

    judgement = judge(halves(41), halves(41))
    assert (judgement.kind, judgement.moved, judgement.named) == ("insufficient_data", False, [])
    summary = summary_of(judgement, halves(41), 5.0)
    assert "4 ranks" in summary
    assert "41" in summary
    assert "all 8 ranks" in summary
    assert judge(halves(41), halves(40)).kind == "no_hang"


SENTENCES = (
    "#0-0 (cf264af53edbe986) MISMATCH",
    "#0-1 (1) INCOMPLETE",
    "#9-0 (2) ERROR",
    "  Communicator ranks have different AllReduce operation counts",
    "  Communicator ranks have different status operation counts",
    "  Communicator ranks have different status",
    "  7 ranks have launched up to operation 42",
    "  9 ranks have status NOCOMM",
    "  3 ranks reported Internal error",
    "  2 ranks have not launched any operations",
    "  Rank 2 has launched up to operation 41",
    "  Rank 900000 has launched up to operation 41",
    "  Rank 3 has status FINALIZE",
    "  Rank 4 reported System error -- GPU 0 managed by process 1 on node h",
    "  Rank 5 -- GPU 1 (NVML 3) managed by process 9999999999 on node h",
    "  The missing ranks: 1,,77",
    "  The unknown rank: 3",
    "DEAD",
    "",
    "  Process 1 on node h managing GPU 0",
)


@example(["#0-0 (1) MISMATCH", "  9 ranks have status NOCOMM"])
@example(["#0-0 (1) MISMATCH", "  Communicator ranks have different status operation counts", "  Rank 3 has status INIT"])
@given(st.lists(st.sampled_from(SENTENCES), max_size=30))
def test_text_with_lines_in_any_order_is_read_or_an_error(given_lines: list[str]) -> None:
    snapshot = read_text(text_answer(TABLE.format("MISMATCH"), warnings=lines(*given_lines)).decode())
    judgement = judge(snapshot, snapshot)
    assert all(0 <= rank < 8 for communicator in snapshot.communicators for rank in communicator.members)
    assert summary_of(judgement, snapshot, 5.0)
    assert len(differing(judgement)) <= 2

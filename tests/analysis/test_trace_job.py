"""Which traces are ranks of one job, by what they say and by their names, and which cycle of a schedule they are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.analysis.trace_job import TraceIdentity, job_of
from rankscope.base.errors import InputError

SECOND_NS = 10**9


def identity(name: str, rank: int | None = None, *, at: int = 0, **fields: Any) -> TraceIdentity:
    """Return the identity of a trace of one second that communicates, in a job that states no process groups."""
    usual: dict[str, Any] = {
        "world_size": None,
        "is_grouped": False,
        "process": "7",
        "device_events": 9,
        "collectives": 3,
        "steps": 5,
    }
    return TraceIdentity(Path(name), rank, start_ns=at * SECOND_NS, end_ns=(at + 1) * SECOND_NS, **usual | fields)


def ranks(*names: str, **fields: Any) -> list[int] | None:
    """Return the ranks of traces by their names alone, in the order of ``names``; ``None`` where they are not known."""
    job = job_of([identity(name, **fields) for name in names])
    if job.problem is not None:
        return None
    by_position = {position: rank for rank, position in job.traces.items()}
    return [by_position[position] for position in range(len(names))]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("rank-1.json.gz", "rank-0.json.gz"), [1, 0]),
        (("rank3.json", "rank_2.json"), [3, 2]),
        (("rank_12_step5.json", "rank_13_step5.json"), [12, 13]),
        (("node12_rank3.json", "node12_rank2.json"), [3, 2]),
        (("rank3_node12.json", "rank4_node12.json"), [3, 4]),
        (("job_rank-0042.pt.trace.json", "job_rank-0043.pt.trace.json"), [42, 43]),
        (("gpu-a12_rank[1].1694128201545.pt.trace.json", "gpu-a12_rank[0].1694128201545.pt.trace.json"), [1, 0]),
        (("worker1.pt.trace.json", "worker0.pt.trace.json"), [1, 0]),
        (("worker7_step_12.1694128201545.pt.trace.json", "worker6_step_12.1694128201545.pt.trace.json"), [7, 6]),
        (("trainer-1.1694128201545.pt.trace.json", "trainer-0.1694128201545.pt.trace.json"), [1, 0]),
        (("0.json", "1.json", "2.json"), [0, 1, 2]),
        (("profile_1.pt.trace.json.zst", "profile_0.pt.trace.json.zst"), [1, 0]),
        (("trace_r0.json", "trace_r1.json"), [0, 1]),
        # ids of processes and runs, time stamps, hosts, pods
        (("gpu-a12_21077.pt.trace.json", "gpu-a12_21078.pt.trace.json"), None),
        (("gpu-a12_21077.1694128201545333123.pt.trace.json", "gpu-a12_21078.1694128201545333999.pt.trace.json"), None),
        (("bert__1016001.json", "bert__1016002.json"), None),
        (("node12.json.gz", "node13.json.gz"), None),
        (("job-worker-0_1234.1694128201545.pt.trace.json", "job-worker-1_1234.1694128201545.pt.trace.json"), None),
        (("worker-0_1234.1694128201545.pt.trace.json", "worker-1_1234.1694128201545.pt.trace.json"), None),
        (("step_100.json", "step_200.json"), None),
        (("run_7.json", "run_8.json"), None),
        (("dp0_tp0.json", "dp0_tp1.json", "dp1_tp0.json", "dp1_tp1.json"), None),
    ],
)
def test_plausible_number_in_a_file_name_is_the_rank(names: tuple[str, ...], expected: list[int] | None) -> None:
    assert ranks(*names) == expected


def test_rank_in_the_content_outweighs_the_file_name() -> None:
    job = job_of([identity("rank-5.json", 0, world_size=2), identity("rank-1.json", 1, world_size=2)])
    assert job.traces == {0: 0, 1: 1}
    assert job.warnings == ["rank-5.json is of rank 0, though its name says 5"]


def test_numbers_in_names_are_ranks_if_they_agree_with_known_ranks() -> None:
    assert job_of([identity("trace_8.json", 8), identity("trace_9.json")]).traces == {8: 0, 9: 1}
    assert job_of([identity("trace_8.json", 0), identity("trace_9.json")]).problem == "unknown_ranks"


@pytest.mark.parametrize(("communicates", "problem"), [(True, "unknown_ranks"), (False, "several_jobs")])
def test_traces_of_unknown_rank_are_numbered_and_not_compared(problem: str, *, communicates: bool) -> None:
    job = job_of([identity("b_31.json", collectives=int(communicates)), identity("a_27.json", collectives=int(communicates))])
    assert (job.problem, job.traces) == (problem, {0: 1, 1: 0})
    assert "a_27.json, b_31.json" in job.warnings[0]
    with pytest.raises(InputError, match="no cycles can be told apart"):
        job_of([identity("b_31.json"), identity("a_27.json")], cycle=1)


def test_trace_of_unknown_rank_is_left_out_if_idle_or_world_size_known() -> None:
    traces = [identity("rank-0.json", 0), identity("rank-1.json", 1), identity("x.json", collectives=0)]
    assert job_of(traces).traces == {0: 0, 1: 1}
    traces[2] = identity("x.json")
    assert job_of(traces).problem == "unknown_ranks"
    traces[0] = identity("rank-0.json", 0, world_size=3)
    job = job_of(traces)
    assert job.traces == {0: 0, 1: 1}
    assert "x.json: its rank is not known" in job.warnings[0]


def test_single_trace_needs_no_rank() -> None:
    assert job_of([identity("bert__1016002.json")]).traces == {0: 0}


def test_different_world_sizes_belong_to_several_jobs() -> None:
    reason = job_of([identity("rank-0.json", 0, world_size=4), identity("rank-1.json", 1, world_size=8)]).reason
    assert reason is not None
    assert "some state 4 ranks, others 8" in reason
    assert job_of([identity("rank-0.json", world_size=1), identity("rank-1.json", world_size=1)]).problem == "several_jobs"


def test_traces_of_different_days_are_one_job_only_with_process_groups() -> None:
    traces = [identity("rank-0.json"), identity("rank-1.json", at=86_400)]
    assert job_of(traces).problem == "several_jobs"
    assert job_of([msgspec.structs.replace(trace, is_grouped=True) for trace in traces]).problem is None


def cycles(*starts: int, rank: int = 0) -> list[TraceIdentity]:
    return [identity(f"worker{rank}.{start}.pt.trace.json", rank, at=start, world_size=2) for start in starts]


def test_last_cycle_of_most_ranks_is_chosen() -> None:
    traces = [*cycles(0, 10, 20), *cycles(0, 10, 20, rank=1)]
    job = job_of(traces)
    assert (job.traces, job.cycle, job.cycles) == ({0: 2, 1: 5}, 3, 3)
    assert job_of(traces, cycle=1).traces == {0: 0, 1: 3}
    job = job_of([*cycles(0, 10, 20), *cycles(0, 11, rank=1)])
    assert (job.traces, job.cycle, job.cycles) == ({0: 1, 1: 4}, 2, 3)
    job = job_of([*cycles(0, 10, 20), *cycles(0, 11, rank=1)], cycle=3)
    assert job.traces == {0: 2}
    assert job.warnings == ["rank 1 has no trace of cycle 3"]


def test_missing_cycle_is_an_error() -> None:
    with pytest.raises(InputError, match="no cycle 5: the traces are of 2 cycles"):
        job_of(cycles(0, 10), cycle=5)


def test_clock_differences_of_hosts_may_exceed_a_cycle() -> None:
    assert job_of([*cycles(0, 10), *cycles(300, 310, rank=1)]).traces == {0: 1, 1: 3}


def test_cycles_are_matched_by_their_step_numbers() -> None:
    # given a host whose clock is ahead by half a cycle, without a trace of the first cycle
    first = [
        msgspec.structs.replace(trace, step_span=(at, at + 4)) for trace, at in zip(cycles(0, 10, 20), (5, 15, 25), strict=True)
    ]
    second = [
        msgspec.structs.replace(trace, step_span=(at, at + 4)) for trace, at in zip(cycles(5, 14, rank=1), (15, 25), strict=True)
    ]
    job = job_of([*first, *second])
    assert (job.traces, job.cycle, job.cycles) == ({0: 2, 1: 4}, 3, 3)
    # and no rank has all of them
    job = job_of([*first[:2], *second])
    assert (job.traces, job.cycle, job.cycles) == ({0: 1, 1: 2}, 2, 3)
    # and times tell them where each profiler counts its steps anew
    anew = [msgspec.structs.replace(trace, step_span=(5, 9)) for trace in [*cycles(0, 10, 20), *cycles(11, 21, rank=1)]]
    assert job_of(anew).traces == {0: 2, 1: 4}


def test_traces_of_one_rank_that_are_no_cycles_are_not_compared() -> None:
    first, second = cycles(0, 10)
    assert "copies" in str(job_of([first, msgspec.structs.replace(second, start_ns=first.start_ns)]).reason)
    assert "different processes (7, 8)" in str(job_of([first, msgspec.structs.replace(second, process="8")]).reason)


def test_number_in_a_name_beyond_the_world_size_is_no_rank() -> None:
    traces = [identity(f"rank-{number}.json", world_size=4) for number in (4, 5, 6, 7)]
    assert job_of(traces).problem == "unknown_ranks"
    assert ranks("rank-2.json", "rank-3.json", world_size=4) == [2, 3]


def test_traces_of_one_process_are_cycles_despite_an_unknown_rank() -> None:
    names = [f"gpu-a12_77.17500000000{at:02}.pt.trace.json" for at in (0, 10)]
    alone = [identity(name, at=at, collectives=0) for name, at in zip(names, (0, 10), strict=True)]
    job = job_of(alone)
    assert (job.traces, job.cycle, job.cycles, job.problem) == ({0: 1}, 2, 2, None)
    assert job_of(alone, cycle=1).traces == {0: 0}
    # In containers, processes of different jobs have the same id.
    other = identity("gpu-b07_77.1750000000010.pt.trace.json", at=10, collectives=0)
    assert job_of([alone[0], other]).problem == "several_jobs"
    assert job_of([alone[0], msgspec.structs.replace(alone[1], process="78")]).problem == "several_jobs"
    assert job_of([msgspec.structs.replace(trace, process=None) for trace in alone]).problem == "several_jobs"


def test_later_cycle_missing_on_some_rank_is_named() -> None:
    traces = [*cycles(0, 10, 20), *cycles(0, 10, rank=1)]
    job = job_of(traces)
    assert (job.cycle, job.other_files) == (2, 3)
    assert "cycle 3" in job.warnings[0]
    assert "rank 1" in job.warnings[0]
    assert job_of(traces, cycle=2).warnings == []


def test_files_of_one_name_in_several_folders_are_distinguished() -> None:
    reason = str(job_of([identity("node0/rank-0.json"), identity("node1/rank-0.json", process="8")]).reason)
    assert "node0/rank-0.json and node1/rank-0.json" in reason

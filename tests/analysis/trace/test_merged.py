"""Traces of several ranks in one file: taken apart where the file shows which event is of which rank, else refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analysis.inline_communication import write_job

from rankscope.analysis.perfetto.export import export_perfetto
from rankscope.analysis.trace.columns import Trace, read_trace, read_traces
from rankscope.analysis.trace.merged import ranks_of_labels
from rankscope.base.errors import InputError

RANKS = 4
Event = dict[str, Any]
Change = Callable[[int, Event], None]
COLUMNS = ("start", "end", "category", "stream", "device")
OWN_IDS = 10_000
"""Difference between the correlation ids of two ranks."""


@pytest.fixture
def job(tmp_path: Path) -> list[Path]:
    """Traces of four ranks. All use device 0, stream 7 and the same correlation ids; host and device are different processes."""
    (tmp_path / "job").mkdir()
    write_job(tmp_path / "job", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ranks=RANKS)
    files = sorted((tmp_path / "job").iterdir())
    for rank, file in enumerate(files):
        content = json.loads(file.read_text())
        for event in content["traceEvents"]:
            event["pid"] = 0 if event["cat"] == "kernel" else 5000 + rank
        file.write_text(json.dumps(content))
    return files


def merge(files: list[Path], *changes: Change, extra: tuple[Event, ...] = (), world_size: int | None = RANKS) -> Path:
    """Write the events of all files to one, changed by ``changes``, with the metadata of the first rank."""
    events = list(extra)
    for rank, file in enumerate(files):
        for event in json.loads(file.read_text())["traceEvents"]:
            for change in changes:
                change(rank, event)
            events.append(event)
    about = {"distributedInfo": {"rank": 0, "world_size": world_size, "backend": "nccl"}} if world_size else {}
    path = files[0].parent.parent / "merged.trace.json"
    path.write_text(json.dumps({**about, "traceEvents": events, "host_name": "node0"}))
    return path


def prefixed(labels: list[str]) -> Change:
    def change(rank: int, event: Event) -> None:
        event["pid"] = f"{labels[rank]} {event['pid']}"

    return change


def renumbered(rank: int, event: Event) -> None:
    event["pid"] += 100_000 * rank


def with_rank(rank: int, event: Event) -> None:
    event["args"]["rank"] = rank


def with_own_ids(rank: int, event: Event) -> None:
    if "correlation" in event["args"]:
        event["args"]["correlation"] += OWN_IDS * rank


def with_one_process(rank: int, event: Event) -> None:
    """Let host and device of a rank be one process."""
    event["pid"] = f"rank{rank}"


def in_containers(_rank: int, event: Event) -> None:
    """Let the processes of all ranks have one id."""
    event["pid"] = 0 if event["cat"] == "kernel" else 77


def with_collectives_of_rank_2(rank: int, event: Event) -> None:
    """Let the collectives of rank 0 say that it is rank 2."""
    if rank == 0:
        ON_DEVICE(2, event)


def with_collectives(*, on_device: bool, group: object = "[0, 1, 2, 3]", name: str = "_allgather_base") -> Change:
    """Return a change that gives launches of communication, and the kernels with ``on_device``, the arguments of torch."""

    def change(rank: int, event: Event) -> None:
        is_kernel = event["cat"] == "kernel" and event["name"].startswith("nccl")
        if (is_kernel and on_device) or (event["cat"] == "cuda_runtime" and event["args"]["correlation"] % 4 == 0):
            event["args"] |= {"Collective name": name, "Process Group Ranks": group, "Group size": RANKS, "Rank": rank}

    return change


ON_DEVICE, ON_HOST = (with_collectives(on_device=on_device) for on_device in (True, False))
TP = prefixed(["[TP0]", "[TP1]", "[TP2]", "[TP3]"])


def assert_apart(merged: Path, files: list[Path], *, detail: bool = True) -> list[Trace]:
    """Assert that the ranks of ``merged`` have the events of ``files``, and return them."""
    traces = read_traces(merged, detail=detail)
    assert [trace.rank for trace in traces] == list(range(len(files)))
    for trace, file in zip(traces, files, strict=True):
        single = read_trace(file, detail=detail)
        for column in COLUMNS:
            np.testing.assert_array_equal(getattr(trace, column), getattr(single, column))
        np.testing.assert_array_equal(np.where(trace.correlation < 0, -1, trace.correlation % OWN_IDS), single.correlation)
        assert [trace.names[name] for name in trace.name] == [single.names[name] for name in single.name]
        assert trace.quality == single.quality
        assert (trace.world_size, trace.device_kind) == (len(files), "cuda")
    return traces


def assert_refused(merged: Path, *facts: str) -> None:
    with pytest.raises(InputError) as caught:
        read_traces(merged)
    for fact in (str(merged), "several ranks merged into one file", "give the files before merging", *facts):
        assert fact in str(caught.value)


@pytest.mark.parametrize("detail", [True, False])
def test_ranks_with_labels_in_process_ids_are_separated(job: list[Path], *, detail: bool) -> None:
    merged = merge(job, prefixed(["[TP00]", "[TP01]", "[TP02]", "[TP03]"]))
    traces = assert_apart(merged, job, detail=detail)
    assert [trace.process for trace in traces] == ["TP00", "TP01", "TP02", "TP03"]
    assert {trace.host for trace in traces} == {None}


CLEAR: dict[str, list[Change]] = {
    "labels of pipelines": [prefixed(["[TP00-PP00]", "[TP01-PP00]", "[TP00-PP01]", "[TP01-PP01]"])],
    "labels of data parallelism": [prefixed(["[TP00-DP00]", "[TP01-DP00]", "[TP02-DP01]", "[TP03-DP01]"])],
    "labels of experts": [prefixed(["[EP0]", "[EP1]", "[EP2]", "[EP3]"])],
    "names of ranks": [prefixed(["rank 0:", "rank 1:", "rank 2:", "rank 3:"])],
    "short names of ranks": [prefixed(["Rank0", "Rank1", "Rank2", "Rank3"])],
    "collectives where labels leave the ranks open": [
        *(ON_DEVICE, prefixed(["[decode 0-EP0]", "[decode 0-EP1]", "[decode 1-EP0]", "[decode 1-EP1]"])),
    ],
    "one process per rank": [with_one_process],
    "the rank in the arguments of events": [renumbered, with_rank],
    "the rank in the arguments of events, and own ids": [renumbered, with_rank, with_own_ids],
    "a device is of the process that launched its kernels": [ON_HOST, renumbered, with_own_ids],
}
"""Changes after which a merged file shows the rank of each event."""


@pytest.mark.parametrize("sign", CLEAR)
def test_ranks_identified_by_the_file_are_separated(job: list[Path], sign: str) -> None:
    assert_apart(merge(job, *CLEAR[sign]), job)


OPEN: dict[str, tuple[list[Change], list[str]]] = {
    "no sign": ([], ["4 processes", "launched device work"]),
    "other process ids": ([renumbered], ["4 processes", "launched device work"]),
    "own ids of launches": ([with_own_ids], ["4 processes", "launched device work"]),
    "labels that contradict the collectives": ([with_collectives_of_rank_2, TP], []),
    "one label for two ranks": ([prefixed(["[node0]", "[node0]", "[node1]", "[node1]"])], ["node0"]),
    "a device whose kernels any process may have launched": ([ON_HOST, renumbered], ["4 processes"]),
    "a shared device process": ([ON_DEVICE], ["4 processes"]),
    "a shared device process, and own ids": ([ON_HOST, with_own_ids], ["4 processes"]),
    "the root of a collective": ([renumbered, with_own_ids, with_collectives(on_device=True, name="broadcast")], []),
    "the same process id in containers": ([ON_HOST, in_containers], ["4 ranks"]),
}
"""Changes after which it does not, and what the error says."""


@pytest.mark.parametrize("sign", OPEN)
def test_ranks_not_identified_by_the_file_are_refused(job: list[Path], sign: str) -> None:
    changes, facts = OPEN[sign]
    assert_refused(merge(job, *changes), *facts)


def test_order_in_the_file_does_not_matter(job: list[Path]) -> None:
    merged = merge(job, prefixed(["[TP3]", "[TP1]", "[TP2]", "[TP0]"]))
    assert_apart(merged, [job[3], job[1], job[2], job[0]])


@pytest.mark.parametrize(
    ("labels", "world_size"),
    [
        (["[TP00-PP00]", "[TP01-PP00]", "[TP00-PP01]", "[TP01-PP01]"], None),
        (["[TP00-PP00]", "[TP01-PP00]", "[TP00-PP01]", "[TP01-PP01]"], 8),
        (["[DP0-EP0]", "[DP0-EP1]", "[DP1-EP0]", "[DP1-EP1]"], 4),
        (["[TP0]", "[TP1]", "[TP2]", "[TP7]"], 4),
        (["[decode]", "[prefill]", "[router]", "[draft]"], 4),
        (["[TP0-DP0]", "[TP1-DP0]", "[TP0-DP1]", "[TP1-DP1]"], 4),
    ],
)
def test_labels_with_ambiguous_ranks_are_refused(job: list[Path], labels: list[str], world_size: int | None) -> None:
    assert_refused(merge(job, prefixed(labels), world_size=world_size), labels[0])


def test_names_of_processes_give_the_ranks(job: list[Path]) -> None:
    labels = tuple(
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"Rank {rank} (python3)"}}
        for rank in range(RANKS)
        for pid in (100_000 * rank, 100_000 * rank + 5000 + rank)
    )
    assert_apart(merge(job, renumbered, extra=labels), job)


@pytest.mark.parametrize("group", ["[0, 1, 2, 3]", [0, 1, 2, 3], None])
def test_collectives_give_the_ranks_of_processes(job: list[Path], group: object) -> None:
    traces = assert_apart(merge(job, renumbered, with_collectives(on_device=True, group=group)), job)
    assert all(
        trace.communication_args and {args.rank for args in trace.communication_args.values()} == {trace.rank} for trace in traces
    )


def test_position_in_a_subgroup_is_mapped_to_its_rank(job: list[Path]) -> None:
    merged = merge(job, renumbered, with_own_ids, with_collectives(on_device=True, group="[4, 5, 6, 7]"))
    assert [trace.rank for trace in read_traces(merged)] == [4, 5, 6, 7]


def test_reader_of_one_rank_refuses_several(job: list[Path]) -> None:
    merged = merge(job, TP)
    with pytest.raises(InputError, match="the traces of 4 ranks"):
        read_trace(merged)


def test_missing_kernels_are_counted_for_their_rank_only(job: list[Path]) -> None:
    def lose(rank: int, event: Event) -> None:
        if rank == 2 and event["cat"] == "kernel" and event["args"]["correlation"] <= 12:
            event["cat"] = "something else"

    traces = read_traces(merge(job, lose, TP))
    assert [trace.quality.without_kernel for trace in traces] == [0, 0, 12, 0]


def test_process_with_several_devices_is_one_rank(job: list[Path]) -> None:
    def on_own_device(rank: int, event: Event) -> None:
        event["pid"] = rank if event["cat"] == "kernel" else 5000
        if event["cat"] == "kernel":
            event["args"]["device"] = rank

    (trace,) = read_traces(merge(job, on_own_device, with_own_ids))
    assert (trace.rank, trace.host, trace.process) == (0, "node0", "5000")
    assert set(trace.device[trace.category == 0].tolist()) == {0, 1, 2, 3}


def test_processes_without_launches_join_the_only_launching_process(job: list[Path]) -> None:
    def operator(pid: int, name: str = "aten::stack") -> Event:
        return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1000, "dur": 5, "pid": pid, "tid": pid, "args": {}}

    call = operator(6003, "cudaGetDeviceCount") | {"cat": "cuda_runtime"}
    (trace,) = read_traces(merge(job[:1], extra=(operator(6001), operator(6002, "c10d::allreduce_"), call)))
    assert (trace.rank, len(trace.start)) == (0, len(read_trace(job[0]).start) + 3)


def test_events_of_other_processes_belong_to_no_rank(job: list[Path]) -> None:
    worker = {"ph": "X", "cat": "cpu_op", "name": "aten::stack", "ts": 1000, "dur": 5, "pid": 7, "tid": 7, "args": {}}
    assert_apart(merge(job, renumbered, with_own_ids, with_collectives(on_device=True), extra=(worker,)), job)


def gloo(rank: int, pid: int | str) -> list[Event]:
    at: Event = {"ph": "X", "pid": pid, "args": {}}
    return [
        {**at, "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 1000 + rank, "dur": 50},
        {**at, "cat": "cpu_op", "name": "c10d::allreduce_", "tid": 1, "ts": 1060 + rank, "dur": 5},
        {**at, "cat": "user_annotation", "name": "gloo:all_reduce", "tid": 2, "ts": 1062 + rank, "dur": 40},
    ]


def test_cpu_ranks_are_separated_by_their_labels(tmp_path: Path) -> None:
    merged = tmp_path / "merged.json"
    merged.write_text(json.dumps([*gloo(0, "[TP0] 70"), *gloo(1, "[TP1] 71")]))
    traces = read_traces(merged)
    assert [(trace.rank, len(trace.start), trace.device_kind) for trace in traces] == [(0, 3, "cpu"), (1, 3, "cpu")]


def test_cpu_ranks_without_labels_are_refused(tmp_path: Path) -> None:
    merged = tmp_path / "merged.json"
    merged.write_text(json.dumps([*gloo(0, 70), *gloo(1, 71)]))
    assert_refused(merged, "2 processes", "communicated")


def test_cpu_process_with_workers_is_one_rank(tmp_path: Path) -> None:
    path = tmp_path / "rank-3.json"
    path.write_text(json.dumps([*gloo(3, 70), *gloo(3, 71)[:1], *gloo(3, 72)[:1]]))
    assert [(trace.rank, len(trace.start)) for trace in read_traces(path)] == [(None, 5)]


def test_merged_ranks_are_exported_like_separate_files(job: list[Path]) -> None:
    def slices(*paths: Path) -> list[tuple[object, ...]]:
        data = bytearray()
        export_perfetto(paths, data.extend)
        events = json.loads(data)["traceEvents"]
        return sorted((event["pid"], event["ts"], event.get("dur", 0), event["name"]) for event in events if event["ph"] == "X")

    expected = slices(*job)
    assert {pid for pid, *_ in expected} >= set(range(1, RANKS + 1))
    assert slices(merge(job, prefixed(["[TP00]", "[TP01]", "[TP02]", "[TP03]"]))) == expected


def test_file_exported_by_rankscope_is_no_trace(job: list[Path], tmp_path: Path) -> None:
    exported = bytearray()
    export_perfetto(job, exported.extend)
    path = tmp_path / "exported.json"
    path.write_bytes(exported)
    with pytest.raises(InputError, match="rankscope export"):
        read_traces(path)


def test_many_processes_are_refused_quickly(tmp_path: Path) -> None:
    path = tmp_path / "many.json"
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1000, "dur": 5, "args": {"correlation": 1}}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1010, "dur": 5, "args": {"correlation": 1, "stream": 7}}
    path.write_text(json.dumps([event | {"pid": pid, "tid": 1} for pid in range(20_000) for event in (call, kernel)]))
    assert_refused(path, "20000 processes")


@pytest.mark.parametrize("pid", [[1], {"a": 1}, None, 1.5, "", "[", "[]", "[TP99999999999]", 10**30])
def test_unusual_process_ids_are_read(job: list[Path], pid: object) -> None:
    labels = ({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": "python3"}},)
    (trace,) = read_traces(merge(job[:1], extra=labels))
    assert trace.rank == 0

    def change(rank: int, event: Event) -> None:
        event["pid"] = pid if event["cat"] == "kernel" else event["pid"]

    if not isinstance(pid, list | dict):
        (trace,) = read_traces(merge(job[:1], change))
        assert trace.quality.without_kernel == 0


@pytest.mark.parametrize(
    ("labels", "world_size", "ranks"),
    [
        (["TP00", "TP02"], 4, [0, 2]),
        (["rank 7", "rank 3"], None, [7, 3]),
        (["TP0-PP0-EP0", "TP1-PP0-EP1"], None, [0, 1]),
        (["TP0-PP1", "TP1-PP1"], None, None),
        (["TP0-PP1", "TP1-PP0", "TP1-PP1", "TP0-PP0"], 4, [2, 1, 3, 0]),
        (["TP0", "TP0-PP1"], None, None),
        (["TP0", "TP00"], None, None),
        (["", "a"], None, None),
    ],
)
def test_ranks_are_parsed_from_labels(labels: list[str], world_size: int | None, ranks: list[int] | None) -> None:
    expected = None if ranks is None else dict(zip(labels, ranks, strict=True))
    assert ranks_of_labels(labels, world_size) == expected

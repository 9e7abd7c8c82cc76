"""Traces reduced to steps: simulated traces whose numbers can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.trace_events import Event, annotation, details, kernel, launch, operator, trace_of

from rankscope.analysis.collectives.windows import Reduction, reduce_file, reduce_trace
from rankscope.base.errors import InputError


def reduce(tmp_path: Path, *events: Event) -> Reduction:
    return reduce_trace(trace_of(tmp_path, events))


CPU_STEP = (
    annotation("ProfilerStep#7", 0, 100),
    annotation("ProfilerStep#8", 100, 100),
    annotation("DistributedDataParallel.forward", 5, 30),
    operator("aten::linear", 10, 20),
    operator("aten::addmm", 12, 15),
    operator("autograd::engine::evaluate_function: AddmmBackward0", 40, 30),
    operator("AddmmBackward0", 41, 28),
    operator("aten::mm", 45, 15),
    operator("c10d::allreduce_", 50, 1),
    annotation("gloo:all_reduce", 52, 28, tid=2),
    annotation("Optimizer.step#SGD.step", 82, 10),
    operator("aten::add_", 84, 4),
)


def test_cpu_step_counts_operators_and_gloo_without_their_wrappers(tmp_path: Path) -> None:
    first, second = reduce(tmp_path, *CPU_STEP).breakdowns
    assert (first.step, first.device_kind, first.window_basis, first.window_us) == (7, "cpu", "steps", 100)
    assert first.compute_us == 20 + 15 + 4
    assert first.communication_us == 28
    assert first.overlap_us == 8  # 52 to 60, under aten::mm
    assert first.exposed_communication_us == 20
    assert first.idle_us == 100 - 39 - 20
    assert (second.step, second.compute_us, second.idle_us) == (8, 0, 100)


def test_gloo_arrives_when_the_calling_thread_enqueues(tmp_path: Path) -> None:
    (collective,) = reduce(tmp_path, *CPU_STEP).collectives
    assert (collective.step, collective.op, collective.index, collective.stream) == (7, "all_reduce", 0, None)
    assert (collective.enqueue_unix_ns, collective.start_unix_ns, collective.end_unix_ns) == (50_000, 52_000, 80_000)
    assert collective.compute_spans_us == [(0, 10)]


def test_work_beyond_a_step_is_cut_and_its_collective_keeps_its_step(tmp_path: Path) -> None:
    reduction = reduce(
        tmp_path,
        annotation("ProfilerStep#1", 0, 100),
        annotation("ProfilerStep#2", 100, 100),
        operator("c10d::allreduce_", 90, 1),
        annotation("gloo:all_reduce", 92, 48, tid=2),
        operator("aten::mm", 10, 5),
    )
    assert [row.communication_us for row in reduction.breakdowns] == [8, 40]
    assert [row.step for row in reduction.collectives] == [1]


def test_gloo_work_enqueued_before_the_trace_is_no_collective(tmp_path: Path) -> None:
    reduction = reduce(
        tmp_path,
        annotation("ProfilerStep#1", 0, 100),
        annotation("gloo:all_reduce", 2, 10, tid=2),
        operator("c10d::allreduce_", 30, 1),
        annotation("gloo:all_reduce", 33, 10, tid=2),
        operator("aten::mm", 50, 5),
    )
    assert [(row.enqueue_unix_ns, row.start_unix_ns) for row in reduction.collectives] == [(30_000, 33_000)]
    assert reduction.breakdowns[0].communication_us == 20


def test_calls_on_two_workers_are_paired_in_order(tmp_path: Path) -> None:
    reduction = reduce(
        tmp_path,
        annotation("ProfilerStep#1", 0, 100),
        operator("aten::mm", 0, 5),
        operator("c10d::allreduce_", 10, 1),
        operator("c10d::_allgather_base_", 12, 1),
        operator("c10d::allreduce_", 14, 1),
        annotation("gloo:all_reduce", 20, 30, tid=2),
        annotation("gloo:all_gather", 21, 5, tid=3),
        annotation("gloo:all_reduce", 27, 5, tid=3),
    )
    assert [(row.op, row.index, row.enqueue_unix_ns, row.start_unix_ns) for row in reduction.collectives] == [
        ("all_reduce", 0, 10_000, 20_000),
        ("all_gather", 1, 12_000, 21_000),
        ("all_reduce", 2, 14_000, 27_000),
    ]


def test_reduce_scatter_of_gloo_is_matched_to_its_all_reduce_work(tmp_path: Path) -> None:
    reduction = reduce(
        tmp_path,
        annotation("ProfilerStep#1", 0, 100),
        operator("aten::mm", 0, 5),
        operator("c10d::_reduce_scatter_base_", 10, 1),
        operator("c10d::allreduce_", 12, 1),
        annotation("gloo:all_reduce", 20, 30, tid=2),
        annotation("gloo:all_reduce", 51, 5, tid=2),
    )
    assert [(row.op, row.enqueue_unix_ns, row.start_unix_ns) for row in reduction.collectives] == [
        ("reduce_scatter_base", 10_000, 20_000),
        ("all_reduce", 12_000, 51_000),
    ]


GPU_STEPS = (
    annotation("ProfilerStep#3", 0, 50),
    annotation("ProfilerStep#4", 50, 50),
    launch(1, 10),
    launch(2, 30),
    launch(3, 55, name="cudaMemcpyAsync"),
    launch(4, 60),
    kernel("gemm", 100, 40, 7, 1),
    kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 120, 60, 9, 2),
    kernel("Memcpy HtoD", 170, 20, 7, 3),
    kernel("gemm", 200, 30, 7, 4),
)


def test_device_window_lasts_from_first_work_to_that_of_the_next_step(tmp_path: Path) -> None:
    first, second = reduce(tmp_path, *GPU_STEPS).breakdowns
    assert (first.step, first.device_kind, first.start_unix_ns, first.window_us) == (3, "cuda", 100_000, 70)
    assert (first.compute_us, first.overlap_us, first.exposed_communication_us, first.memcpy_us, first.idle_us) == (
        40,
        20,
        30,
        0,
        0,
    )
    # The last 10 us of the first step's communication run in the second window.
    assert (second.start_unix_ns, second.window_us) == (170_000, 60)
    assert (second.compute_us, second.exposed_communication_us, second.exposed_memcpy_us, second.idle_us) == (30, 10, 10, 10)


def test_a_nccl_collective_belongs_to_the_step_of_its_launch(tmp_path: Path) -> None:
    (collective,) = reduce(tmp_path, *GPU_STEPS).collectives
    assert (collective.step, collective.op, collective.group, collective.stream) == (3, "all_reduce", "stream-0", 9)
    assert (collective.enqueue_unix_ns, collective.start_unix_ns, collective.end_unix_ns) == (30_000, 120_000, 180_000)
    assert collective.compute_spans_us == [(70, 110)]


def test_a_step_without_device_work_is_marked(tmp_path: Path) -> None:
    reduction = reduce(tmp_path, *GPU_STEPS, annotation("ProfilerStep#5", 100, 50))
    assert [row.truncated for row in reduction.breakdowns] == [False, False, True]


def test_gpu_compute_with_gloo_counts_kernels_and_gloo_not_cpu_operators(tmp_path: Path) -> None:
    events = [
        operator("aten::mm", 0, 90),
        kernel("gemm", 10, 30, 7, 1),
        operator("c10d::allreduce_", 18, 1),
        annotation("gloo:all_reduce", 20, 40, tid=2),
    ]
    reduction = reduce_file(trace_of(tmp_path, events))
    (row,) = reduction.breakdowns
    assert (row.compute_us, row.communication_us, row.overlap_us, row.window_us) == (30, 40, 20, 50)
    assert reduction.collectives[0].stream is None


def test_communication_metadata_outweighs_the_kernel_name(tmp_path: Path) -> None:
    metadata = {
        "Collective name": "allreduce",
        "Process Group Name": "tp",
        "Seq": 17,
        "dtype": "BFloat16",
        "In msg nelems": 10,
        "Group size": 2,
    }
    reduction = reduce(tmp_path, annotation("ProfilerStep#1", 0, 50), kernel("my_fast_reduce", 10, 5, 7, 1, **metadata))
    (collective,) = reduction.collectives
    assert (collective.op, collective.group, collective.sequence, collective.bytes, collective.group_size) == (
        "all_reduce",
        "tp",
        17,
        20,
        2,
    )
    assert reduction.breakdowns[0].communication_us == 5


def test_truncated_rank_lists_are_completed_from_the_configuration(tmp_path: Path) -> None:
    metadata = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "Group size": 64,
        "Process Group Ranks": "[0, 1, ..., 63]",
    }
    reduction = kernel("nccl", 10, 5, 7, 1, **metadata)
    config = [{"pg_name": "0", "ranks": list(range(64))}]
    assert reduce_file(trace_of(tmp_path, [reduction])).collectives[0].group_ranks is None
    configured = trace_of(tmp_path, [reduction], distributedInfo={"rank": 0, "pg_config": config})
    assert reduce_file(configured).collectives[0].group_ranks == list(range(64))


def test_kernels_are_summed_by_name_costliest_first(tmp_path: Path) -> None:
    kernels = [row for row in reduce(tmp_path, *CPU_STEP).kernels if row.step == 7]
    assert [(row.name, row.kind, row.total_us, row.calls) for row in kernels][:2] == [
        ("gloo:all_reduce", "communication", 28, 1),
        ("aten::linear", "compute", 20, 1),
    ]


def test_file_without_annotations_is_one_window_without_steps(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [operator("aten::mm", 10, 5), operator("aten::mm", 20, 5)])
    assert reduce_trace(trace) == Reduction()
    (row,) = reduce_file(trace).breakdowns
    assert (row.window_basis, row.window_us, row.compute_us, row.idle_us) == ("file", 15, 10, 5)


def test_operators_without_duration_are_nothing_to_analyse(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to analyse"):
        reduce_file(trace_of(tmp_path, [operator("autograd::engine::evaluate_function: X", 10, 5)]))


def copied_by_engines(ask: str, *more: Event) -> list[Event]:
    return [
        kernel("gemm", 0, 30, correlation=1),
        operator(ask, 0, 10),
        launch(2, 2, name="cudaMemcpyAsync"),
        launch(3, 4, name="cudaMemcpyAsync"),
        kernel("Memcpy PtoP (Device -> Device)", 20, 10, 8, 2, bytes=100),
        kernel("Memcpy PtoP (Device -> Device)", 30, 10, 9, 3, bytes=100),
        *more,
    ]


def test_copies_between_devices_inside_a_collective_are_communication(tmp_path: Path) -> None:
    # given a peer copy outside any collective, too, and a copy on the device inside
    outside = [launch(7, 40), kernel("Memcpy PtoP (Device -> Device)", 50, 5, 8, 7)]
    inside = [launch(8, 6), kernel("Memcpy DtoD (Device -> Device)", 45, 3, 8, 8)]
    events = copied_by_engines("symm_mem::all_gather_p2p_memcpy", *outside, *inside)
    # then the time is communication, hidden as far as compute hides it
    reduction = reduce_file(trace_of(tmp_path, events))
    (window,) = reduction.breakdowns
    assert (window.communication_us, window.overlap_us, window.memcpy_us) == (20, 10, 8)
    # and one collective, with its own copies only
    (collective,) = reduction.collectives
    assert (collective.op, collective.group) == ("all_gather_p2p_memcpy", "copy-engine")
    assert (collective.enqueue_unix_ns, collective.start_unix_ns, collective.end_unix_ns) == (2_000, 20_000, 40_000)
    rows = {(row.direction, row.collective): row.events for row in details(tmp_path / "rank-0.json").copies}
    assert rows == {("peer to peer", True): 2, ("peer to peer", False): 1, ("device to device", False): 1}


def test_copies_of_a_collective_get_the_metadata_of_its_call(tmp_path: Path) -> None:
    # given the library's own annotation inside the call, too, which has arguments and no metadata
    args: Event = {"Collective_name": "_allgather_base", "Process_Group_Name": "7", "Seq": 3}
    call = operator("record_param_comms", 1, 8, dtype="Float", Out_msg_nelems=50, **args)
    events = copied_by_engines("c10d::_allgather_base_", call, annotation("nccl:_all_gather_base", 1.5, 7, External_id=9))
    (collective,) = reduce_file(trace_of(tmp_path, events)).collectives
    result = (collective.op, collective.group, collective.sequence, collective.bytes)
    assert result == ("all_gather_base", "7", 3, 200)


def test_copies_beside_the_kernel_of_their_collective_are_part_of_it(tmp_path: Path) -> None:
    events = copied_by_engines("c10d::allgather_", launch(4, 6), kernel("ncclDevKernel_AllReduce_Sum_f32", 40, 20, 8, 4))
    reduction = reduce_file(trace_of(tmp_path, events))
    assert reduction.breakdowns[0].communication_us == 40
    assert [row.op for row in reduction.collectives] == ["all_reduce"]

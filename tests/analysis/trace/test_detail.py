"""Breakdown of a trace: simulated traces checked nanosecond by nanosecond, and real ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.trace_events import Event, annotation, details, idle, kernel, launch, operator, trace_event, written

from rankscope.analysis.result.detail import RankDetail
from rankscope.base.errors import InputError

GEMM, RELU, NCCL, UNKNOWN = "volta_sgemm_128x32_nt", "void elementwise_kernel<relu>", "ncclDevKernel_AllReduce_Sum_f32", "mystery"
COPY = "Memcpy HtoD (Pinned -> Device)"
KIND = {GEMM: "compute", RELU: "compute", UNKNOWN: "compute", NCCL: "communication", COPY: "memcpy"}
CLASS = {GEMM: "gemm", RELU: "elementwise", UNKNOWN: "other", NCCL: "communication"}


def detail(folder: Path, events: Iterable[Event]) -> RankDetail:
    return details(written(folder / "rank-0.json", events))


Row = tuple[str, int, int, int, int, tuple[int, int] | None]


def in_order(rows: list[Row]) -> list[Row]:
    """Return the rows such that those of one stream start after each other's end, as on a real device."""
    free: dict[tuple[int, int], int] = {}
    collected = []
    for name, start, duration, stream, device, called in sorted(rows, key=lambda row: row[1]):
        begin = max(start, free.get((device, stream), 0))
        free[device, stream] = begin + duration
        collected.append((name, begin, duration, stream, device, called))
    return collected


# Any device work on a few streams and two devices, with or without launches, times in whole microseconds.
WORK = (
    st.lists(
        st.tuples(
            st.sampled_from([GEMM, RELU, NCCL, UNKNOWN, COPY]),
            st.integers(0, 60),  # start
            st.integers(0, 15),  # duration
            st.integers(1, 3),  # stream
            st.integers(0, 1),  # device
            st.none() | st.tuples(st.integers(0, 30), st.integers(0, 5)),  # launched so long before, by a call of this duration
        ),
        min_size=1,
        max_size=25,
    )
    .map(in_order)
    .filter(lambda rows: any(row[2] for row in rows))
)


class Reference:
    """Reference result from sets of whole microseconds."""

    def __init__(self, rows: list[Row]) -> None:
        self.window = set(
            range(
                min(start for _, start, duration, *_ in rows if duration),
                max(start + duration for _, start, duration, *_ in rows if duration),
            )
        )
        self.kinds: dict[tuple[int, str], set[int]] = defaultdict(set)
        self.streams: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.computing: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.classes: dict[str, set[int]] = defaultdict(set)
        self.all: dict[str, set[int]] = defaultdict(set)
        for name, start, duration, stream, device, _ in rows:
            spent = set(range(start, start + duration))
            self.kinds[device, KIND[name]] |= spent
            self.streams[device, stream] |= spent
            self.all[KIND[name]] |= spent
            if KIND[name] == "compute":
                self.computing[device, stream] |= spent
            if name in CLASS:
                self.classes[CLASS[name]] |= spent


def events_of(rows: list[Row]) -> list[Event]:
    events = []
    for number, (name, start, duration, stream, device, called) in enumerate(rows):
        events.append(kernel(name, 100 + start, duration, stream, number, device=device))
        if called:
            events.append(launch(number, 100 + start - called[0], called[1]))
    return events


@given(WORK)
def test_devices_agree_with_counting_microseconds(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    truth = Reference(rows)
    for part in detail(tmp_path_factory.mktemp("trace"), events_of(rows)).devices:
        assert part.device is not None
        k, c, m = (truth.kinds[part.device, kind] for kind in ("compute", "communication", "memcpy"))
        assert (part.window_us, part.compute_us, part.communication_us) == (len(truth.window), len(k), len(c))
        assert (part.overlap_us, part.exposed_communication_us) == (len(k & c), len(c - k))
        assert (part.memcpy_us, part.exposed_memcpy_us) == (len(m), len(m - k - c))
        assert part.idle_us == len(truth.window - k - c - m)


@given(WORK)
def test_streams_agree_with_counting_microseconds(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    truth = Reference(rows)
    streams = detail(tmp_path_factory.mktemp("trace"), events_of(rows)).streams
    assert {(item.device, item.stream) for item in streams} >= {key for key, spent in truth.streams.items() if spent}
    for item in streams:
        assert item.device is not None
        assert item.stream is not None
        expected = truth.streams[item.device, item.stream]
        others: set[int] = set().union(
            *(spent for (device, stream), spent in truth.streams.items() if device == item.device and stream != item.stream)
        )
        assert (item.busy_us, item.overlapped_us, item.exposed_us) == (
            len(expected),
            len(expected & others),
            len(expected - others),
        )
        assert item.compute_us == len(truth.computing[item.device, item.stream])


@given(WORK)
def test_classes_agree_with_counting_microseconds(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    truth = Reference(rows)
    for class_ in detail(tmp_path_factory.mktemp("trace"), events_of(rows)).classes:
        spent = truth.classes[class_.name]
        assert class_.busy_us == len(spent)
        assert class_.summed_us == sum(row[2] for row in rows if CLASS.get(row[0]) == class_.name)
        assert class_.overlapped_us == len(spent & truth.all["compute" if class_.name == "communication" else "communication"])


@given(WORK)
def test_idle_reasons_agree_with_checking_every_microsecond(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    work = []
    for _, start, duration, _, _, called in rows:
        began = None if called is None else start - called[0]
        returned = None if called is None else min(start - called[0] + called[1], start)
        work.append((start, start + duration, began, returned))
    rank_detail = detail(tmp_path_factory.mktemp("trace"), events_of(rows))
    assert (rank_detail.launch is None) == all(row[5] is None for row in rows)
    if rank_detail.launch is None:
        return
    first = min(start for start, end, *_ in work if end > start)
    last = max(end for start, end, *_ in work if end > start)
    counts = {"queued": 0, "launching": 0, "starved": 0, "unknown": 0}
    for now in range(first, last):
        if any(start <= now < end for start, end, *_ in work):
            continue
        following = min(start for start, end, *_ in work if start > now and end > start)
        next_up = [began for start, _, began, _ in work if start == following]
        if any(item is not None and item <= now < start for start, _, _, item in work):
            counts["queued"] += 1
        elif any(began is not None and item is not None and began <= now < item for _, _, began, item in work):
            counts["launching"] += 1
        elif all(began is None for began in next_up):
            counts["unknown"] += 1
        else:
            counts["starved"] += 1
    assert idle(rank_detail) == (counts["queued"], counts["launching"], counts["starved"], counts["unknown"])


def test_call_that_returns_after_its_kernel_began_is_no_longer_launching(tmp_path: Path) -> None:
    events = [launch(1, 0, 60), kernel("a", 10, 10, 7, 1), launch(2, 70), kernel("b", 100, 10, 7, 2)]
    assert idle(detail(tmp_path, events)) == (29, 1, 50, 0)


def test_queue_delay_counts_each_call_once_and_a_graph_by_its_launch(tmp_path: Path) -> None:
    # given two plain launches, one of which appears to start early, a graph of three kernels, and a kernel without its call
    rank_detail = detail(
        tmp_path,
        [
            launch(1, 0),
            kernel(GEMM, 10, 5, correlation=1),
            launch(2, 21),
            kernel(GEMM, 20, 5, correlation=2),
            launch(3, 26, 2, name="cudaGraphLaunch"),
            *(kernel(name, ts, 5, correlation=3) for name, ts in ((GEMM, 30), (NCCL, 40), (GEMM, 50))),
            kernel(GEMM, 60, 5, correlation=9),
        ],
    ).launch
    assert rank_detail is not None
    assert (rank_detail.events, rank_detail.linked, rank_detail.calls) == (6, 5, 3)
    assert (rank_detail.graph_launches, rank_detail.graph_events) == (1, 3)
    assert rank_detail.started_early == 1
    (compute,) = rank_detail.queue_delay
    assert (compute.kind, compute.events, compute.median_us, compute.longest_us) == ("compute", 3, 4, 10)


def test_graph_without_its_launch_is_found_by_node_or_correlation(tmp_path: Path) -> None:
    events = [
        launch(1, 0),
        kernel(GEMM, 2, 1, correlation=1, graph_node_id=0),
        kernel(GEMM, 10, 5, correlation=5, graph_node_id=77),
        kernel(GEMM, 20, 5, correlation=6),
        kernel(GEMM, 30, 5, correlation=6),
        kernel(GEMM, 40, 5, graph_node_id=78),
    ]
    rank_detail = detail(tmp_path, events).launch
    assert rank_detail is not None
    assert (rank_detail.graph_launches, rank_detail.graph_events) == (3, 4)


def test_device_activities_alone_show_no_launches_or_recompute(tmp_path: Path) -> None:
    rank_detail = detail(tmp_path, [kernel(GEMM, 0, 10, correlation=1), kernel(GEMM, 20, 10, correlation=2)])
    assert (rank_detail.launch, rank_detail.recompute, rank_detail.contention) == (None, None, None)


def test_copies_get_direction_bytes_and_speed_from_events_or_calls(tmp_path: Path) -> None:
    rank_detail = detail(
        tmp_path,
        [
            kernel(GEMM, 0, 10),
            # Two at once: the rate is that of both, over the time in which any of them ran.
            kernel(COPY, 5, 10, stream=8, bytes=1_000_000),
            kernel(COPY, 5, 10, stream=9, bytes=3_000_000),
            kernel("Memcpy HtoD (Pageable -> Device)", 20, 4, bytes=100),
            # ROCm: the call has the attributes that the event lacks.
            kernel("Memcpy DtoH (Device -> Host)", 30, 2, correlation=4),
            {**launch(4, 25, name="hipMemcpyAsync"), "args": {"correlation": 4, "bytes": "2048"}},
            kernel("Memcpy DtoD (Device -> Device)", 40, 2, bytes=64),
            kernel("Memcpy DtoD (Device -> Device)", 45, 2),
            kernel("Memcpy PtoP (Device -> Device)", 50, 1, bytes=10),
            kernel("Memset (Device)", 60, 1, bytes=2**62),
            kernel("__amd_rocclr_copyBuffer", 70, 1),
        ],
    )
    rows = {(row.direction, row.memory): row for row in rank_detail.copies}
    both = rows["host to device", "Pinned -> Device"]
    assert (both.events, both.busy_us, both.exposed_us, both.bytes) == (2, 10, 5, 4_000_000)
    assert both.bytes_per_second == pytest.approx(4_000_000 / 10e-6)
    assert rows["host to device", "Pageable -> Device"].bytes == 100
    assert rows["device to host", "Device -> Host"].bytes == 2048
    local = rows["device to device", "Device -> Device"]
    assert (local.events, local.sized_events, local.bytes, local.bytes_per_second) == (2, 1, 64, 64 / 2e-6)
    assert rows["fill", None].bytes is None
    assert rows["fill", None].bytes_per_second is None
    assert rows["unknown", None].events == 1
    assert not any(row.collective for row in rank_detail.copies)
    assert [row.busy_us for row in rank_detail.copies] == sorted((row.busy_us for row in rank_detail.copies), reverse=True)


RECOMPUTED = (
    operator("aten::mm", 0, 5, Sequence_number=1, Fwd_thread_id=0),
    launch(1, 1),
    operator("autograd::engine::evaluate_function: CheckpointFunctionBackward", 20, 60, 2, Sequence_number=3, Fwd_thread_id=1),
    operator("aten::linear", 25, 10, 2, Sequence_number=4, Fwd_thread_id=0),
    operator("aten::addmm", 26, 8, 2, Sequence_number=4, Fwd_thread_id=0),
    launch(2, 28, tid=2),
    operator("autograd::engine::evaluate_function: AddmmBackward0", 40, 20, 2, Sequence_number=4, Fwd_thread_id=2),
    operator("aten::mm", 42, 5, 2),
    launch(3, 43, tid=2),
    # Another thread at the same time, and gradients on: not inside any backward.
    operator("aten::mm", 27, 5, 3, Sequence_number=5, Fwd_thread_id=0),
    launch(4, 28, tid=3),
)


def test_forward_operators_inside_backward_are_recomputation(tmp_path: Path) -> None:
    work = [kernel(GEMM, ts, 10, correlation=number) for number, ts in ((1, 100), (2, 120), (3, 140), (4, 160))]
    recompute = detail(tmp_path, [*RECOMPUTED, *work]).recompute
    assert recompute is not None
    assert (recompute.operators, recompute.events, recompute.busy_us, recompute.compute_share) == (1, 1, 10, 0.25)


def test_recomputation_on_a_cpu_is_the_operators_themselves(tmp_path: Path) -> None:
    rank_detail = detail(tmp_path, [event for event in RECOMPUTED if event["cat"] == "cpu_op"])
    assert rank_detail.recompute is not None
    assert (rank_detail.recompute.operators, rank_detail.recompute.events, rank_detail.recompute.busy_us) == (1, 1, 10)
    assert rank_detail.launch is None
    assert (rank_detail.streams, rank_detail.copies) == ([], [])
    assert {row.name: row.busy_us for row in rank_detail.classes} == {"gemm": 20}


def test_kernels_launched_by_the_optimizer_have_its_class(tmp_path: Path) -> None:
    rank_detail = detail(
        tmp_path,
        [
            annotation("Optimizer.step#SGD.step", 10, 10),
            launch(1, 5),
            launch(2, 15),
            kernel(RELU, 30, 4, correlation=1),
            kernel(RELU, 40, 6, correlation=2),
        ],
    )
    assert {row.name: row.busy_us for row in rank_detail.classes} == {"optimizer": 6, "elementwise": 4}


def test_unknown_long_kernels_beside_the_main_stream_are_named(tmp_path: Path) -> None:
    events = [
        kernel(GEMM, 0, 10_000),
        kernel(UNKNOWN, 10_000, 5_000),  # on the main stream
        kernel(UNKNOWN, 100, 60, stream=20),
        kernel(UNKNOWN, 170, 40, stream=20),
        kernel("brief", 300, 10, stream=20),
        kernel(NCCL, 400, 100, stream=21),
    ]
    (unclassified,) = detail(tmp_path, events).unclassified
    assert (unclassified.name, unclassified.stream, unclassified.events, unclassified.busy_us, unclassified.longest_us) == (
        UNKNOWN,
        20,
        2,
        100,
        60,
    )


def _contended(slow: int, *, beside: int = 3, alone: int = 3) -> list[Event]:
    """Return the same five kernels several times; the middle one takes ``slow`` instead of 20 us where communication runs."""
    events = []
    for turn in range(beside + alone):
        at, took = turn * 1000, slow if turn < beside else 20
        events += [kernel(RELU, at + ts, 9) for ts in (0, 10, 200, 210)] + [kernel(GEMM, at + 50, took, grid=[8, 1, 1])]
        if turn < beside:
            events.append(kernel(NCCL, at + 40, 100, stream=20))
    return events


def test_compute_beside_communication_is_compared_with_lone_kernels(tmp_path: Path) -> None:
    contention = detail(tmp_path, _contended(30)).contention
    assert contention is not None
    assert (contention.slowdown, contention.extra_us, contention.compared, contention.overlapped) == (1.5, 30, 3, 3)
    (row,) = contention.costliest
    assert (row.name, row.overlapped, row.alone, row.overlapped_median_us, row.alone_median_us) == (GEMM, 3, 3, 30, 20)


@pytest.mark.parametrize(
    "events",
    [
        _contended(30, alone=2),
        _contended(30, beside=2),
        # Another grid means other work.
        [{**item, "args": {**item["args"], "grid": [at, 1, 1]}} for at, item in enumerate(_contended(30))],
        # Other neighbours mean another place in the model.
        [
            {**item, "name": f"{item['name']}{at}" if item["name"] == RELU else item["name"]}
            for at, item in enumerate(_contended(30))
        ],
        # Too short for clocks that count whole microseconds.
        [{**item, "dur": item["dur"] / 10} for item in _contended(30)],
    ],
    ids=["few alone", "few beside", "grid", "neighbours", "short"],
)
def test_contention_without_enough_lone_kernels_is_unknown(tmp_path: Path, events: list[Event]) -> None:
    contention = detail(tmp_path, events).contention
    assert contention is not None
    assert (contention.slowdown, contention.extra_us, contention.compared, contention.costliest) == (None, None, 0, [])


def test_steps_have_the_details_of_their_own_window(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#4", 0, 100),
        annotation("ProfilerStep#5", 100, 100),
        launch(1, 10),
        kernel(GEMM, 20, 100, correlation=1),  # runs until the next step's work has begun
        launch(2, 105),
        kernel(RELU, 110, 40, 8, 2),
    ]
    first, second = detail(tmp_path, events).steps
    assert (first.step, first.window_us, second.step, second.window_us) == (4, 90, 5, 40)
    assert {row.name: row.busy_us for row in first.classes} == {"gemm": 90}
    assert {row.name: row.busy_us for row in second.classes} == {"gemm": 10, "elementwise": 40}
    assert first.launch is not None
    assert second.launch is not None
    assert (first.launch.events, second.launch.events) == (1, 1)


def test_hostile_number_of_streams_and_steps_is_truncated(tmp_path: Path) -> None:
    steps = [annotation(f"ProfilerStep#{number}", number * 10, 10) for number in range(200)]
    rank_detail = detail(tmp_path, [*steps, *(kernel(GEMM, at * 10, 5, stream=at) for at in range(200))])
    assert (len(rank_detail.streams), len(rank_detail.steps)) == (64, 64)


def test_empty_trace_is_an_error_with_details(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to analyse"):
        detail(tmp_path, [trace_event("cuda_runtime", "cudaGetDeviceCount", 0, 1)])


def test_trace_of_launches_alone_has_empty_details(tmp_path: Path) -> None:
    rank_detail = detail(tmp_path, [launch(1, 0)])
    assert (rank_detail.streams, rank_detail.copies, rank_detail.launch, rank_detail.steps) == ([], [], None, [])

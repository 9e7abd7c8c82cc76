"""Sizes, peers and roots of collectives read from hand-written traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.trace_events import Event, annotation, kernel, launch, operator, trace_of

from rankscope.analysis.collectives.traffic.message_size import element_bytes, input_size
from rankscope.analysis.collectives.windows import reduce_file
from rankscope.analysis.trace.schema import EventArgs
from rankscope.runs.records import CollectiveRecord


def collectives(tmp_path: Path, *events: Event) -> list[CollectiveRecord]:
    return reduce_file(trace_of(tmp_path, events)).collectives


def described(op: str, **more: Any) -> dict[str, Any]:
    size = {"Collective name": op, "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "BFloat16"}
    return {**size, "Group size": 4, "Process Group Name": "pp", "Process Group Ranks": "[2, 3, 6, 7]", **more}


@pytest.mark.parametrize(("op", "place"), [("send", "Dst Rank"), ("recv", "Src Rank")])
def test_peer_of_a_message_comes_from_the_metadata(tmp_path: Path, op: str, place: str) -> None:
    (collective,) = collectives(tmp_path, kernel("ncclDevKernel_SendRecv", 0, 9, **described(op, **{place: 6})))
    assert (collective.op, collective.p2p, collective.peer, collective.bytes, collective.group_ranks) == (
        op,
        True,
        6,
        2048,
        [2, 3, 6, 7],
    )


def test_root_is_a_group_position_recorded_only_in_the_call(tmp_path: Path) -> None:
    broadcast = kernel("ncclDevKernel_Broadcast", 20, 9, **described("broadcast", **{"External id": 5}))
    call = operator("record_param_comms", 0, 9, **described("broadcast", **{"External id": 5, "Rank": 2}))
    assert [row.root for row in collectives(tmp_path, broadcast, call)] == [6]
    assert [row.root for row in collectives(tmp_path, broadcast)] == [None]
    # In an all-reduce that number is the rank itself.
    broadcast["args"]["Collective name"] = call["args"]["Collective name"] = "allreduce"
    assert [row.root for row in collectives(tmp_path, broadcast, call)] == [None]


def noted(dims: Any, types: Any, op: str = "all_reduce", kernels: int = 1) -> list[Event]:
    args = {"Input Dims": dims, "Input type": types}
    events = [annotation(f"nccl:{op}", 0, 50, **args)]
    for number in range(kernels):
        events.append(launch(100 + number, 10 + number))
        events.append(kernel("ncclKernel_AllReduce_RING", 60 + 10 * number, 9, 7, 100 + number))
    return events


def test_recorded_shapes_give_the_size_without_metadata(tmp_path: Path) -> None:
    (collective,) = collectives(tmp_path, *noted([[3, 5], [2]], ["float", "float"]))
    assert (collective.bytes, collective.dtype) == (17 * 4, "float")
    (collective,) = collectives(tmp_path, *noted([[3], [2]], ["c10::BFloat16", "double"]))
    assert (collective.bytes, collective.dtype) == (3 * 2 + 2 * 8, None)


@pytest.mark.parametrize(
    ("dims", "types"),
    [([], []), ([[3]], []), ([[3]], ["quaternion"]), ([[-3]], ["float"]), ("[3]", ["float"]), ([[[3]]], ["float"]), (None, None)],
)
def test_invalid_shapes_give_no_size(tmp_path: Path, dims: Any, types: Any) -> None:
    assert [row.bytes for row in collectives(tmp_path, *noted(dims, types))] == [None]


def test_input_of_each_rank_is_not_the_size_of_an_all_gather(tmp_path: Path) -> None:
    assert [row.bytes for row in collectives(tmp_path, *noted([[8]], ["float"], op="_all_gather_base"))] == [None]


def test_several_kernels_of_one_call_have_no_size(tmp_path: Path) -> None:
    assert [row.bytes for row in collectives(tmp_path, *noted([[8]], ["float"], kernels=2))] == [None, None]
    call = described("allreduce", **{"External id": 5})
    kernels = [kernel("ncclDevKernel_AllReduce", at, 9, **call) for at in (0, 20)]
    assert [row.bytes for row in collectives(tmp_path, *kernels)] == [None, None]
    kernels[1]["args"] = {**call, "External id": 6}
    assert [row.bytes for row in collectives(tmp_path, *kernels)] == [2048, 2048]


def test_gloo_size_comes_from_recorded_shapes(tmp_path: Path) -> None:
    (collective,) = collectives(
        tmp_path,
        operator("c10d::allreduce_", 0, 1),
        annotation("gloo:all_reduce", 2, 9, Input_Dims=[[256]], Input_type=["float"]),
    )
    assert (collective.bytes, collective.dtype, collective.stream) == (1024, "float", None)


@given(st.lists(st.lists(st.integers(1, 50), max_size=3), min_size=1, max_size=3))
def test_sizes_are_elements_times_element_bytes(shapes: list[list[int]]) -> None:
    elements = 0
    for shape in shapes:
        count = 1
        for size in shape:
            count *= size
        elements += count
    raw = msgspec.Raw(msgspec.json.encode(shapes))
    args = EventArgs(input_shapes=raw, input_types=msgspec.Raw(msgspec.json.encode(["long int"] * len(shapes))))
    assert input_size("all_reduce", args) == ("long int", elements * 8)


def test_data_types_have_one_width_in_every_spelling() -> None:
    assert [element_bytes(name) for name in ("Float", "float", "BFloat16", "c10::BFloat16", "Float8_e4m3fn", "Long")] == [
        4,
        4,
        2,
        2,
        1,
        8,
    ]
    assert element_bytes(None) is None

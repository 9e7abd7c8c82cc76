"""The pure functions behind the details of a trace."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.engine import analyze
from rankscope.analysis.trace.classify import COMMUNICATION_NAMES, DIRECTIONS, direction_of, memory_of
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.intervals import by_key, covered, distinct, shared, union
from rankscope.analysis.trace.kernels import CLASS_NAMES, kernel_class
from rankscope.analysis.trace.work import enclosing, outermost, within

PAIRS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 15)), max_size=12)


def spans(pairs: list[tuple[int, int]]) -> np.ndarray:
    array = np.array([(start, start + length) for start, length in pairs], dtype=np.int64).reshape(-1, 2)
    return union(array[:, 0], array[:, 1])


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {at for start, length in pairs for at in range(start, start + length)}


@given(PAIRS, PAIRS)
def test_covered_counts_each_interval_for_itself(intervals: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in intervals], dtype=np.int64)
    ends = np.array([start + length for start, length in intervals], dtype=np.int64)
    inside = points(others)
    expected = [sum(at in inside for at in range(start, start + length)) for start, length in intervals]
    assert covered(starts, ends, spans(others)).tolist() == expected


@given(st.lists(PAIRS, max_size=4))
def test_shared_is_what_two_or_more_hold(sets: list[list[tuple[int, int]]]) -> None:
    point_sets = [points(item) for item in sets]
    expected = {at for at in range(70) if sum(at in item for item in point_sets) >= 2}
    result = shared([spans(item) for item in sets])
    assert {at for start, end in result for at in range(start, end)} == expected
    assert all(result[1:, 0] > result[:-1, 1])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_groups_hold_each_row_once_and_in_order(keys: list[tuple[int, int]]) -> None:
    first, second = (np.array([key[column] for key in keys], dtype=np.int64) for column in (0, 1))
    groups = [rows.tolist() for rows in by_key(first, second)]
    assert groups == [[row for row, key in enumerate(keys) if key == item] for item in sorted(set(keys))]


CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=20)


@given(CALLS, st.data())
def test_enclosing_and_within_agree_with_looking_at_every_frame(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    # given events of three threads, any of which are frames
    chosen = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    events = [(thread, start * 1000, (start + length) * 1000) for thread, start, length in rows]
    path = tmp_path_factory.mktemp("trace") / "rank-0.json"
    written = [{"ph": "X", "cat": "cpu_op", "name": "x", "tid": tid, "ts": ts, "dur": dur} for tid, ts, dur in rows]
    path.write_text(json.dumps({"traceEvents": written}))
    trace = read_trace(path)
    frames = np.flatnonzero(chosen)
    # then an event is within any frame that has begun and not ended
    everything = np.arange(len(events))
    expected = [any(events[at][0] == item and events[at][1] <= now < events[at][2] for at in frames) for item, now, _ in events]
    assert within(trace, everything, frames).tolist() == expected
    # and enclosed by the outermost of those, of which there is at most one
    mask = np.zeros(len(events), dtype=bool)
    mask[frames] = True
    outer = outermost(trace, mask)
    for row, entry in enumerate(enclosing(trace, everything, outer)):
        thread, now, _ = events[row]
        around = [at for at, item in enumerate(outer) if events[item][0] == thread and events[item][1] <= now < events[item][2]]
        assert around == ([entry] if entry >= 0 else [])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x32_nt", "gemm"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1", "gemm"),
        ("triton_tem_fused_mm_12", "gemm"),
        ("aten::addmm", "gemm"),
        ("void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd>>", "attention"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("void cudnn::bn_bw_1C11_kernel_new<float>", "normalisation"),
        ("void split_embedding_codegen_forward_unweighted_kernel<float>(fbgemm_gpu::x)", "embedding and indexing"),
        ("void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1", "optimizer"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "data movement"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("triton_poi_fused_add_relu_3", "elementwise"),
        ("triton_red_fused_mean_1", "reduction"),
        ("cunn_SoftMaxForward<8, c10::BFloat16>", "softmax and loss"),
        ("aten::mse_loss", "softmax and loss"),
        ("void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16>", "quantisation"),
        ("convert_something", "other"),
        ("my_own_kernel", "other"),
    ],
)
def test_kernels_by_name(name: str, expected: str) -> None:
    assert kernel_class(name) == expected


@given(st.lists(st.integers(0, 500)))
def test_distinct_numbers_come_once_and_in_order(numbers: list[int]) -> None:
    assert distinct(np.array(numbers, dtype=np.int32)) == sorted(set(numbers))


def test_classes_have_one_row_each() -> None:
    assert len(set(CLASS_NAMES)) == len(CLASS_NAMES)
    assert len({library for library, *_ in COMMUNICATION_NAMES}) == len(COMMUNICATION_NAMES)


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "host to device", "Pageable -> Device"),
        ("Memcpy DtoH (Device -> Pinned)", "device to host", "Device -> Pinned"),
        ("Memcpy PtoP (Device -> Device)", "peer to peer", "Device -> Device"),
        ("Memset (Device)", "fill", None),
        ("CopyDeviceToHost", "device to host", None),
        ("zeCommandListAppendMemoryCopy(M2D)", "host to device", None),
        ("zeCommandListAppendMemoryFill", "fill", None),
        ("__amd_rocclr_copyBuffer", "unknown", None),
    ],
)
def test_copies_by_name(name: str, direction: str, memory: str | None) -> None:
    assert (direction_of(name), memory_of(name)) == (direction, memory)


def test_the_table_of_directions_is_of_valid_patterns() -> None:
    assert all(re.compile(pattern) for _, pattern in DIRECTIONS)


CHECKPOINTED = """
import sys, torch
from torch.utils.checkpoint import checkpoint
block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
x = torch.randn(4, 8, requires_grad=True)
for mode in ("plain", "reentrant", "saved tensors"):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(2):
            y = block(x) if mode == "plain" else checkpoint(block, x, use_reentrant=mode == "reentrant")
            y.sum().backward()
    profile.export_chrome_trace(f"{sys.argv[1]}/{mode}/rank-0.json")
"""


@pytest.fixture(scope="module")
def checkpointed(require_torch: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two steps of a model of three layers: one folder for each way of checkpointing."""
    folder = tmp_path_factory.mktemp("checkpointed")
    for mode in ("plain", "reentrant", "saved tensors"):
        (folder / mode).mkdir()
    subprocess.run([sys.executable, "-W", "ignore", "-c", CHECKPOINTED, folder], check=True, capture_output=True)
    return folder


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(("mode", "operators"), [("plain", 0), ("reentrant", 6), ("saved tensors", 6)])
def test_checkpointing_of_this_torch_is_seen(checkpointed: Path, mode: str, operators: int) -> None:
    # each layer is computed again where it is checkpointed
    (row,) = analyze([checkpointed / mode], detail=True).ranks
    assert row.detail is not None
    assert row.detail.recompute is not None
    assert row.detail.recompute.operators == operators

"""Details of real traces: they agree with the golden values and with the stacks."""

from __future__ import annotations

import functools
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.analysis.trace_events import details, idle

from rankscope.analysis.engine import analyze
from rankscope.analysis.result.detail import RankDetail


@pytest.fixture(scope="module")
def real(shared_data: Path) -> Callable[[str], RankDetail]:
    return functools.cache(lambda name: details(shared_data / "traces" / name))


def test_moe_layer_computes_under_expert_parallel_communication(real: Callable[[str], RankDetail]) -> None:
    rank_detail = real("moe_dualpipe_deepep/rank-0.json.gz")
    classes = {row.name: row for row in rank_detail.classes}
    assert classes["communication"].busy_us == 113_030
    assert classes["communication"].overlapped_us / 113_030 == pytest.approx(0.9632, abs=1e-4)
    assert rank_detail.streams[1].stream == 27
    assert rank_detail.streams[1].kind == "communication"
    # Matrix products in pieces on two streams: their durations add up to more than the time.
    assert classes["gemm"].summed_us > classes["gemm"].busy_us
    assert classes["other"].busy_us < 0.01 * rank_detail.window_us


def test_recomputed_blocks_agree_with_the_python_stacks(real: Callable[[str], RankDetail], shared_data: Path) -> None:
    # given the reference: kernels launched inside torch's own recomputing function, which only this trace's stacks show
    events = json.loads(gzip.decompress((shared_data / "traces/resnet_8ranks_mi300/rank-0.json.gz").read_bytes()))["traceEvents"]
    frames = [event for event in events if event.get("cat") == "python_function" and "recompute_fn" in event["name"]]
    calls = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") == "cuda_runtime"
        and any(event["tid"] == frame["tid"] and frame["ts"] <= event["ts"] < frame["ts"] + frame["dur"] for frame in frames)
    }
    again = [
        event
        for event in events
        if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and event["args"].get("correlation") in calls
    ]
    # then
    recompute = real("resnet_8ranks_mi300/rank-0.json.gz").recompute
    assert recompute is not None
    assert len(again) > 500
    assert recompute.events == pytest.approx(len(again), rel=0.02)
    assert recompute.busy_us == pytest.approx(sum(event["dur"] for event in again), rel=0.02)


@pytest.mark.parametrize("name", ["ddp_2ranks_nccl_metadata/rank-0", "kineto_2021_schema/rank-0"])
def test_training_without_checkpointing_recomputes_nothing(real: Callable[[str], RankDetail], name: str) -> None:
    recompute = real(f"{name}.json.gz").recompute
    assert recompute is not None
    assert (recompute.operators, recompute.busy_us) == (0, 0)


def test_device_graphs_of_a_recommender_are_counted(real: Callable[[str], RankDetail]) -> None:
    launch = real("hta_trace_diff_test/rank-1.json.gz").launch
    assert launch is not None
    assert launch.graph_launches == 12
    assert launch.graph_events > 5000
    assert launch.calls < launch.linked < launch.events


def test_rank_delayed_by_its_host_is_starved(real: Callable[[str], RankDetail]) -> None:
    starved = real("dlrm_8ranks_v100/rank-7.json.gz")
    fed = real("moe_dualpipe_deepep/rank-0.json.gz")
    assert starved.launch is not None
    assert fed.launch is not None
    assert starved.launch.idle_starved_us > 0.8 * 8308
    assert fed.launch.idle_queued_us > 0.8 * 497


def test_details_of_real_traces_add_up(real: Callable[[str], RankDetail], shared_data: Path) -> None:
    golden = json.loads((shared_data / "traces/golden.json").read_text())
    for name in ("moe_dualpipe_deepep/rank-0", "resnet_8ranks_mi300/rank-0", "hta_sampled_128/rank-1", "timesformer_h100/rank-0"):
        rank_detail, truth = real(f"{name}.json.gz"), golden[f"{name}.json.gz"]
        (device,) = rank_detail.devices
        for field, value in msgspec.structs.asdict(device).items():
            if field != "device":
                assert value == pytest.approx(truth[field], abs=1, rel=1e-4), (name, field)
        assert sum(row.events for row in rank_detail.classes) == truth["kernels"] + truth["communication_kernels"], name
        assert sum(row.events for row in rank_detail.copies) == truth["copies"], name
        assert sum(row.busy_us for row in rank_detail.classes if row.name != "communication") >= truth["compute_us"] - 1
        assert sum(idle(rank_detail)) == pytest.approx(device.idle_us)
        assert sum(row.busy_us - row.overlapped_us for row in rank_detail.streams) <= device.window_us - device.idle_us + 1


def test_transfers_and_waits_add_up_to_the_communication_of_every_rank(shared_data: Path) -> None:
    golden = json.loads((shared_data / "traces/golden.json").read_text())
    for row in analyze([shared_data / "traces/dlrm_8ranks_v100"]).ranks:
        truth, parts = golden[f"dlrm_8ranks_v100/rank-{row.rank}.json.gz"], row.communication_parts
        assert parts is not None
        hidden = parts.transfer_overlap_us + parts.wait_overlap_us + (parts.unmatched_overlap_us or 0.0)
        exposed = parts.transfer_exposed_us + parts.wait_exposed_us + (parts.unmatched_exposed_us or 0.0)
        assert (hidden, exposed) == pytest.approx((truth["overlap_us"], truth["exposed_communication_us"]), abs=1)
        # All collectives match, and none runs beside another.
        assert parts.transfer_overlap_us + parts.transfer_exposed_us == pytest.approx(217)
        assert parts.wait_overlap_us + parts.wait_exposed_us == pytest.approx(row.wait_us)
        assert (parts.unmatched_overlap_us, parts.unmatched_exposed_us) == (0, 0)


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
def test_checkpointing_of_the_installed_torch_is_recognised(checkpointed: Path, mode: str, operators: int) -> None:
    # each layer is computed again where it is checkpointed
    (row,) = analyze([checkpointed / mode], detail=True).ranks
    assert row.detail is not None
    assert row.detail.recompute is not None
    assert row.detail.recompute.operators == operators

"""Real traces of other projects, checked against values that an independent program computed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.analysis.trace_values import PARTITION, differences, values_of_file
from tests.trace_truth import values as trace_truth

from rankscope.analysis.collectives.windows import reduce_file, reduce_trace
from rankscope.analysis.engine import analyze
from rankscope.analysis.trace.columns import read_trace

TRACES = [
    "ddp_2ranks_nccl_metadata/rank-0.json.gz",
    *(f"dlrm_8ranks_v100/rank-{rank}.json.gz" for rank in range(8)),
    "hta_df_index_resolver/rank-1.json.gz",
    "hta_sampled_128/rank-0.json.gz",
    "hta_sampled_128/rank-1.json.gz",
    "hta_trace_diff_test/rank-1.json.gz",
    "kineto_2021_schema/rank-0.json.gz",
    "moe_dualpipe_deepep/rank-0.json.gz",
    "resnet_8ranks_mi300/rank-0.json.gz",
    "timesformer_h100/rank-0.json.gz",
]
FIELDS = (*PARTITION, "overlap_ratio")


def test_every_trace_with_golden_values_is_compared(traces: Path) -> None:
    assert set(json.loads((traces / "golden.json").read_text())) == set(TRACES)


@pytest.mark.parametrize("name", TRACES)
def test_each_field_agrees_with_the_golden_value(traces: Path, name: str) -> None:
    golden = json.loads((traces / "golden.json").read_text())[name]
    (row,) = analyze([traces / name]).ranks
    result = msgspec.structs.asdict(row)
    assert row.window_basis == "file"
    for field in FIELDS:
        if golden[field] is None:
            assert result[field] is None, field
        else:
            slack = 1e-4 if field == "overlap_ratio" else 1.0
            assert result[field] == pytest.approx(golden[field], abs=slack, rel=1e-4), field


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_reference_program_agrees_on_every_golden_trace(traces: Path, name: str) -> None:
    golden = json.loads((traces / "golden.json").read_text())[name]
    values = trace_truth.values_of_file(traces / name)
    # The golden values are sums of floats: some are off by tens of nanoseconds.
    assert {field: values["window"][field] for field in FIELDS} == pytest.approx(
        {field: golden[field] for field in FIELDS}, abs=0.1
    )
    assert differences(values, values_of_file(traces / name)) == []


@pytest.mark.parametrize("name", ["hta_trace_diff_test/rank-1.json.gz", "kineto_2021_schema/rank-0.json.gz"])
def test_trace_read_without_details_lacks_only_their_columns(traces: Path, name: str) -> None:
    # when it is read in both ways
    whole, brief = (read_trace(traces / name, detail=detail) for detail in (True, False))
    # then only the columns of the details differ, and those are empty
    differing = {
        column for column in whole.__struct_fields__ if not np.array_equal(getattr(whole, column), getattr(brief, column))
    }
    assert differing == {"bytes", "graphed", "autograd"}
    assert {len(getattr(brief, column)) for column in differing} == {0}


@pytest.mark.parametrize("name", ["ddp_2ranks_nccl_metadata/rank-0.json.gz", "resnet_8ranks_mi300/rank-0.json.gz"])
def test_device_steps_are_contiguous_and_stay_within_the_file(traces: Path, name: str) -> None:
    trace = read_trace(traces / name)
    steps = reduce_trace(trace).breakdowns
    (whole,) = reduce_file(trace).breakdowns
    assert len(steps) == 3
    for item, following in itertools.pairwise(steps):
        assert following.step == item.step + 1
        assert following.start_unix_ns == item.start_unix_ns + round(item.window_us * 1000)
    assert sum(step.compute_us for step in steps) <= whole.compute_us + 0.001


def test_communication_metadata_names_operation_group_and_size(traces: Path) -> None:
    collectives = reduce_file(read_trace(traces / "ddp_2ranks_nccl_metadata/rank-0.json.gz")).collectives
    reductions = [row for row in collectives if row.op == "all_reduce"]
    assert len(collectives) == 21
    assert len(reductions) == 15
    assert {(row.group, tuple(row.group_ranks or []), row.group_size) for row in collectives} == {("0", (0, 1), 2)}
    assert 6_637_568 * 4 in {row.bytes for row in reductions}
    assert all(row.enqueue_unix_ns <= row.start_unix_ns < row.end_unix_ns for row in collectives)


def test_dlrm_rank_7_imposes_the_wait(traces: Path) -> None:
    analysis = analyze([traces / "dlrm_8ranks_v100"])
    imposed = {row.rank: row for row in analysis.imposed_wait}
    assert [row.rank for row in analysis.imposed_wait[:3]] == [7, 5, 4]
    for rank, total, exposed in ((7, 35_540, 35_240), (5, 6_280, 5_060), (4, 4_990, 4_990)):
        assert imposed[rank].imposed_us == pytest.approx(total, abs=10)
        assert imposed[rank].imposed_exposed_us == pytest.approx(exposed, abs=10)
    assert all(imposed[rank].imposed_us == 0 for rank in (0, 1, 2, 3, 6))
    assert sum(row.imposed_us for row in analysis.imposed_wait) == pytest.approx(46_810, abs=10)
    assert imposed[7].share == pytest.approx(0.759, abs=0.001)
    assert {row.transfer_us for row in analysis.ranks} == {217.0}


def test_dlrm_verdict_is_rank_7_despite_its_short_communication(traces: Path) -> None:
    analysis = analyze([traces / "dlrm_8ranks_v100"], price_per_gpu_hour=2.0)
    verdict = analysis.verdict
    assert (verdict.kind, verdict.rank, verdict.ranks, verdict.evidence_source) == ("straggler", 7, [7], "traces")
    assert verdict.cause == "host"
    least = min(analysis.ranks, key=lambda row: row.communication_us or 0)
    assert least.rank == 7
    assert (analysis.collectives.matched, analysis.collectives.unmatched, analysis.collectives.method) == (8, 0, "order")
    assert verdict.gpu_hours_lost is not None
    assert verdict.cost is not None
    assert verdict.cost.amount == pytest.approx(2 * verdict.gpu_hours_lost)


def test_missing_culprit_leaves_no_other_rank_to_blame(traces: Path) -> None:
    analysis = analyze([traces / "dlrm_8ranks_v100" / f"rank-{rank}.json.gz" for rank in range(7)])
    assert analysis.verdict.kind == "insufficient_data"
    assert "7 ranks of 8" in analysis.verdict.summary
    assert analysis.imposed_wait == []
    assert analysis.collectives.unmatched == 8
    assert analysis.source.coverage == pytest.approx(7 / 8)


@pytest.mark.parametrize("torn", [3, 7])
def test_torn_trace_of_a_rank_leads_to_no_verdict_on_others(traces: Path, tmp_path: Path, torn: int) -> None:
    # given all traces, that of one rank cut off in the middle of its device events
    for rank in range(8):
        data = (traces / "dlrm_8ranks_v100" / f"rank-{rank}.json.gz").read_bytes()
        (tmp_path / f"rank-{rank}.json.gz").write_bytes(data[:50_000] if rank == torn else data)
    # when they are analysed
    analysis = analyze([tmp_path])
    # then the rank is shown with its available values, and there is no verdict
    assert [row.rank for row in analysis.ranks] == list(range(8))
    assert analysis.verdict.kind == "insufficient_data"
    assert f"the trace of rank {torn} is cut off" in analysis.verdict.summary
    assert analysis.imposed_wait == []
    assert analysis.source.coverage == pytest.approx(7.5 / 8)


def test_two_of_128_ranks_are_too_few_for_a_verdict(traces: Path) -> None:
    analysis = analyze([traces / "hta_sampled_128"])
    assert analysis.verdict.kind == "insufficient_data"
    assert analysis.source.world_size == 128
    assert all(row.wait_us is None for row in analysis.ranks)

"""Jobs of several ranks whose communication is in kernels without metadata, of known and of unknown names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from rankscope.analysis.engine import analyze
from rankscope.analysis.evidence.kernels.unknown_kernels import RankKernels, pattern_of, unknown_kernels
from rankscope.analysis.result.analysis import Verdict
from rankscope.analysis.trace.work import KernelTime
from rankscope.analysis.whatif.whatif_of_paths import whatif

from .inline_communication import LATE_US, STEPS, Fault, write_job

FUSED = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::P)1, 8>(flashinfer::Q<int>)"
)
UNKNOWN = "void acme::(anonymous namespace)::exchange+norm<(acme::P)1, 8>(acme::Params<float>)"


@pytest.mark.parametrize(
    "kernel",
    [
        FUSED,
        "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(int)",
        "void aiter::cross_device_reduce_2stage<int, 8>(int)",
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, int)",
        "barrier_on_stream_kernel_threadgroup(int)",
        # No operation in which all ranks meet: the times on the devices name the rank.
        "void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<8>(int)",
        "void mori::moe::EpCombineIntraNodeKernel<int>(int)",
    ],
)
@pytest.mark.parametrize("fault", ["host", "device"])
def test_rank_that_delays_the_others_is_named(tmp_path: Path, kernel: str, fault: Fault) -> None:
    verdict = analyze([write_job(tmp_path, kernel, fault=fault)]).verdict
    assert (verdict.kind, verdict.rank, verdict.cause) == ("straggler", 2, "host" if fault == "host" else "compute")


@pytest.mark.parametrize("fault", ["host", "device"])
def test_waiting_and_saving_equal_the_planted_delay(tmp_path: Path, fault: Fault) -> None:
    # given kernels of all ranks in the same order, without sequence numbers or groups
    folder = write_job(tmp_path, FUSED, fault=fault)
    analysis, healed = analyze([folder]), whatif([folder])
    # then the verdict and the what-if agree with each other, wherever in the step the rank is late
    assert analysis.collectives.matched == 3 * STEPS
    (imposed,) = [row for row in analysis.imposed_wait if row.rank == 2]
    assert imposed.imposed_us / 3 == pytest.approx(STEPS * LATE_US, rel=0.02)
    (rank,) = [row for row in healed.by_rank if row.rank == 2]
    assert healed.step_seconds is not None
    assert healed.ideal_step_seconds is not None
    assert (healed.step_seconds - healed.ideal_step_seconds) * 1e6 == pytest.approx(LATE_US, rel=0.03)
    assert rank.slowdown == pytest.approx(analysis.verdict.slowdown, rel=0.05)


def test_equal_ranks_are_not_accused(tmp_path: Path) -> None:
    verdict = analyze([write_job(tmp_path, FUSED)]).verdict
    assert (verdict.kind, verdict.rank) == ("compute_bound", None)


@pytest.mark.parametrize("stream", [7, 20])
@pytest.mark.parametrize("fault", ["none", "host", "device"])
def test_unknown_communication_kernels_are_listed_and_can_be_named(tmp_path: Path, fault: Fault, stream: int) -> None:
    # given a job whose communication has a name that is in no table
    folder = write_job(tmp_path, UNKNOWN, fault=fault, stream=stream)
    verdict = analyze([folder]).verdict
    # then nothing is concluded from its time; the kernel is listed, and the command names it
    assert verdict.kind == "insufficient_data"
    assert "no kernel" in verdict.summary
    assert "exchange+norm" in verdict.summary
    (row,) = verdict.unknown_kernels
    assert (row.name, row.own_stream) == (UNKNOWN, stream != 7)
    assert 0 < row.least_us <= row.most_us
    # when the pattern of the command is used
    named = analyze([folder], communication_pattern=re.compile(_pattern(verdict, folder)))
    # then there is a verdict
    assert named.collectives.matched == 3 * STEPS
    assert (named.verdict.kind, named.verdict.rank) == (("compute_bound", None) if fault == "none" else ("straggler", 2))


def _pattern(verdict: Verdict, folder: Path) -> str:
    """Return the pattern in the command that the verdict gives."""
    words = shlex.split(verdict.next[0].partition(": ")[2])
    assert words[:4] == ["rankscope", "analyze", str(folder), "--communication-pattern"]
    return words[4]


def test_single_trace_of_several_ranks_without_communication_is_no_verdict(tmp_path: Path) -> None:
    folder = write_job(tmp_path, UNKNOWN, fault="host")
    verdict = analyze([folder / "rank-0.json"]).verdict
    assert verdict.kind == "insufficient_data"
    assert [row.name for row in verdict.unknown_kernels] == [UNKNOWN]


@pytest.mark.parametrize("request_", ["sglang::inplace_all_reduce", "_C_custom_ar::all_reduce", "c10d::allreduce_"])
def test_single_trace_with_communication_requests_is_insufficient_data(tmp_path: Path, request_: str) -> None:
    folder = write_job(tmp_path, UNKNOWN, ranks=1, late=0, distributed=False, request=request_)
    assert analyze([folder]).verdict.kind == "insufficient_data"


@pytest.mark.parametrize("distributed", [False, True])
def test_job_of_one_rank_is_limited_by_its_compute(tmp_path: Path, distributed: bool) -> None:
    folder = write_job(tmp_path, UNKNOWN, ranks=1, late=0, distributed=distributed, request="acme::exchange")
    verdict = analyze([folder]).verdict
    assert verdict.kind == "compute_bound"
    assert "one rank" in verdict.summary


def test_process_group_of_one_rank_needs_no_communication(tmp_path: Path) -> None:
    folder = write_job(tmp_path, UNKNOWN, ranks=1, late=0, distributed=False, request="record_param_comms")
    trace = json.loads((folder / "rank-0.json").read_text())
    for event in trace["traceEvents"]:
        if event["name"] == "record_param_comms":
            event["args"] |= {"Collective name": "allreduce", "Group size": 1}
    (folder / "rank-0.json").write_text(json.dumps(trace))
    assert analyze([folder]).verdict.kind == "compute_bound"


def test_whatif_reports_missing_communication_kernels(tmp_path: Path) -> None:
    answer = whatif([write_job(tmp_path, UNKNOWN, fault="host")])
    assert "no kernel" in answer.summary


def kernels(*rows: tuple[str, float], own: frozenset[str] = frozenset()) -> RankKernels:
    return RankKernels(1000.0, 0.0, [KernelTime(name, "", 1, total) for name, total in rows], own)


def test_five_candidate_kernels_are_listed_with_separate_streams_first() -> None:
    side = frozenset({"side", "side_gemm"})
    ranks = {
        rank: kernels(
            ("side", 50.0),
            ("side_gemm", 90.0),
            ("gemm", 300.0 + 100.0 * rank),
            ("same", 400.0),
            ("short", 1.0 + rank),
            *((f"differs_{number}", 100.0 + 10.0 * number * rank) for number in range(1, 8)),
            own=side,
        )
        for rank in (0, 3)
    }
    rows = unknown_kernels(ranks)
    assert [row.name for row in rows] == ["side", "differs_7", "differs_6", "differs_5", "differs_4"]
    assert [row.own_stream for row in rows] == [True, False, False, False, False]
    assert (rows[1].least_us, rows[1].most_us) == (100.0, 310.0)
    assert rows[1].share == pytest.approx(0.205)


def test_longest_kernels_are_listed_without_a_separate_stream() -> None:
    ranks = {rank: kernels(("gemm", 500.0), ("ring", 300.0), ("copy", 100.0)) for rank in (0, 1)}
    assert [row.name for row in unknown_kernels(ranks)] == ["ring", "copy"]
    assert unknown_kernels({0: kernels(("gemm", 500.0))}) == []


@pytest.mark.parametrize(
    ("name", "other", "pattern"),
    [
        ("void a::ring<int>(b::C)", "gemm", "ring"),
        ("void a::ring<int>(b::C)", "void b::string<int>()", "a::ring"),
        ("_ZN1a4ringIiEEvi", "gemm", "ring"),
        ("void ring<1>(int)", "void ring<2>(int)", r"void\ ring<1>\(int\)"),
    ],
)
def test_pattern_matches_its_kernel_and_no_other(name: str, other: str, pattern: str) -> None:
    ranks = {0: kernels((name, 100.0), (other, 100.0))}
    (row,) = [row for row in unknown_kernels(ranks) if row.name == name]
    assert pattern_of(row, ranks) == pattern
    assert re.search(pattern, name)
    assert not re.search(pattern, other)

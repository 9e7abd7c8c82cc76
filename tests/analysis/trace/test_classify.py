"""Classification of kernels by name."""

from __future__ import annotations

import re
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.trace.classify import (
    COMMUNICATION_NAMES,
    classify_kernel,
    is_cpu_work,
    operation_name,
    operation_of_kernel,
)


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)",
        "void deep_ep::intranode::combine<__nv_bfloat16>(...)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)",
        "multimem_all_reduce_kernel<c10::BFloat16, 16>",
        "nvshmemi_proxy_quiet_entrypoint",
        "oneccl_allreduce_small",
        "hcom_allReduce__123_0",
    ],
)
def test_communication(name: str) -> None:
    assert classify_kernel(name) == "communication"


@pytest.mark.parametrize("name", ["__amd_rocclr_copyBuffer", "__amd_rocclr_fillBufferAligned"])
def test_copies_made_by_kernels(name: str) -> None:
    assert classify_kernel(name) == "memcpy"


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::Kernel<cutlass_80_simt_sgemm>(...)",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(...)",
        "void at::native::reduce_kernel<512, 1>(...)",
        "triton_per_fused_step_0",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<...>",
    ],
)
def test_compute(name: str) -> None:
    assert classify_kernel(name) == "compute"


def test_one_name_per_operation() -> None:
    spellings = ("c10d::allreduce_", "gloo:all_reduce", "nccl:all_reduce", "AllReduce", "allreduce")
    assert {operation_name(spelling) for spelling in spellings} == {"all_reduce"}
    assert operation_name("nccl:_all_gather_base") == "all_gather_base"
    assert operation_name("nccl:all_reduce_barrier") == "barrier"
    assert (operation_name("nccl:send 0->1"), operation_name("nccl:recv 1<-0")) == ("send", "recv")
    assert operation_of_kernel("ncclDevKernel_AllGather_RING_LL") == "all_gather"
    assert operation_of_kernel("ncclDevKernel_Generic_1") == "unknown"


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        ("ncclDevKernel_Reduce_Sum_bf16_RING_LL", "reduce"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"),
        ("two_shot_all_reduce_kernel", "all_reduce"),
        ("multimem_all_gather_kernel<16>", "all_gather"),
        ("oneccl_reduce_scatter_small", "reduce_scatter"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<...>", "all_reduce"),
    ],
)
def test_an_operation_is_found_however_a_kernel_spells_it(kernel: str, operation: str) -> None:
    assert operation_of_kernel(kernel) == operation


def test_wrappers_are_no_work() -> None:
    assert is_cpu_work("aten::mm")
    assert is_cpu_work("torchvision::nms")
    for name in (
        "autograd::engine::evaluate_function: MmBackward0",
        "c10d::allreduce_",
        "torch::autograd::AccumulateGrad",
        "AddmmBackward0",
    ):
        assert not is_cpu_work(name)


@pytest.mark.parametrize(("words", "pattern"), [row[1:] for row in COMMUNICATION_NAMES])
def test_every_name_that_a_pattern_finds_has_one_of_its_words(words: tuple[str, ...], pattern: str) -> None:
    # Letters of qualified names only: brackets and blanks end the function's name.
    @given(st.from_regex(re.compile(pattern, re.IGNORECASE), alphabet=ascii_letters + digits + "_:", fullmatch=True))
    def check(name: str) -> None:
        assert any(word in name.lower() for word in words)
        assert classify_kernel(name) == "communication"

    check()

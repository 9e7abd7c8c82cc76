"""Classification of kernels and copies by name."""

from __future__ import annotations

import re
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.operations import operation_name
from rankscope.analysis.trace.classify import (
    COMMUNICATION_NAMES,
    asks_for_communication,
    classify_kernel,
    direction_of,
    function_of,
    is_cpu_work,
    memory_of,
    operation_of_kernel,
)
from rankscope.analysis.trace.kernels import CLASS_NAMES, kernel_class

KERNELS: dict[str, tuple[tuple[str, str], ...]] = {
    "NCCL": (
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_bf16_RING_LL", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("_Z23ncclDevKernel_Generic_124ncclDevKernelArgsStorageILm4096EE", "unknown"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLD_sum_bf16(ncclSymkDevWorkArgs4K)", "reduce_scatter"),
    ),
    "flashinfer": (
        (
            (
                "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::"
                "trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true, false>(flashinfer::"
                "trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)"
            ),
            "all_reduce",
        ),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<(flashinfer::trtllm_allr", "all_reduce"),
        (
            (
                "_ZN10flashinfer23trtllm_allreduce_fusion39allreduce_fusion_kernel_oneshot_lamportILNS0_22AllReduceFusionPatternE"
                "1E13__nv_bfloat16Li8ELb1EEEvNS0_21AllReduceFusionParamsIT0_EE"
            ),
            "all_reduce",
        ),
        ("void flashinfer::trtllm_moe_allreduce_fusion::moereduce_allreduce_fusion_kernel_oneshot_lamport<8>(int)", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<(unsigned char)4, float>(float*)", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<float>(float*)", "all_reduce"),
        ("void flashinfer::comm::pcie_ipc::ipc_rsag_push_param_kernel<8>(int)", "unknown"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)", "all_reduce"),
    ),
    "libraries of other vendors": (
        ("mcclDevKernel_Generic(mcclDevComm*)", "unknown"),
        ("mcclKernel_AllReduce_RING_LL_Sum_float", "all_reduce"),
        ("cnclKernelSendRecv", "send_recv"),
        ("ecclKernel_Broadcast", "broadcast"),
        ("bkcl_all_reduce_kernel", "all_reduce"),
        ("ixcclGenericKernel", "unknown"),
    ),
    "Ascend": (
        ("MoeDistributeDispatchV2", "dispatch"),
        ("MoeDistributeCombine", "combine"),
        ("hcom_allReduce__503_0_1", "all_reduce"),
    ),
    "TransformerEngine userbuffers": (
        ("void userbuffers_fp16_sum_inplace_gpu_rw<8>(int, int, int)", "all_reduce"),
        ("userbuffers_fp16_sum_inplace_gpu_rw_ag", "all_gather"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<4, __nv_fp8_e4m3>(int, int, int)", "reduce_scatter"),
        ("_Z38userbuffers_fp16_sum_inplace_gpu_rr_rsILi8EEvii", "reduce_scatter"),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send"),
        ("kuserbuffers_pushrecv(int, int, int, int, int*, int*, int)", "recv"),
        ("kuserbuffers_pushsendrecv(int*, int*, int4*, int4*, int)", "send_recv"),
    ),
    "TensorRT-LLM": (
        ("void tensorrt_llm::kernels::fusedMoeCommKernel<8>(int)", "unknown"),
        ("void tensorrt_llm::kernels::moe_alltoall::moeA2ADispatchKernel<8, true>(int const*, int)", "dispatch"),
        ("void tensorrt_llm::kernels::moe_alltoall::moeA2ACombineKernel<__nv_bfloat16, 8>(int)", "combine"),
        ("tensorrt_llm::kernels::moeAllToAllKernel(tensorrt_llm::kernels::MoeEpWorldInfo)", "all_to_allv"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 4>(tensorrt_llm::kernels::AllReduceParams)", "all_reduce"),
        ("void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<__half, __nv_fp8_e4m3, 8>(int)", "all_reduce"),
        ("void tensorrt_llm::kernels::reduce_fusion::lamport_style_one_shot_all_reduce_norm_kernel<__half>(int)", "all_reduce"),
    ),
    "aiter": (
        ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(aiter::RankData*) [clone .kd]", "all_reduce"),
        ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*, int)", "reduce_scatter"),
        ("void aiter::allreduce_fusion_kernel_2stage<__hip_bfloat16, 8>(int)", "all_reduce"),
        ("void aiter::allgather_vec<__hip_bfloat16, 8>(int)", "all_gather"),
        ("void aiter::ar_ll_gfx1250<__hip_bfloat16, 8>(int)", "all_reduce"),
    ),
    "MoRI": (
        ("void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16, false>(mori::moe::EpDispatchCombineArgs<int>)", "dispatch"),
        ("EpDispatchIntraNodeKernel_bf16", "dispatch"),
        ("EpCombineInterNodeV1KernelLowLatency_bf16", "combine"),
        ("void mori::collective::OneShotAllReduceKernel<float>(int)", "all_reduce"),
        ("mori_shmem_barrier_all_block", "barrier"),
    ),
    "torch symmetric memory": (
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)", "barrier"),
        ("_ZN4c10d16symmetric_memoryL14barrier_kernelEPPjiiim", "barrier"),
        ("c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "send"),
        ("c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "recv"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)", "all_reduce"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "all_reduce"),
        ("multimem_all_gather_kernel<16>", "all_gather"),
        ("c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)", "all_to_allv"),
        ("c10d::nccl_extension::lsa_put_signal_kernel(void**, void**)", "send"),
    ),
    "DeepEP and its relatives": (
        ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", "dispatch"),
        ("void deep_ep::intranode::combine<__nv_bfloat16>(int4*)", "combine"),
        ("void deep_ep::legacy::internode_ll::dispatch<true, false, 7168>(int4*)", "dispatch"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "notify"),
        ("void deep_ep::elastic::dispatch_impl<true, 4>(int4*)", "dispatch"),
        ("void deep_ep::elastic::hybrid_combine_impl<4>(int4*)", "combine"),
        ("_ZN7deep_ep7elastic13dispatch_implILb1ELi4EEEvP4int4", "dispatch"),
        ("void hybrid_ep::dispatch_kernel<4>(hybrid_ep::dispatch_kernel_param_t<unsigned short>)", "dispatch"),
        ("hybrid_ep::device_sync_kernel(int*)", "barrier"),
        ("void uccl::intranode::combine<__nv_bfloat16>(int4*)", "combine"),
        ("void nccl_ep::internode_ll::dispatch<true>(int4*)", "dispatch"),
        ("void (anonymous namespace)::dispatchKernel<4, true>(int*)", "dispatch"),
        ("kernel_combine_token_intra_node", "combine"),
    ),
    "NVSHMEM": (
        ("nvshmemi_proxy_quiet_entrypoint", "unknown"),
        ("barrier_on_stream_kernel_threadgroup(int)", "barrier"),
        ("void alltoall_on_stream_kernel<char, (threadgroup_t)2>(int, char*, char const*, unsigned long)", "all_to_all"),
        ("void fcollect_on_stream_kernel<char, (threadgroup_t)2>(int, char*)", "all_gather"),
        ("void rdxn_on_stream_kernel<float, (rdxn_ops)3, (threadgroup_t)2>(int, float*)", "all_reduce"),
        ("nvshmemi_signal_wait_until_on_stream_kernel(unsigned long*, int, unsigned long)", "recv"),
    ),
    "others": (
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(int)", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<quickreduce::CodecQ4<4>>(int)", "all_reduce"),
        ("void sglang::all_reduce_1shot_push_kernel<8>(int)", "all_reduce"),
        ("void mscclpp::collective::allreducePacket<float>(float*)", "all_reduce"),
        ("barrier_all_intra_node_atomic_cas_block", "barrier"),
        ("ulysses_a2a_kernel", "all_to_all"),
        ("oneccl_allreduce_small", "all_reduce"),
        ("oneccl_reduce_scatter_small", "reduce_scatter"),
        ("hcom_allReduce__123_0", "all_reduce"),
    ),
}
"""Kernels as traces name them, and their operations, by library."""


@pytest.mark.parametrize("library", KERNELS)
def test_kernels_of_each_library_are_communication(library: str) -> None:
    for name, operation in KERNELS[library]:
        assert (name, classify_kernel(name), operation_of_kernel(name)) == (name, "communication", operation)


@pytest.mark.parametrize(
    "name", ["__amd_rocclr_copyBuffer", "__amd_rocclr_fillBufferAligned", "dma_request", "dma_request 7", "DmaMemcpy"]
)
def test_copy_kernels_are_classified_as_memcpy(name: str) -> None:
    assert classify_kernel(name) == "memcpy"


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::Kernel<cutlass_80_simt_sgemm>(...)",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(...)",
        "void at::native::reduce_kernel<512, 1>(...)",
        "triton_per_fused_step_0",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<...>",
        # Kernels of a compiler have the names of the operators around them.
        "triton_poi_fused__to_copy_all_gather_into_tensor_wait_tensor_3",
        "triton_red_fused_add_all_reduce_0",
        # Local work of libraries that communicate.
        "void deep_ep::legacy::layout::get_dispatch_layout<256, 32, 8>(int*)",
        "void deep_ep::elastic::dispatch_copy_epilogue_impl<4>(int4*)",
        "tensorrt_llm::kernels::moe_alltoall::moeA2APrepareDispatchKernel(int*, int*)",
        "void flashinfer::trtllm_allreduce::reduce_fusion::rms_norm_kernel<int>(flashinfer::trtllm_allreduce::AllReduceParams)",
        "void flashinfer::trtllm_allreduce::lamport_initialize_kernel<float>(float*)",
        "void aiter::local_device_load_rmsnorm<__hip_bfloat16>(int)",
        "void c10d::checkForNaN<float>(float*, unsigned long)",
        "c10d::quantization::_float_to_bfloat16_cuda_kernel(float const*)",
        "mori_cast_float_to_fp4",
        # Words that also mean something within one device.
        "void moe_permute::moe_combine_kernel<float>(float*)",
        "void flash::flash_fwd_splitkv_combine_kernel<128>(float*)",
        "void dispatch_unary<float>(int)",
        "void softmax_warp_forward<float, float, float, 9, false, false>(float*)",
        "void warpAllReduce<float>(float*)",
        "void softmax_block<float, BlockAllReduce<float>>(float*)",
        "void cub::DeviceReduceKernel<cub::DeviceReducePolicy<float>>(float*)",
        "void at::native::(anonymous namespace)::scatter_reduce_kernel<float>(float*)",
        "cooperative_groups::grid_barrier(int)",
        "transpose_shmem_kernel",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas_a2ab",
    ],
)
def test_compute_kernels_are_classified_as_compute(name: str) -> None:
    assert classify_kernel(name) == "compute"


def test_each_operation_has_one_name() -> None:
    spellings = ("c10d::allreduce_", "gloo:all_reduce", "nccl:all_reduce", "AllReduce", "allreduce")
    assert {operation_name(spelling) for spelling in spellings} == {"all_reduce"}
    assert operation_name("nccl:_all_gather_base") == "all_gather_base"
    assert operation_name("nccl:all_reduce_barrier") == "barrier"
    assert (operation_name("nccl:send 0->1"), operation_name("nccl:recv 1<-0")) == ("send", "recv")
    assert {operation_name(spelling) for spelling in ("All2All", "AlltoAll", "alltoall_base_")} == {"all_to_all"}  # NCCL, torch
    assert (operation_name("c10d::Acme_"), operation_name("")) == ("acme", "unknown")
    assert operation_of_kernel("ncclDevKernel_AllGather_RING_LL") == "all_gather"
    assert operation_of_kernel("ncclDevKernel_Generic_1") == "unknown"


def test_kernel_named_by_the_user_is_a_collective() -> None:
    assert operation_of_kernel("void acme::exchange<8>(float*)") == "collective"
    assert operation_of_kernel("acme_ring_reduce") == "collective"
    assert operation_of_kernel("acme_combine") == "combine"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void a::(anonymous namespace)::f<int, b::C<(b::E)1>>(b::D<int>*)", "a::anonymous::f"),
        ("_ZN1a12_GLOBAL__N_11fIiN1b1CEEEvNS1_1DE", "a::anonymous::f"),
        ("_Z1fIiEvi", "f"),
        ("std::enable_if<((4)>(3)), void>::type f<int>(int)", "f"),
        ("void a::f<(a::Pattern)1, a::Cut", "a::f"),
        ("f(int) [clone .kd]", "f"),
        ("f.kd", "f"),
        ("_ZN", "_ZN"),
        ("_Z99999999999999f", "f"),
        ("", ""),
        ("(", "("),
    ],
)
def test_function_name_is_extracted_from_a_kernel_name(name: str, function: str) -> None:
    assert function_of(name) == function


@given(st.text(max_size=60) | st.text(alphabet="_ZN19aL<>(): ", max_size=30))
def test_arbitrary_name_has_a_function_and_a_class(name: str) -> None:
    assert isinstance(function_of(name), str)
    assert classify_kernel(name) in ("compute", "communication", "memcpy")


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("record_param_comms", True),
        ("_C_custom_ar::all_reduce", True),
        ("sglang::inplace_all_reduce", True),
        ("symm_mem::fused_all_gather_matmul", True),
        ("aten::mm", False),
        ("aten::scatter_reduce", False),
        ("triton_poi_fused_all_gather_into_tensor_0", False),
    ],
)
def test_operators_that_request_communication_are_recognised(name: str, asks: bool) -> None:
    assert asks_for_communication(name) == asks


def test_wrappers_are_no_cpu_work() -> None:
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
def test_names_matched_by_a_pattern_contain_one_of_its_words(words: tuple[str, ...], pattern: str) -> None:
    # Letters of qualified names only: brackets and blanks end the function's name.
    @given(st.from_regex(re.compile(pattern, re.IGNORECASE), alphabet=ascii_letters + digits + "_:", fullmatch=True))
    def check(name: str) -> None:
        assert any(word in name.lower() for word in words)
        assert classify_kernel(name) == "communication"

    check()


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
def test_kernels_are_classified_by_name(name: str, expected: str) -> None:
    assert kernel_class(name) == expected


def test_kernel_classes_and_libraries_are_unique() -> None:
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
def test_copies_get_direction_and_memory_from_their_name(name: str, direction: str, memory: str | None) -> None:
    assert (direction_of(name), memory_of(name)) == (direction, memory)

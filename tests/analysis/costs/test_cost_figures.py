"""Figures that advice rests on: data types by names of kernels, sizes and purposes of collectives."""

from __future__ import annotations

import pytest

from rankscope.analysis.collectives.arrivals import records_of
from rankscope.analysis.collectives.figures import Figure, figures_of_collectives
from rankscope.analysis.costs.cost_figures import figures_of_kernels
from rankscope.runs.records import CollectiveRecord, KernelRecord


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("ampere_sgemm_128x64_tn", 1.0),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", 1.0),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", 1.0),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 0.0),
        ("ampere_fp16_s1688gemm_fp16_128x128_sliced1x2_ldg8_f2f_tn", 0.0),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 0.0),
        ("nvjet_hsh_192x192_64x4_2x1_v_bz_TNT", 0.0),
        ("nvjet_sm100_tst_128x256_64x6_2x1_2cta_v_bz_TNT", 0.0),
        ("nvjet_sm100_tss_64x8_64x16_2x4_h_bz_TNT", 0.0),
        ("nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT", 0.0),
        ("nvjet_sst_128x128_32x4_2x1_v_bz_TNT", 1.0),
        ("nvjet_sm100_sss_128x128_32x4_2x1_v_bz_TNT", 1.0),
        ("turing_h1688gemm_128x128_ldg8_tn", 0.0),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x2", 1.0),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32", 0.0),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_MT256x256x64", 0.0),
        ("void at::native::vectorized_elementwise_kernel<4, float>", None),
        ("some_gemm_of_somebody", None),
    ],
)
def test_kernel_names_show_the_float32_share_or_nothing(name: str, share: float | None) -> None:
    figures = figures_of_kernels([KernelRecord(step=0, name=name, kind="compute", total_us=5.0, calls=1)], "windows")
    assert figures == ({} if share is None else {"kernels.float32_share": Figure(share, source="windows")})


def test_collectives_yield_sizes_and_purposes() -> None:
    def reduction(op: str, us: int, size: int) -> CollectiveRecord:
        return CollectiveRecord(
            step=0, group="0", index=0, op=op, bytes=size, enqueue_unix_ns=0, start_unix_ns=0, end_unix_ns=1000 * us
        )

    rows = [reduction("all_gather_base", 30, 100), reduction("reduce_scatter_base", 30, 200), reduction("all_reduce", 40, 300)]
    figures = figures_of_collectives(records_of([(0, rows)]), "windows")
    assert {name: figure.value for name, figure in figures.items() if figure.value} == {
        "exposed.shards": 0.6,
        "exposed.gradients": 0.4,
        "collectives.median_bytes": 200.0,
        "collectives.messages": 3.0,
        "collectives.sharding_share": 0.6,
        "collectives.all_reduce_share": 0.4,
    }


def test_small_reductions_do_not_distort_the_gradient_bucket_size() -> None:
    def reduction(step: int, size: int) -> CollectiveRecord:
        return CollectiveRecord(
            step=step, group="0", index=0, op="all_reduce", bytes=size, enqueue_unix_ns=0, start_unix_ns=0, end_unix_ns=1000
        )

    # Given two ranks that reduce two buckets of 25 MiB a step, and twenty losses
    mib = 1 << 20
    rank = [reduction(step, size) for step in (0, 1) for size in (25 * mib, 25 * mib, *[4] * 20)]
    figures = figures_of_collectives(records_of([(0, rank), (1, rank)]), "windows")
    assert figures["collectives.median_bytes"].value == 25 * mib
    assert figures["collectives.messages"].value == pytest.approx(2, rel=1e-3)
    # And a small model, whose gradients fit into one bucket, cannot send fewer
    small = figures_of_collectives(records_of([(0, [reduction(0, mib // 2), *[reduction(0, 4)] * 20])]), "windows")
    assert small["collectives.messages"].value == pytest.approx(1, rel=1e-3)

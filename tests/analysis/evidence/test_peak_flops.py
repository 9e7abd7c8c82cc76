"""Peak FLOP/s of GPUs: names that are recognised, no guesses for other names, and consistency of the figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.evidence.throughput import GPUS, Dtype, half_precision, peaks_of

DTYPES: tuple[Dtype, ...] = ("fp8", "bf16", "fp16", "tf32", "fp32")
BY_NAME = {row.name: row for row in GPUS}


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA H800", "bf16", 989.4),
        ("NVIDIA H20", "bf16", 148),
        ("NVIDIA H20-3e", "bf16", 148),
        ("NVIDIA GH200 480GB", "bf16", 990),
        ("NVIDIA GH200 144G HBM3e", "bf16", 990),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA GB300", "bf16", 2500),
        ("A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-PG509-200", "bf16", 312),
        ("NVIDIA A100-PCIE-40GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "bf16", 312),
        ("NVIDIA A800-SXM4-80GB", "bf16", 312),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA A30", "bf16", 165),
        ("NVIDIA A40", "bf16", 149.7),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("Tesla T4", "fp16", 65),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-SXM2-32GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("Tesla V100S-PCIE-32GB", "fp16", 130),
        ("AMD Instinct MI355X", "bf16", 2516.6),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI300X VF", "bf16", 1307.4),
        ("AMD Instinct MI325X", "bf16", 1307.4),
        ("AMD Instinct MI300A", "bf16", 980.6),
        ("AMD Instinct MI250X", "bf16", 191.5),
        ("AMD Instinct MI210", "bf16", 181),
        ("AMD Instinct MI100", "bf16", 92.3),
    ],
)
def test_gpu_names_of_torch_are_in_the_table(name: str, dtype: str, tflops: float) -> None:
    result = half_precision(peaks_of(name))
    assert result is not None
    assert result[0] == dtype
    assert result[1] == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "cpu",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # partitions of GPUs
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-40C",
        "NVIDIA A40-48Q",
        "GRID A100-10C",
        "NVIDIA A100-SXM-64GB",  # of chips other than those of the data sheet
        "NVIDIA A100X",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA H800 PCIe",
        "AMD Instinct MI308X",
        "AMD Instinct MI300X HF",
        "AMD Instinct MI250X / MI250",  # ambiguous names
        "NVIDIA H100",
        "NVIDIA RTX A4000",
        "NVIDIA Graphics Device",
        "a rack of NVIDIA H200",
    ],
)
def test_gpu_outside_the_table_has_no_peak(name: str | None) -> None:
    assert peaks_of(name) == {}
    assert half_precision(peaks_of(name)) is None


@given(st.sampled_from([row.name for row in GPUS]), st.text(min_size=1, max_size=8).filter(lambda text: text.strip() != ""))
def test_prefixed_gpu_name_is_not_in_the_table(name: str, text: str) -> None:
    assert peaks_of(f"{text}-{name}") == {}


# SMs or compute units of the GPU, dense FLOP per clock and unit in 16 bits with accumulation in 32, boost clock in MHz, from the
# architectures' white papers: they give the peak independently of the data sheet.
UNITS = {
    "H100 SXM": (132, 4096, 1830),
    "H100 PCIe": (114, 4096, 1620),
    "A100": (108, 2048, 1410),
    "A30": (56, 2048, 1440),
    "A40": (84, 1024, 1740),
    "A10": (72, 1024, 1695),
    "A10G": (80, 512, 1710),
    "RTX A6000": (84, 1024, 1800),
    "RTX 3090": (82, 512, 1695),
    "L40S": (142, 1024, 2520),
    "L40": (142, 512, 2490),
    "L4": (58, 1024, 2040),
    "RTX 4090": (128, 512, 2520),
    "V100S PCIe": (80, 1024, 1597),
    "V100 PCIe": (80, 1024, 1370),
    "V100 SXM": (80, 1024, 1530),
    "T4": (40, 1024, 1590),
    "MI355X": (256, 4096, 2400),
    "MI350X": (256, 4096, 2200),
    "MI325X": (304, 2048, 2100),
    "MI300X": (304, 2048, 2100),
    "MI300A": (228, 2048, 2100),
    "MI250X, one die": (110, 1024, 1700),
    "MI210": (104, 1024, 1700),
    "MI100": (120, 1024, 1502),
}


@pytest.mark.parametrize("name", UNITS)
def test_peak_follows_from_units_and_clock(name: str) -> None:
    units, flop_per_clock, megahertz = UNITS[name]
    assert BY_NAME[name].tflops["fp16"] == pytest.approx(units * flop_per_clock * megahertz / 1e6, rel=0.013)


@pytest.mark.parametrize("name", BY_NAME)
def test_narrower_data_types_are_twice_as_fast(name: str) -> None:
    peaks = BY_NAME[name].tflops
    pairs: tuple[tuple[Dtype, Dtype], ...] = (("tf32", "bf16"), ("bf16", "fp8"))
    for wide, narrow in pairs:
        if wide in peaks and narrow in peaks:
            assert peaks[narrow] == pytest.approx(2 * peaks[wide], rel=0.015)
    assert peaks["fp32"] <= peaks.get("tf32", peaks["fp16"])


def test_every_gpu_has_a_source() -> None:
    assert len(BY_NAME) == len(GPUS)
    for row in GPUS:
        assert row.sheet
        assert row.url.startswith("https://")
        assert all(value > 0 for value in row.tflops.values())


def test_documented_gpu_table_equals_the_code() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "gpus.md").read_text()
    lines = re.findall(r"^\| (?!GPU|---).*\|$", page, re.MULTILINE)
    assert lines == [
        f"| {row.name} | {' | '.join(f'{row.tflops[dtype]:g}' if dtype in row.tflops else '' for dtype in DTYPES)} | "
        f"[{row.sheet}]({row.url}){', halved' if row.halved else ''} |"
        for row in GPUS
    ]

"""Samples, tokens and floating-point operations per second, and model FLOP/s utilisation.

The table ``GPUS`` has peak rates from the makers' data sheets. To add a GPU, add a row. Rates are dense: where a sheet only gives
a rate with structured sparsity, half of it is used. Rates for 8 and 16 bits are those of matrix units that accumulate in 32 bits,
as torch uses them; accumulating in 16 bits, GeForce cards, L40 and A10G would be twice as fast. ``fp32`` is without TF32: the
rate of vector units, or of matrix units for AMD GPUs before MI300. All rates are at the boost clock that the sheet assumes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.evidence.order import of_blocks
from rankscope.analysis.evidence.peers import batch_of
from rankscope.analysis.evidence.step_table.steps import StepTable
from rankscope.analysis.result.costs import Throughput
from rankscope.runs.records import RankInfo

Dtype = Literal["fp8", "bf16", "fp16", "tf32", "fp32"]

_ADA: Final = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_AMPERE: Final = (
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/geforce/ampere/pdf/NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf"
)
_A100: Final = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_A10: Final = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf"
_A10G: Final = "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
_A30: Final = "https://www.nvidia.com/en-us/data-center/products/a30-gpu/"
_A800: Final = (
    "https://tweakers.net/nieuws/203182/nvidia-introduceert-a800-gpu-voor-china-die-niet-onder-exportrestricties-vs-valt.html"
)
_BLACKWELL: Final = "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703"
_HGX: Final = "https://www.nvidia.com/en-us/data-center/hgx/"
_GB300: Final = "https://www.nvidia.com/en-us/data-center/gb300-nvl72/"
_GH200: Final = "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"
_H100: Final = "https://www.nvidia.com/en-us/data-center/h100/"
_H100_PAPER: Final = "https://www.advancedclustering.com/wp-content/uploads/2022/03/gtc22-whitepaper-hopper.pdf"
_H200: Final = "https://www.nvidia.com/en-us/data-center/h200/"
_H20: Final = "https://www.tomshardware.com/pc-components/gpus/new-nvidia-ai-gpus-designed-to-get-around-us-export-bans-come-to-china-h20-l20-and-l2-to-fill-void-left-by-restricted-models"
_H800: Final = "https://arxiv.org/abs/2505.09343"
_L40S: Final = "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413"
_L4: Final = "https://www.nvidia.com/en-us/data-center/l4/"
_T4: Final = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
_V100: Final = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_AMD: Final = "https://www.amd.com/en/products/accelerators/instinct/"


@dataclass(frozen=True, slots=True)
class GpuPeak:
    """Row of the table: a GPU, its peak per data type in TFLOP/s, and the data sheet with these figures."""

    name: str
    pattern: str
    """Pattern of the whole name that torch reports, without the maker's name. A name with a suffix outside the pattern belongs to
    another device or a part of one, such as ``MIG 1g.10gb``, ``-40C`` (a virtual GPU), ``Laptop GPU`` or a customer's variant.
    """
    tflops: dict[Dtype, float]
    sheet: str
    url: str
    halved: bool = False
    """True if the sheet gives the figures with sparsity."""


def _tensor(bf16: float, tf32: float, fp32: float, fp8: float | None = None) -> dict[Dtype, float]:
    """Return the peaks of a GPU whose matrix units process bf16 and fp16 at the same rate."""
    eight: dict[Dtype, float] = {} if fp8 is None else {"fp8": fp8}
    return {**eight, "bf16": bf16, "fp16": bf16, "tf32": tf32, "fp32": fp32}


_H100_SXM: Final = _tensor(989.4, 494.7, 66.9, 1978.9)
_HOPPER_NVL: Final = _tensor(835.5, 417.5, 60, 1670.5)

GPUS: Final[tuple[GpuPeak, ...]] = (
    # A superchip GB200 or GB300 has two GPUs, each of which is a device; system data sheets give the sum over all GPUs.
    GpuPeak("GB300", r"GB300", _tensor(2500, 1250, 80, 5000), "GB300 NVL72, a 72nd", _GB300, halved=True),
    GpuPeak("GB200", r"GB200", _tensor(2500, 1250, 80, 5000), "Blackwell data sheet", _BLACKWELL, halved=True),
    GpuPeak("B300", r"B300( SXM6 AC)?", _tensor(2250, 1125, 75, 4500), "HGX B300, an eighth", _HGX, halved=True),
    GpuPeak("B200", r"B200", _tensor(2250, 1125, 75, 4500), "HGX B200, an eighth", _HGX, halved=True),
    GpuPeak("GH200", r"GH200( \d+GB?( HBM3e?)?)?", _tensor(990, 494, 67, 1979), "GH200 data sheet", _GH200),
    GpuPeak("H200 NVL", r"H200 NVL", _HOPPER_NVL, "H200 data sheet", _H200, halved=True),
    GpuPeak("H200 SXM", r"H200", _H100_SXM, "H200 data sheet", _H200, halved=True),
    GpuPeak("H100 NVL", r"H100 NVL", _HOPPER_NVL, "H100 data sheet", _H100, halved=True),
    GpuPeak("H100 PCIe", r"H100 PCIe", _tensor(756, 378, 51, 1513), "H100 data sheet", _H100, halved=True),
    GpuPeak("H100 SXM", r"H100 80GB HBM3", _H100_SXM, "H100 white paper", _H100_PAPER),
    # NVIDIA publishes no data sheet of the GPUs for China; they are H100 and A100 chips at the same rates or with fewer units.
    GpuPeak("H800 SXM", r"H800", _H100_SXM, "reported: as H100", _H800),
    GpuPeak("H20", r"H20(-3e)?", _tensor(148, 74, 44, 296), "reported", _H20),
    GpuPeak("A800", r"A800(-SXM4?-80GB| 80GB PCIe)", _tensor(312, 156, 19.5), "reported: as A100", _A800),
    GpuPeak(
        "A100", r"A100(-SXM4?-[48]0GB|-PG509-200|-PCIE-[48]0GB| 80GB PCIe)", _tensor(312, 156, 19.5), "A100 data sheet", _A100
    ),
    GpuPeak("A30", r"A30", _tensor(165, 82, 10.3), "A30 data sheet", _A30),
    GpuPeak("A40", r"A40", _tensor(149.7, 74.8, 37.4), "GA102 white paper", _AMPERE),
    GpuPeak("A10", r"A10", _tensor(125, 62.5, 31.2), "A10 data sheet", _A10),
    GpuPeak("A10G", r"A10G", _tensor(70, 35, 35), "A10G data sheet (AWS)", _A10G),
    GpuPeak("RTX A6000", r"RTX A6000", _tensor(154.8, 77.4, 38.7), "GA102 white paper", _AMPERE),
    GpuPeak("L40S", r"L40S", _tensor(362.05, 183, 91.6, 733), "L40S data sheet", _L40S),
    GpuPeak("L40", r"L40", _tensor(181.05, 90.5, 90.5, 362), "Ada white paper", _ADA),
    GpuPeak("L4", r"L4", _tensor(121, 60, 30.3, 242.5), "L4 data sheet", _L4, halved=True),
    GpuPeak("RTX 4090", r"GeForce RTX 4090", _tensor(165.2, 82.6, 82.6, 330.3), "Ada white paper", _ADA),
    GpuPeak("RTX 3090", r"GeForce RTX 3090", _tensor(71, 35.6, 35.6), "GA102 white paper", _AMPERE),
    GpuPeak("V100S PCIe", r"V100S-PCIE-32GB", {"fp16": 130, "fp32": 16.4}, "V100 data sheet", _V100),
    GpuPeak("V100 PCIe", r"V100-PCIE-\d+GB", {"fp16": 112, "fp32": 14}, "V100 data sheet", _V100),
    GpuPeak("V100 SXM", r"V100-SXM[23]-\d+GB", {"fp16": 125, "fp32": 15.7}, "V100 data sheet", _V100),
    GpuPeak("T4", r"T4", {"fp16": 65, "fp32": 8.1}, "T4 data sheet", _T4),
    GpuPeak(
        "MI355X",
        r"MI355X( VF)?",
        {"fp8": 5033.2, "bf16": 2516.6, "fp16": 2516.6, "fp32": 157.3},
        "MI355X specifications",
        _AMD + "mi350/mi355x.html",
    ),
    GpuPeak(
        "MI350X",
        r"MI350X( VF)?",
        {"fp8": 4613.7, "bf16": 2306.9, "fp16": 2306.9, "fp32": 144.2},
        "MI350X specifications",
        _AMD + "mi350/mi350x.html",
    ),
    GpuPeak(
        "MI325X", r"MI325X( VF)?", _tensor(1307.4, 653.7, 163.4, 2614.9), "MI325X specifications", _AMD + "mi300/mi325x.html"
    ),
    GpuPeak(
        "MI300X", r"MI300X( VF)?", _tensor(1307.4, 653.7, 163.4, 2614.9), "MI300X specifications", _AMD + "mi300/mi300x.html"
    ),
    GpuPeak("MI300A", r"MI300A", _tensor(980.6, 490.3, 122.6, 1961.2), "MI300A specifications", _AMD + "mi300/mi300a.html"),
    # torch sees each of the two dies of an MI250X as a device. The name "MI250X / MI250" of the shared PCI id is left out as
    # ambiguous: the dies of these two have 110 and 104 compute units.
    GpuPeak(
        "MI250X, one die",
        r"MI250X",
        {"bf16": 191.5, "fp16": 191.5, "fp32": 47.9},
        "MI250X specifications, half",
        _AMD + "mi200/mi250x.html",
    ),
    GpuPeak("MI210", r"MI210", {"bf16": 181, "fp16": 181, "fp32": 45.3}, "MI210 specifications", _AMD + "mi200/mi210.html"),
    GpuPeak("MI100", r"MI100", {"bf16": 92.3, "fp16": 184.6, "fp32": 46.1}, "MI100 specifications", _AMD + "mi100.html"),
)

_MAKER: Final = r"(?:NVIDIA |Tesla |AMD Instinct )?"


def peaks_of(gpu_name: str | None) -> dict[Dtype, float]:
    """Return the peak FLOP/s per data type of a device by the name that torch reports; empty for an unknown device."""
    name = "" if gpu_name is None else gpu_name.strip()
    row = next((row for row in GPUS if re.fullmatch(f"{_MAKER}(?:{row.pattern})", name, re.IGNORECASE)), None)
    return {} if row is None else {dtype: tflops * 1e12 for dtype, tflops in row.tflops.items()}


def half_precision(peaks: dict[Dtype, float]) -> tuple[Dtype, float] | None:
    """Return the data type that MFU refers to by convention, and its peak: bf16, or fp16 without bf16; ``None`` without both."""
    dtypes: tuple[Dtype, ...] = ("bf16", "fp16")
    return next(((dtype, peaks[dtype]) for dtype in dtypes if dtype in peaks), None)


def throughput_of(
    table: StepTable, keep: NDArray[np.bool_], infos: Mapping[int, RankInfo], world_size: int | None
) -> Throughput | None:
    """Return the rates over the steps where ``keep`` [steps] is true; ``None`` without such steps."""
    records, wall_us = _sums(table, None, keep)
    if not records.any():
        return None
    step_us = float(wall_us.sum() / records.sum())
    if step_us <= 0:
        return None
    has_all_ranks = len(table.ranks) == (world_size or len(table.ranks))
    batches = _batches(table, infos)
    rates = {name: _rate(*_sums(table, name, keep), batches) if has_all_ranks else None for name in ("samples", "tokens")}
    flops, flops_us = _sums(table, "flops", keep)
    rate = float(flops.sum() / flops_us.sum()) * 1e6 if flops_us.sum() > 0 else None
    names = {info.gpu_name for info in infos.values()}
    name = names.pop() if len(names) == 1 else None
    peaks = peaks_of(name)
    quoted = half_precision(peaks)
    ranks = world_size or len(table.ranks)
    return Throughput(
        steps=int(keep.sum()),
        step_us=step_us,
        replicas=len(batches) if has_all_ranks else None,
        samples_per_second=rates["samples"],
        tokens_per_second=rates["tokens"],
        samples_per_second_per_rank=None if rates["samples"] is None else rates["samples"] / ranks,
        tokens_per_second_per_rank=None if rates["tokens"] is None else rates["tokens"] / ranks,
        flops_per_second_per_rank=rate,
        gpu_name=name,
        peak_dtype=None if quoted is None else quoted[0],
        peak_flops=None if quoted is None else quoted[1],
        mfu=None if rate is None or quoted is None else rate / quoted[1],
        mfu_by_dtype={} if rate is None else {dtype: rate / peak for dtype, peak in peaks.items()},
    )


def _batches(table: StepTable, infos: Mapping[int, RankInfo]) -> list[list[int]]:
    """Return the rows of the table, grouped by the batch that their ranks work on."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, rank in enumerate(map(int, table.ranks)):
        groups.setdefault(batch_of(rank, infos.get(rank)), []).append(row)
    return list(groups.values())


def _sums(table: StepTable, name: str | None, keep: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return counts and microseconds of each rank, over the steps that have both; ``name`` ``None`` counts the steps."""
    if name is not None and not table.is_known(name):
        return np.zeros(len(table.ranks)), np.zeros(len(table.ranks))

    def of(steps: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        wall = table.some("wall_us", steps)
        counts = np.ones_like(wall) if name is None else table.some(name, steps)
        both = np.isfinite(counts) & np.isfinite(wall) & keep[steps]
        return counts.sum(axis=1, dtype=np.float64, where=both), wall.sum(axis=1, dtype=np.float64, where=both)

    blocks = of_blocks(table.profiled.shape, of)
    zero = np.zeros(len(table.ranks))
    return sum((counts for counts, _ in blocks), start=zero), sum((us for _, us in blocks), start=zero)


def _rate(counts: NDArray[np.float64], us: NDArray[np.float64], batches: list[list[int]]) -> float | None:
    """Return the job's rate per second; ``None`` if a batch has no known rank.

    Of the ranks that share a batch, the one with the highest rate counts, because some stages do not see the samples.
    """
    total = 0.0
    for rows in batches:
        with_time = [row for row in rows if us[row] > 0]
        if not with_time:
            return None
        total += float((counts[with_time] / us[with_time]).max()) * 1e6
    return total

"""Peak floating-point operations per second of GPUs, dense (without structured sparsity), from their makers' data sheets.

Data sheets that give a figure with sparsity only are halved. ``bf16`` and ``fp16`` with accumulation in 32 bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Dtype = Literal["fp8", "bf16", "fp16", "tf32", "fp32"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One row: which names torch gives the device, its peak per data type in TFLOP/s, and the sheet that says so."""

    pattern: str
    tflops: dict[Dtype, float]
    source: str


def _tensor(bf16: float, tf32: float, fp32: float, fp8: float | None = None) -> dict[Dtype, float]:
    """Of GPUs whose tensor cores take bf16 and fp16 at the same rate."""
    eight: dict[Dtype, float] = {} if fp8 is None else {"fp8": fp8}
    return {**eight, "bf16": bf16, "fp16": bf16, "tf32": tf32, "fp32": fp32}


_H100_SXM: Final = _tensor(989.4, 494.7, 66.9, 1978.9)

GPUS: Final[tuple[Gpu, ...]] = (
    # The first row whose pattern is found in the name wins, so that narrower ones come first.
    Gpu(r"\bMIG\b", {}, "a slice of a GPU: no data sheet"),
    Gpu(r"\bGB200\b", _tensor(2500, 1250, 80, 5000), "NVIDIA GB200 NVL72 data sheet, halved"),
    Gpu(r"\bB200\b", _tensor(2250, 1125, 75, 4500), "NVIDIA HGX B200 data sheet, per GPU, halved"),
    Gpu(r"\bGH200\b", _tensor(990, 494, 67, 1979), "NVIDIA GH200 Grace Hopper data sheet, halved"),
    Gpu(r"\bH200 NVL\b", _tensor(835.5, 417.5, 60, 1671), "NVIDIA H200 data sheet, halved"),
    Gpu(r"\bH200\b", _H100_SXM, "NVIDIA H200 data sheet, halved"),
    Gpu(r"\bH100 NVL\b", _tensor(835.5, 417.5, 60, 1671), "NVIDIA H100 data sheet, halved"),
    Gpu(r"\bH100 PCIe\b", _tensor(756, 378, 51, 1513), "NVIDIA H100 data sheet, halved"),
    Gpu(r"\bH100\b.*HBM3|\bH100-SXM", _H100_SXM, "NVIDIA H100 Tensor Core GPU Architecture white paper"),
    Gpu(r"\bH800\b(?! PCIe)", _H100_SXM, "NVIDIA H800 SXM data sheet, halved"),
    Gpu(r"\bH20\b", _tensor(148, 74, 44, 296), "NVIDIA H20 data sheet"),
    Gpu(r"\bA[18]00\b", _tensor(312, 156, 19.5), "NVIDIA A100 data sheet"),
    Gpu(r"\bA30\b", _tensor(165, 82, 10.3), "NVIDIA A30 data sheet"),
    Gpu(r"\bA40\b", _tensor(149.7, 74.8, 37.4), "NVIDIA A40 data sheet"),
    Gpu(r"\bA10\b", _tensor(125, 62.5, 31.2), "NVIDIA A10 data sheet"),
    Gpu(r"\bRTX A6000\b", _tensor(154.8, 77.4, 38.7), "NVIDIA RTX A6000 data sheet, halved"),
    Gpu(r"\bL40S\b", _tensor(362.05, 183, 91.6, 733), "NVIDIA L40S data sheet"),
    Gpu(r"\bL40\b", _tensor(181.05, 90.5, 90.5, 362), "NVIDIA L40 data sheet"),
    Gpu(r"\bL4\b", _tensor(121, 60, 30.3, 242.5), "NVIDIA L4 data sheet, halved"),
    Gpu(r"\bRTX 4090\b(?! (D|Laptop))", _tensor(165.2, 82.6, 82.6, 330.3), "NVIDIA Ada GPU architecture white paper"),
    Gpu(r"\bRTX 3090\b(?! Ti)", _tensor(71, 35.6, 35.6), "NVIDIA Ampere GA102 GPU architecture white paper"),
    Gpu(r"\bV100S-PCIE", {"fp16": 130, "fp32": 16.4}, "NVIDIA V100S data sheet"),
    Gpu(r"\bV100-PCIE", {"fp16": 112, "fp32": 14}, "NVIDIA V100 data sheet"),
    Gpu(r"\bV100-SXM[23]", {"fp16": 125, "fp32": 15.7}, "NVIDIA V100 data sheet"),
    Gpu(r"\bT4\b", {"fp16": 65, "fp32": 8.1}, "NVIDIA T4 data sheet"),
    Gpu(r"\bMI355X\b", {"fp8": 5033.2, "bf16": 2516.6, "fp16": 2516.6, "fp32": 157.3}, "AMD Instinct MI355X data sheet"),
    Gpu(r"\bMI3(00|25)X\b", _tensor(1307.4, 653.7, 163.4, 2614.9), "AMD Instinct MI300X and MI325X data sheets"),
    Gpu(r"\bMI300A\b", _tensor(980.6, 490.3, 122.6, 1961.2), "AMD Instinct MI300A data sheet"),
    # torch sees each of the two dies of an MI250(X) as a device of its own.
    Gpu(r"\bMI250X\b", {"bf16": 191.5, "fp16": 191.5, "fp32": 47.9}, "AMD Instinct MI250X data sheet, per die"),
    Gpu(r"\bMI210\b", {"bf16": 181, "fp16": 181, "fp32": 45.3}, "AMD Instinct MI210 data sheet"),
    Gpu(r"\bMI100\b", {"bf16": 92.3, "fp16": 184.6, "fp32": 46.1}, "AMD Instinct MI100 data sheet"),
)


def peaks_of(gpu_name: str | None) -> dict[Dtype, float]:
    """Peak FLOP/s per data type of a device by the name that torch gives it; empty where it is not known."""
    row = next((row for row in GPUS if gpu_name is not None and re.search(row.pattern, gpu_name)), None)
    return {} if row is None else {dtype: tflops * 1e12 for dtype, tflops in row.tflops.items()}


def half_precision(peaks: dict[Dtype, float]) -> tuple[Dtype, float] | None:
    """The type that MFU is quoted against by convention: bf16, and fp16 where there is no bf16."""
    dtypes: tuple[Dtype, ...] = ("bf16", "fp16")
    return next(((dtype, peaks[dtype]) for dtype in dtypes if dtype in peaks), None)

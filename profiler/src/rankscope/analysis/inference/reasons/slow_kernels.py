"""Kernels of a rank whose device is slow: all of them take longer, or a few, or it runs others than its peers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rankscope.analysis.causes import ExplainedCause
from rankscope.analysis.evidence.kernels.device_times import DeviceTimes
from rankscope.analysis.evidence.kernels.kernel_ratios import KernelComparison, compare_kernels
from rankscope.analysis.inference.reasons.diagnosis import Diagnosis
from rankscope.analysis.remedies import remedy
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.statistics import middle
from rankscope.base.text import format_duration, one_line, shortened

KERNEL_REMEDY: Final = remedy(
    "kernels_of_rank",
    "Compare what chooses kernels on {ranks} and on the others, and let all choose the same: versions of driver, CUDA, "
    "cuBLAS, cuDNN and Triton; the cache of torch.compile's autotuning (TORCHINDUCTOR_CACHE_DIR); "
    "torch.backends.cudnn.benchmark",
    "Compare what these kernels are given there and elsewhere: shapes, strides, alignment, routing of tokens",
    figure="kernels",
)
"""What to do about ``few_kernels`` and ``other_kernels``."""

_SHOWN: Final = 3
"""Number of kernels shown."""
_NAME: Final = 60
"""Characters shown of a kernel's name."""


def with_kernels(
    diagnosis: Diagnosis, times: Mapping[int, DeviceTimes], ranks: Sequence[int], steps: Collection[int]
) -> Diagnosis:
    """Return ``diagnosis`` with what the worst rank's kernels show, if its device is the cause; else unchanged.

    ``ranks``: those that do the same work. ``steps``: those in which the worst rank was slow.
    """
    worst = diagnosis.ranks[0]
    peers = [rank for rank in ranks if rank not in diagnosis.ranks and rank in times]
    if diagnosis.cause.cause != "compute" or worst not in times or not peers:
        return diagnosis
    comparison = compare_kernels(times, worst, peers, steps)
    if comparison is None:
        return diagnosis
    others = compare_kernels(times, worst, peers, times[worst].own_us.keys() - set(steps))
    elsewhere = _factor_elsewhere(comparison, others)
    rows = _kernel_evidence(comparison)
    if elsewhere is not None:
        detail = "median of these kernels in its other steps"
        rows.append(Evidence(name="kernel_factor_elsewhere", value=elsewhere, unit="ratio", detail=detail))
    cause = _cause_of_kernels(diagnosis.cause, comparison, elsewhere if diagnosis.pattern == "intermittent" else None)
    return replace(diagnosis, cause=cause, evidence=[*diagnosis.evidence, *rows])


def _factor_elsewhere(comparison: KernelComparison, others: KernelComparison | None) -> float | None:
    """Return the median ratio of the kernels that take longer, in the steps in which the rank was not slow."""
    slow = {(kernel.name, kernel.grid) for kernel in comparison.longer}
    ratios = [kernel.ratio for kernel in others.compared if (kernel.name, kernel.grid) in slow] if others is not None else []
    return middle(ratios)


def _kernel_evidence(comparison: KernelComparison) -> list[Evidence]:
    rows = [
        Evidence(
            name="kernel_factor",
            value=comparison.factor,
            unit="ratio",
            detail=f"median of the {len(comparison.longer)} of {len(comparison.compared)} kernels (by name and grid) that take "
            "longer than on its peers, in its slow steps",
        )
    ]
    for kernel in comparison.longer[:_SHOWN]:
        took = f"{format_duration(kernel.median_us)} against {format_duration(kernel.usual_us)}"
        detail = f"{_called(kernel.name)}, grid {shortened(kernel.grid, 40)}: {took}"
        rows.append(Evidence(name="kernel_longer", value=kernel.ratio, unit="ratio", detail=detail))
    rows += [
        Evidence(
            name="kernel_unlike", value=share, unit="ratio", detail=f"of its compute is in {_called(name)}, unlike its peers'"
        )
        for name, share in comparison.unlike[:_SHOWN]
    ]
    return rows


def _cause_of_kernels(cause: ExplainedCause, comparison: KernelComparison, elsewhere: float | None) -> ExplainedCause:
    longer = f"{comparison.factor:.2f} times as long" + (
        "" if elsewhere is None else f" ({elsewhere:.2f} times in its other steps)"
    )
    if comparison.fault == "device":
        wording = f"{len(comparison.longer)} of {len(comparison.compared)} kernels of the same grid take {longer}"
        return replace(cause, wording=f"{cause.wording}: {wording}")
    if comparison.fault == "few_kernels":
        names = _listed(comparison.names)
        takes = "takes" if len(comparison.names) == 1 else "take"
        wording = f"{names} {takes} {longer} as on the others, and its other kernels do not"
        return replace(cause, explained_by="few_kernels", wording=wording)
    if comparison.fault == "other_kernels":
        wording = f"it runs {_listed([name for name, _ in comparison.unlike])}, which the others do not"
        return replace(cause, explained_by="other_kernels", wording=wording)
    return cause


def _listed(names: Sequence[str]) -> str:
    return " and ".join(_called(name) for name in names[:_SHOWN])


def _called(name: str) -> str:
    return shortened(one_line(name.removeprefix("void "), " "), _NAME)

"""The same kernels on a rank and on its peers: how much longer each takes, of those launched with the same grid.

A slow device takes longer for all kernels that its slow part limits: a low clock slows kernels that calculate, slow memory those
that move data. If some kernels that calculate take longer and others of them do not, the device is as fast as the others', and
those kernels are at fault: another algorithm of the same name, other data, or alignment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from rankscope.analysis.evidence.kernels.device_times import MATTERS, DeviceTimes
from rankscope.analysis.statistics import middle
from rankscope.analysis.trace.kernels import kernel_class
from rankscope.analysis.trace.work import KernelTime

_CALCULATES: Final = frozenset({"attention", "convolution", "gemm", "recurrent", "other"})
"""Classes of kernels that are limited by the clock; the others mostly move data. Unknown kernels count to the first."""

LONGER: Final = 0.03
"""Relative excess from which a kernel takes longer than on the peers, at least; half of the mean excess, if that is more."""
_LEAST_SLOW_SHARE: Final = 0.8
"""Share of the time of the kernels that one part of the device limits that must take longer if that part is slow."""
_PART: Final = 0.2
"""Share of the compute that these kernels must have."""
_FEW: Final = 3
"""Largest number of names of kernels that are at fault by themselves."""
_MOST: Final = 0.9
"""Share of the excess that the kernels at fault have together. Short kernels take longer by chance, at no cost."""
_COMPARABLE: Final = 0.5
"""Share of the rank's compute in compared kernels below which nothing is concluded from them."""
_OTHER: Final = 0.1
"""Share of the rank's compute in kernels that the peers do not run from which these are at fault."""


@dataclass(frozen=True, slots=True)
class KernelRatio:
    """Kernel of one name and grid, on a rank and on its peers."""

    name: str
    grid: str
    median_us: float
    usual_us: float
    """Median of the peers' medians."""
    calls: int

    @property
    def ratio(self) -> float:
        """Duration relative to the peers'."""
        return self.median_us / self.usual_us

    @property
    def usual_total_us(self) -> float:
        """Time of all calls, were they as long as the peers'."""
        return self.usual_us * self.calls

    @property
    def excess_us(self) -> float:
        """Time of all calls beyond that."""
        return (self.median_us - self.usual_us) * self.calls


_OTHER_UNIT: Final = 50.0
"""Factor between the lengths of the same kernels from which no device explains it: one of the traces has another unit."""


def in_other_units(kernels: Mapping[int, Sequence[KernelTime]]) -> dict[int, float]:
    """Return the ranks half of whose kernels or more take impossibly longer or shorter than usual, with the factor.

    ``kernels``: those that compute, by rank.
    """
    means = {rank: {(row.name, row.grid): row.total_us / row.calls for row in rows} for rank, rows in kernels.items()}
    of_ranks: dict[tuple[str, str], list[float]] = {}
    for own in means.values():
        for kernel, mean in own.items():
            of_ranks.setdefault(kernel, []).append(mean)
    usual = {kernel: float(np.median(times)) for kernel, times in of_ranks.items() if len(times) > 1}
    factors: dict[int, float] = {}
    for rank, own in means.items():
        ratios = [mean / usual[kernel] for kernel, mean in own.items() if mean and usual.get(kernel)]
        factor = float(np.median(ratios)) if 2 * len(ratios) >= max(1, len(own)) else 1.0
        if not 1 / _OTHER_UNIT < factor < _OTHER_UNIT:
            factors[rank] = factor
    return factors


Fault = Literal["device", "few_kernels", "other_kernels"]


@dataclass(frozen=True, slots=True)
class KernelComparison:
    """Kernels of a rank that matter, compared with its peers'."""

    fault: Fault | None
    """What the ratios show to be slow; ``None``: neither all kernels nor a few."""
    compared: Sequence[KernelRatio]
    longer: Sequence[KernelRatio]
    """Those of ``compared`` that take longer, most excess first."""
    factor: float
    """Median ratio of ``longer``, weighted by time; 1 without any."""
    unlike: Sequence[tuple[str, float]]
    """Kernels that most peers do not run, and the share of the rank's compute that each has, largest first."""

    @property
    def names(self) -> list[str]:
        """Names of the kernels with most of the excess, the largest first."""
        return _costly_names(self.longer)


def compare_kernels(
    times: Mapping[int, DeviceTimes], rank: int, peers: Sequence[int], steps: Collection[int]
) -> KernelComparison | None:
    """Compare the kernels of ``rank`` in ``steps`` with those of its ``peers``; ``None`` where too few are the same."""
    own_kernels = times[rank].kernels
    total = sum(kernel.total_us for kernel in own_kernels)
    kernels_of_peers = [{(kernel.name, kernel.grid): kernel for kernel in times[peer].kernels} for peer in peers]
    names = [{name for name, _ in kernels} for kernels in kernels_of_peers]
    compared: list[KernelRatio] = []
    unlike: dict[str, float] = {}
    for kernel in own_kernels:
        if kernel.total_us < MATTERS * total:
            continue
        if 2 * sum(kernel.name in peer_names for peer_names in names) <= len(peers):
            unlike[kernel.name] = unlike.get(kernel.name, 0.0) + kernel.total_us / total
            continue
        usual = [us for of_peer in kernels_of_peers if (us := _typical(of_peer.get((kernel.name, kernel.grid)), steps))]
        own = _typical(kernel, steps)
        if own and 2 * len(usual) > len(peers):
            compared.append(KernelRatio(kernel.name, kernel.grid, own, float(np.median(usual)), kernel.calls))
    compared_us = sum(kernel.median_us * kernel.calls for kernel in compared)
    different = sorted(unlike.items(), key=lambda pair: -pair[1])
    if not total or compared_us + sum(unlike.values()) * total < _COMPARABLE * total:
        return None
    return _judged(compared, different)


def _judged(compared: Sequence[KernelRatio], unlike: Sequence[tuple[str, float]]) -> KernelComparison:
    usual = sum(kernel.usual_total_us for kernel in compared)
    mean = sum(kernel.excess_us for kernel in compared) / usual if usual else 0.0
    least = 1 + max(LONGER, mean / 2)
    longer = sorted((kernel for kernel in compared if kernel.ratio >= least), key=lambda kernel: -kernel.excess_us)
    fault: Fault | None = None
    if sum(share for _, share in unlike) >= _OTHER and mean < LONGER:
        fault = "other_kernels"
    elif mean >= LONGER and any(_is_slow(part, longer, usual) for part in [*_parts(compared), compared]):
        fault = "device"
    elif mean >= LONGER and len(longer) < len(compared) and len(_costly_names(longer)) <= _FEW:
        fault = "few_kernels"
    return KernelComparison(fault, compared, longer, _weighted_median(longer), unlike)


def _costly_names(longer: Sequence[KernelRatio]) -> list[str]:
    """Return as many names as have ``_MOST`` of the excess of kernels that take longer, the largest first."""
    excess: dict[str, float] = {}
    for kernel in longer:
        excess[kernel.name] = excess.get(kernel.name, 0.0) + kernel.excess_us
    names = sorted(excess, key=lambda name: -excess[name])
    before = np.cumsum([0.0, *(excess[name] for name in names)])[:-1]
    return [name for name, us in zip(names, before, strict=True) if us < _MOST * sum(excess.values())]


def _parts(compared: Sequence[KernelRatio]) -> list[list[KernelRatio]]:
    """Return the kernels that calculate, and those that move data."""
    calculates = [kernel_class(kernel.name) in _CALCULATES for kernel in compared]
    return [
        [kernel for kernel, kind_of_kernel in zip(compared, calculates, strict=True) if kind_of_kernel is kind]
        for kind in (True, False)
    ]


def _is_slow(part: Sequence[KernelRatio], longer: Sequence[KernelRatio], usual_us: float) -> bool:
    """Return whether the kernels of one part take longer, one and all; false for kernels of one name, which do not tell."""
    part_us = sum(kernel.usual_total_us for kernel in part)
    slow = sum(kernel.usual_total_us for kernel in part if kernel in longer)
    return len({kernel.name for kernel in part}) > 1 and part_us >= _PART * usual_us and slow >= _LEAST_SLOW_SHARE * part_us


def _typical(kernel: KernelTime | None, steps: Collection[int]) -> float:
    """Return the median of the kernel's medians in ``steps``; 0 where it did not run in them, or took no time."""
    usual = None if kernel is None else middle(us for step, us in kernel.median_us.items() if step in steps)
    return usual or 0.0


def _weighted_median(kernels: Sequence[KernelRatio]) -> float:
    ordered = sorted(kernels, key=lambda kernel: kernel.ratio)
    weights = np.cumsum([kernel.usual_total_us for kernel in ordered])
    return ordered[int(np.searchsorted(weights, weights[-1] / 2))].ratio if ordered else 1.0

"""Kernels: their classes by patterns of names, the time of each class, and how communication beside them slows them."""

from __future__ import annotations

import functools
import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.result.detail import ClassPart, Contention, NamedKernel, SlowedKernel
from rankscope.analysis.trace.intervals import Spans, by_key, intersect, measure, union
from rankscope.analysis.trace.streams import known

OTHER: Final = "other"
COMMUNICATION_CLASS: Final = "communication"
OPTIMIZER: Final = "optimizer"

KERNEL_CLASSES: Final[tuple[tuple[str, str], ...]] = (
    # (class, case-insensitive pattern of names). The first matching row decides, so special rows precede general ones:
    # a convolution by matrix products is a convolution, a copy by an elementwise kernel is data movement.
    (OPTIMIZER, r"multi_tensor_apply|_foreach_|_fused_(adam|sgd|adagrad)|(adam|adagrad|lamb|lion|muon)(w|_|cuda|kernel|\b)"),
    ("attention", r"attention|attn|flash_?(fwd|bwd|mla|decod)|flash::|fmha|\bmha_|sdpa|paged_?kv"),
    (
        "convolution",
        (
            r"conv(?!ert)|winograd|im2col|col2im|fprop|dgrad|wgrad|bwd_weight|scudnn|cudnn::cnn|nchwToNhwc|nhwcToNchw"
            r"|igemm_(fwd|bwd|wrw)|^miopen(?!.*norm)|batched_transpose_\d|transpose_(nchw2cnhw|cnhw2nchw)"
        ),
    ),
    (
        "gemm",
        (
            r"(?<!fb)gemm|gemv|cublas|cutlass|nvjet|\bCijk_|xmma|splitk|wgmma|triton_tem_|dot_kernel"
            r"|aten::(_?(scaled_|int_|sparse_)?(add)?(mm|bmm|mv)|linear|matmul|baddbmm|einsum|dot|outer)\b"
        ),
    ),
    ("quantisation", r"quantiz|fp8|qparam|per_(token|block|channel|tensor|group)_(cast|quant)|amax_|cast_(transpose|back)"),
    (
        "normalisation",
        (
            r"(batch|layer|group|instance|rms|l2)_?norm|\bbn_|ln_(fwd|bwd)|rowwise_?moments|computeinternalgradients"
            r"|cucomputegrad|gammabeta"
        ),
    ),
    ("softmax and loss", r"softmax|nll_?(loss|criterion)|cross_?entropy|focal_loss|aten::\w+_loss"),
    ("expert routing", r"expert|\bmoe|dispatch_layout|fused_mapping|expand_to_fused"),
    ("sorting and scanning", r"sort|topk|radix|scan|cumsum|histogram|unique|nonzero|compact|bincount|searchsorted"),
    (
        "embedding and indexing",
        (
            r"embedding|lookup|index_?(select|put|add|copy|fill|kernel|elementwise)|_index_|indexing|gather|scatter"
            r"|permute_.*(sparse|pooled|data)|bounds_check|recat|jagged|rope|rotary"
        ),
    ),
    ("random numbers", r"dropout|philox|distribution|bernoulli|curand|random"),
    ("pooling and resampling", r"pool|upsample|interpolat|grid_sampl"),
    ("recurrent", r"lstm|\bgru|_rnn|rnn_"),
    (
        "data movement",
        (
            r"catarray|direct_copy|copy_kernel|copybuffer|transpose|permute|fillfunctor|fillbuffer|memcpy|memset|copy_tensor"
            r"|aten::(copy_|clone|contiguous|cat|stack|fill_|zero_|to|_to_copy|pad|constant_pad|flip|roll|repeat|tile)\b|subtensorop"
        ),
    ),
    (
        "reduction",
        r"reduce|triton_(red|per)_|aten::(sum|mean|amax|amin|max|min|norm|linalg_vector_norm|argmax|all|any|std|var)\b",
    ),
    (
        "elementwise",
        (
            r"elementwise|pointwise|functor|triton_poi_|gelu|silu|swiglu|relu|sigmoid|tanh|binaryop|optensor"
            r"|aten::(r?add|r?sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|clamp|where|threshold|le|lt|ge|gt|eq|ne|masked_fill"
            r"|bitwise_|logical_|isfinite|reciprocal|addc(mul|div)|lerp|sin|cos)"
        ),
    ),
    ("fused by a compiler", r"\btriton_|\bfused_|jiterator|nvfuser|kernel\d+$"),
)
"""Classes and their name patterns; copies by the copy engine and communication are classified elsewhere."""

CLASS_NAMES: Final = tuple(name for name, _ in KERNEL_CLASSES)

_PATTERNS: Final = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in KERNEL_CLASSES)


@functools.lru_cache(maxsize=4096)
def kernel_class(name: str) -> str:
    """Return the class of a compute kernel or CPU operator by its name, ``other`` where no row matches."""
    return next((found for found, pattern in _PATTERNS if pattern.search(name)), OTHER)


LONG: Final = 0.005
"""Smallest share of the window for which an unknown kernel beside the main stream is reported."""

SHOWN: Final = 10


def class_parts(
    labels: list[str],
    label: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    *,
    compute: Spans,
    communication: Spans,
) -> list[ClassPart]:
    """Return one row per class, busiest first; ``label`` indexes ``labels``, one entry per kernel (times in nanoseconds)."""
    parts: list[ClassPart] = []
    for rows in by_key(label):
        name = labels[label[rows[0]]]
        busy = union(start[rows], end[rows])
        against = compute if name == COMMUNICATION_CLASS else communication
        parts.append(
            ClassPart(
                name=name,
                events=len(rows),
                busy_us=measure(busy) / 1000,
                summed_us=int((end[rows] - start[rows]).sum()) / 1000,
                overlapped_us=measure(intersect(busy, against)) / 1000,
            )
        )
    return sorted(parts, key=lambda part: (-part.busy_us, part.name))


def unclassified(
    names: list[str],
    name: NDArray[np.int32],
    stream: NDArray[np.int64],
    *,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    window_ns: int,
) -> list[NamedKernel]:
    """Return the kernels that take at least ``LONG`` of the window, grouped by name and stream, longest first."""
    found: list[NamedKernel] = []
    for rows in by_key(name, stream):
        busy = measure(union(start[rows], end[rows]))
        if busy >= LONG * window_ns:
            found.append(
                NamedKernel(
                    name=names[name[rows[0]]],
                    stream=known(int(stream[rows[0]])),
                    events=len(rows),
                    busy_us=busy / 1000,
                    longest_us=int((end[rows] - start[rows]).max()) / 1000,
                )
            )
    return sorted(found, key=lambda one: -one.busy_us)[:SHOWN]


ENOUGH: Final = 3
"""Smallest number of samples on each side, so that one outlier does not decide the median."""

STEADY: Final = 0.2
"""Largest interquartile range over the median of a kernel alone: beyond it there is no typical time to compare with."""

SHORTEST_NS: Final = 5_000
"""Kernels that take less time alone are left out, because some traces have whole microseconds only."""

_SLOWED: Final = 8


def same_work(
    name: NDArray[np.int32], grid: NDArray[np.int32], device: NDArray[np.int16], stream: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return a number per event (in order of start) that is equal for the same name and grid between the same neighbours.

    Neighbours are the two events before and the two after it on the stream. They stand for the shape, which traces seldom
    record. A matrix product written to use the whole device has one name and one grid for all sizes. The place in the model
    distinguishes these sizes.
    """
    own = _mixed(name.astype(np.int64), grid.astype(np.int64))
    place = own.copy()
    for rows in by_key(device, stream):
        for distance in (1, 2):
            place[rows[distance:]] = _mixed(place[rows[distance:]], own[rows[:-distance]])
            place[rows[:-distance]] = _mixed(place[rows[:-distance]], own[rows[distance:]])
    return place


def _mixed(left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
    # Multiplication by odd numbers overflows on purpose: this scatters the bits.
    return (left * 0x2545F4914F6CDD1D) ^ (right * 0x1B873593CC9E2D51 + 0x165667B19E3779F9)


def contention(
    names: list[str],
    name: NDArray[np.int32],
    work: NDArray[np.int64],
    length: NDArray[np.int64],
    under: NDArray[np.int64],
) -> Contention:
    """Compare compute kernels under communication with those that do the same ``work`` without communication beside them.

    One entry per compute kernel, in nanoseconds: ``length`` is its duration, ``under`` the part of it under communication of its
    device. A kernel is overlapped when ``under`` is at least half of its duration, and alone when it is 0.
    """
    overlapped = (2 * under >= length) & (length > 0)
    alone = (under == 0) & (length > 0)
    rows: list[SlowedKernel] = []
    for group in by_key(name, work):
        beside, by_itself = length[group[overlapped[group]]], length[group[alone[group]]]
        if min(len(beside), len(by_itself)) < ENOUGH:
            continue
        slowed = float(np.median(beside))
        low, usual, high = map(float, np.percentile(by_itself, (25, 50, 75)))
        if usual < SHORTEST_NS or high - low > STEADY * usual:
            continue
        rows.append(
            SlowedKernel(
                name=names[name[group[0]]],
                overlapped=len(beside),
                alone=len(by_itself),
                overlapped_median_us=slowed / 1000,
                alone_median_us=usual / 1000,
                ratio=slowed / usual,
            )
        )
    expected = sum(row.overlapped * row.alone_median_us for row in rows)
    took = sum(row.overlapped * row.overlapped_median_us for row in rows)
    return Contention(
        slowdown=took / expected if rows else None,
        extra_us=took - expected if rows else None,
        compared=sum(row.overlapped for row in rows),
        overlapped=int(overlapped.sum()),
        costliest=sorted(rows, key=lambda row: -abs(row.overlapped * (row.overlapped_median_us - row.alone_median_us)))[:_SLOWED],
    )

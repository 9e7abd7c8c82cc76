"""Classes of kernels and operators, by patterns of their names."""

from __future__ import annotations

import functools
import re
from typing import Final

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

LABELS: Final = [*CLASS_NAMES, OTHER, COMMUNICATION_CLASS]
"""Classes of all events that are work, but for copies."""
NO_LABEL: Final = -1

_PATTERNS: Final = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in KERNEL_CLASSES)


@functools.lru_cache(maxsize=4096)
def kernel_class(name: str) -> str:
    """Return the class of a compute kernel or CPU operator by its name, ``other`` where no row matches."""
    return next((kernel_kind for kernel_kind, pattern in _PATTERNS if pattern.search(name)), OTHER)


LEAST_SHARE: Final = 0.005
"""Smallest share of the window for which an unknown kernel beside the main stream is reported."""

"""How much work a batch is, without knowing what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

_MAX_LEAVES: Final = 64
"""More tensors than this in one batch are not looked at: the measure must stay cheap."""


def measure(batch: object) -> tuple[int | None, int | None]:
    """(samples, elements) of a batch: first dimension of its first tensor, elements of all its tensors.

    ``None`` where there is no tensor.
    """
    samples: int | None = None
    elements: int | None = None
    queue: list[object] = [batch]
    for _ in range(_MAX_LEAVES):
        if not queue:
            break
        item = queue.pop(0)
        if isinstance(item, torch.Tensor):
            if samples is None and item.dim():
                samples = item.shape[0]
            elements = (elements or 0) + item.numel()
        elif isinstance(item, Mapping):
            queue.extend(item.values())
        elif isinstance(item, list | tuple):
            queue.extend(item[:_MAX_LEAVES])
    return samples, elements

"""How much work a batch is, without knowing what is in it."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Final

from torch import Tensor

from rankscope.profiler.rank.guard import raised_by_a_signal_handler

_MAX_LEAVES: Final = 64
"""More tensors than this in one batch are not looked at: the measure must stay cheap."""

# Other mappings may do their work only when asked, as a lazy batch does.
_PLAIN_VALUES: Final = (dict.values, OrderedDict.values)


def measure(batch: object) -> tuple[int | None, int | None]:
    """(samples, elements) of a batch: first dimension of its first tensor, elements of all its tensors.

    ``None`` where there is no tensor, and for a batch that cannot be looked at.
    """
    try:
        return _measure(batch)
    except Exception as error:
        # Somebody's own class: its measure is not known, and no fault of the recorder's.
        if raised_by_a_signal_handler(error):
            raise
        return None, None


def _measure(batch: object) -> tuple[int | None, int | None]:
    if isinstance(batch, Tensor):
        return (batch.size(0) if batch.dim() else None), batch.numel()
    samples: int | None = None
    elements: int | None = None
    queue: list[object] = [batch]
    for item in queue:
        if len(queue) > _MAX_LEAVES:
            del queue[_MAX_LEAVES:]
        if isinstance(item, Tensor):
            if samples is None and item.dim():
                samples = item.size(0)
            elements = (elements or 0) + item.numel()
        elif isinstance(item, list | tuple):
            queue.extend(item[:_MAX_LEAVES])
        elif isinstance(item, dict) and type(item).values in _PLAIN_VALUES:
            queue.extend(item.values())
        elif isinstance(item, UserDict) and isinstance(item.data, dict):
            queue.append(item.data)
    return samples, elements

"""Numbers that the script reports, and the size of its batches."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict
from numbers import Real
from typing import Final

from torch import Tensor

from rankscope.profiler.rank.guard import raised_by_a_signal_handler

_MAX_COUNT: Final = 2**61
_MAX_LEAVES: Final = 64
"""Largest number of items examined in one batch, to keep the measure cheap."""

# Other mappings may compute their values on access, as a lazy batch does.
_PLAIN_VALUES: Final = (dict.values, OrderedDict.values)


def finite(value: object) -> float | None:
    """Return a number; ``None`` for all else, as a tensor, which on a device would have to be waited for."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer that no float can hold
        return None
    return number if math.isfinite(number) else None


def amount(value: object) -> float | None:
    """Return a number that is not negative; ``None`` for all else."""
    number = finite(value)
    return None if number is None or number < 0 else number


def count(value: object) -> int | None:
    """Return a whole number that is not negative; ``None`` for all else."""
    number = amount(value)
    return None if number is None or number >= _MAX_COUNT else int(value)  # type: ignore[call-overload]  # a number


def measure(batch: object) -> tuple[int | None, int | None]:
    """Return (samples, elements) of a batch: first dimension of its first tensor, elements of all its tensors.

    ``None`` where there is no tensor, and for a batch that cannot be examined.
    """
    try:
        return _measure(batch)
    except Exception as error:
        # An error in a custom batch class is not the recorder's: the size is unknown.
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

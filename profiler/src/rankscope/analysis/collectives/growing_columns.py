"""Columns that are filled part by part: numbers, and numbers for names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NONE: Final = -(2**31)
"""In columns of numbers: not recorded."""


class GrowingColumn:
    """Column that grows in place: the parts of thousands of ranks would leave as many holes in memory when they are joined."""

    def __init__(self, dtype: type[Any]) -> None:
        self.dtype = dtype
        self._values: NDArray[Any] = np.empty(0, dtype)
        self._count = 0

    def add(self, values: NDArray[Any]) -> None:
        """Append values."""
        past = self._count + len(values)
        if past > len(self._values):
            self._values.resize(max(past, len(self._values) * 5 // 4), refcheck=False)
        self._values[self._count : past] = values
        self._count = past

    def values(self) -> NDArray[Any]:
        """Return all values; none can be added after that."""
        self._values.resize(self._count, refcheck=False)
        return self._values


class NameNumbers:
    """Numbers for names, in the order in which they appear."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    @property
    def names(self) -> list[Any]:
        """All names, in the order of their numbers."""
        return list(self._numbers)

    def of(self, names: Sequence[str | None]) -> NDArray[np.int32]:
        """Return the numbers of names."""
        for name in dict.fromkeys(names):
            if name is not None:
                self._numbers.setdefault(name, len(self._numbers))
        return np.array([NONE if name is None else self._numbers[name] for name in names], dtype=np.int32)

    def of_lists(self, lists: Sequence[list[int] | None]) -> NDArray[np.int32]:
        """Return numbers for lists by their content; each object is looked at once, as many records share a long list."""
        number = {
            key: self._numbers.setdefault(tuple(members), len(self._numbers)) if members else NONE
            for key, members in {id(members): members for members in lists}.items()
        }
        return np.array([number[id(members)] for members in lists], dtype=np.int32)


def whole_numbers(values: Sequence[int | None], dtype: type[Any]) -> NDArray[Any]:
    """Return numbers of records as a column; ``NONE`` where one is not recorded. Damage beyond the type is cut to its limits."""
    filled = [NONE if value is None else value for value in values] if None in values else values
    try:
        return np.array(filled, dtype=dtype)
    except OverflowError:  # damage
        limits = np.iinfo(dtype)
        return np.array([min(max(value, limits.min), limits.max) for value in filled if value is not None], dtype=dtype)

"""Arrays of the values of events: numbers of names, threads and processes, and numbers that a file may spell as strings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.trace.intervals import distinct
from rankscope.analysis.trace.schema import Number, Time, number, whole_number

_K = TypeVar("_K")
_N = TypeVar("_N", bound=np.generic)
_T = TypeVar("_T")


class Numbering(dict[_K, int]):
    """Numbers of keys, in the order in which they are first seen."""

    def __missing__(self, key: _K) -> int:
        self[key] = number = len(self)
        return number


class NameNumbering(Numbering[str | float | bytes | None]):
    """Numbers of names, which may be of any length; counts their characters."""

    characters = 0

    def __missing__(self, key: str | float | bytes | None) -> int:
        self.characters += len(str(key))
        return super().__missing__(key)


def array_of(values: Sequence[float | str | None], kind: type[_N]) -> NDArray[_N]:
    """Return the values as an array of type ``kind``."""
    # Twice as fast as np.array, which first inspects the type of every value.
    return np.fromiter(values, kind, len(values))


def floats_of(values: list[Time]) -> NDArray[np.float64]:
    """Return the values as floats, NaN where there is none."""
    try:
        return array_of(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        return np.array([number(value) for value in values], dtype=np.float64)


def integers_of(values: list[Number]) -> NDArray[np.int64]:
    """Return the values as integers, -1 where there is none."""
    try:
        numbers = array_of(values, np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([whole_number(value) for value in values], dtype=np.int64)
    return np.where((numbers < -1) | (numbers >= 2**62), -1, numbers)


def args_of(args: Sequence[_T], category: NDArray[np.int8], kinds: NDArray[np.bool_]) -> list[_T]:
    """Return the arguments of the events whose category is in the mask ``kinds``."""
    return list(compress(args, kinds[category].tolist()))


def are_named(names: Sequence[str], name: NDArray[np.int32], wanted: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return which events have a ``wanted`` name, [events]; ``name``: index of each event's name in ``names``."""
    matches = np.zeros(len(names), dtype=bool)
    matches[[number for number in distinct(name) if wanted(names[number])]] = True
    named: NDArray[np.bool_] = matches[name]
    return named


def placed(rows: NDArray[np.bool_], values: NDArray[_N], missing: int) -> NDArray[_N]:
    """Return a column with ``values`` where the mask ``rows`` is true, and ``missing`` elsewhere."""
    column = np.full(len(rows), missing, dtype=values.dtype)
    column[rows] = values
    return column


def nanoseconds(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return times in microseconds as whole nanoseconds."""
    # Whole and fraction separately: 1.7e15 us (Unix time) times 1000 exceeds what a float64 holds exactly.
    whole_us = np.floor(us)
    return whole_us.astype(np.int64) * 1000 + np.rint((us - whole_us) * 1000).astype(np.int64)


class Processes(msgspec.Struct, frozen=True):
    """Processes of a trace, numbered in order of appearance."""

    of_thread: NDArray[np.int64]
    """Process of each thread."""
    ids: list[str]
    names: Mapping[int, str]
    """Names of the processes that have one."""


def processes_of(threads: Iterable[tuple[object, object]], names: Mapping[str, str]) -> Processes:
    """Return the processes of ``threads``, which are pairs of process id and thread id; ``names`` are by process id."""
    numbers: Numbering[str] = Numbering()
    of_thread = np.array([numbers[process_id(pid)] for pid, _ in threads], dtype=np.int64)
    return Processes(
        of_thread=of_thread, names={numbers[pid]: name for pid, name in names.items() if pid in numbers}, ids=list(numbers)
    )


def process_id(pid: object) -> str:
    """Return a process id as text: files spell them as numbers or strings."""
    return str(int(pid)) if isinstance(pid, float) and pid.is_integer() else str(pid)

"""Tables: which NVML call, or which field value, is which series. One row to add one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import create_string_buffer
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Generic, TypeVar

from rankscope.exporter.nvml.asking import Asking, is_lasting, is_trouble
from rankscope.exporter.nvml.one_pass import FieldKey, Pass, PlainTopic
from rankscope.exporter.source import Absent, Labels, Reading

NOW: Final = 0.0
SOMETIMES: Final = 10.0  # what changes slowly, or is slow to ask
RARELY: Final = 60.0  # what does not change while a driver runs, and what the GPU said it does not have


_Row = TypeVar("_Row", "Call", "Field")


@dataclass(frozen=True, slots=True)
class Out:
    """One series: NVML's number times ``times``, divided by ``per``, is in the metric's unit.

    A value beyond ``at_least`` and ``at_most`` is the driver's way of saying that it does not know.
    """

    metric: str
    times: float = 1
    per: float = 1
    at_most: float = float("inf")
    at_least: float = 0
    labels: Labels = ()

    def of(self, raw: float) -> Reading | Absent:
        """The reading that NVML's number is, if it can be."""
        value = raw * self.times / self.per
        if self.at_least <= value <= self.at_most:
            return Reading(self.metric, value, self.labels)
        return Absent(self.metric, "implausible", self.labels)


def _as_they_are(*numbers: float) -> Sequence[float]:
    return numbers


@dataclass(frozen=True, slots=True)
class Call:
    """One function of the library about the GPU, and the series that its numbers are, in order.

    ``args`` follow the GPU's handle, then pointers to what ``formats`` describe as ``struct`` does; ``numbers`` makes a number
    per series of that. ``initial`` is what is there before the call. ``before`` is the function's name in older drivers.
    """

    name: str
    outs: tuple[Out, ...]
    args: tuple[int, ...] = ()
    formats: tuple[str, ...] = ("I",)
    numbers: Callable[..., Sequence[float]] = _as_they_are
    every_s: float = NOW
    before: str = ""
    initial: bytes = b""

    def outcome(self, said: Sequence[float] | str) -> list[Reading | Absent]:
        """What comes of the numbers in memory after the call, or of the reason why there are none."""
        if isinstance(said, str):
            return [Absent(out.metric, said, out.labels) for out in self.outs]
        return [out.of(number) for out, number in zip(self.outs, self.numbers(*said), strict=True)]


@dataclass(frozen=True, slots=True)
class Field:
    """One field value and its series; ``unless`` is a field above it that makes it superfluous where that one has a value."""

    number: int
    out: Out
    every_s: float = NOW
    unless: int = 0

    def outcome(self, said: float | str) -> list[Reading | Absent]:
        """What comes of the value, or of the reason why there is none."""
        return [Absent(self.out.metric, said, self.out.labels) if isinstance(said, str) else self.out.of(said)]


class _Asked(Generic[_Row]):
    """A row with what the driver said last and what came of it, kept until it is due again.

    Most of what a driver says is what it said before: nothing new is made of that.
    """

    __slots__ = ("_pause_s", "_said", "absent", "due_s", "readings", "row")

    def __init__(self, row: _Row) -> None:
        self.row: _Row = row
        self.due_s = float("-inf")
        self._said: object = None
        self._pause_s = NOW
        self.readings: Sequence[Reading] = ()
        self.absent: Sequence[Absent] = ()

    def learn(self, said: Any, now_s: float) -> None:
        """Keep this until it is due again; what the GPU does not know is asked rarely, what went wrong at once."""
        if said != self._said:
            self._said = said
            outcome = self.row.outcome(said)
            self.readings = [one for one in outcome if isinstance(one, Reading)]
            self.absent = [one for one in outcome if isinstance(one, Absent)]
            self._pause_s = self._again_after_s() if self.absent else self.row.every_s
        self.due_s = now_s + self._pause_s

    def _again_after_s(self) -> float:
        if not self.readings and all(is_lasting(one.reason) for one in self.absent):
            return RARELY
        return NOW if any(is_trouble(one.reason) for one in self.absent) else self.row.every_s

    def tell(self, at: Pass) -> None:
        """Give the outcome, new or kept."""
        at.readings += self.readings
        for one in self.absent:
            at.lack(one.metric, one.reason, one.labels)


class Rows(PlainTopic):
    """A ``Topic`` made of rows of the tables."""

    def __init__(self, calls: Sequence[Call] = (), fields: Sequence[Field] = ()) -> None:
        self._calls = [(Prepared(call), _Asked(call)) for call in calls]
        self._fields = [_Asked(field) for field in fields]
        self._known: set[int] = set()
        self.has_fields = bool(fields)

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """Those of its fields that are due and not superfluous."""
        return [(one.row.number, 0) for one in self._fields if one.due_s <= now_s and one.row.unless not in self._known]

    def collect(self, at: Pass) -> None:
        """Ask the calls that are due, and tell all outcomes, the kept ones too."""
        for prepared, call in self._calls:
            if call.due_s <= at.now_s:
                call.learn(prepared.ask(at.ask), at.now_s)
            call.tell(at)
        for field in self._fields:
            row = field.row
            raw = at.fields.get((row.number, 0))
            if raw is not None:
                field.learn(raw, at.now_s)
            if field.readings:
                self._known.add(row.number)
            if row.unless not in self._known:
                field.tell(at)


class Prepared:
    """A call with the memory for its answer, made once."""

    __slots__ = ("_args", "_call", "_memories")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._memories = []
        for letters in call.formats:
            layout = Struct(f"@{letters}")
            self._memories.append((layout.unpack_from, create_string_buffer(call.initial, layout.size)))
        self._args = (*call.args, *(memory for _, memory in self._memories))

    def ask(self, ask: Asking) -> Sequence[float] | str:
        """Call it: all numbers that are in memory then, or the reason why there are none; may raise ``SourceError``."""
        call = self._call
        code = ask.call(call.name, ask.handle, *self._args)
        if code == ask.nvml.NVML_ERROR_FUNCTION_NOT_FOUND and call.before:
            code = ask.call(call.before, ask.handle, *self._args)
        if code:
            return ask.reason_of(code)
        unpack, memory = self._memories[0]
        said: tuple[float, ...] = unpack(memory)
        for unpack, memory in self._memories[1:]:
            said += unpack(memory)
        return said

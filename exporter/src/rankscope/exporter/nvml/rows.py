"""Table rows that map an NVML call or field value to series. A new series needs one row in ``tables``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import create_string_buffer
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Generic, TypeVar

from rankscope.exporter.nvml.calls import IMPLAUSIBLE, NvmlCalls, is_fault, is_lasting, without_all_ones
from rankscope.exporter.nvml.sample_pass import FieldKey, SamplePass, Topic
from rankscope.exporter.source import Absent, Labels, Reading

EVERY_PASS_S: Final = 0.0
EVERY_10_S: Final = 10.0  # values that change slowly or take long to read
EVERY_60_S: Final = 60.0  # values that are constant while a driver runs, and metrics the GPU does not support


_Row = TypeVar("_Row", "CallRow", "FieldRow")


@dataclass(frozen=True, slots=True)
class OutputSeries:
    """One series: NVML's number times ``times``, divided by ``per``, is in the metric's unit.

    A value below ``at_least`` or above ``at_most``, or NaN, is absent as ``implausible``: drivers return such numbers for unknown
    values.
    """

    metric: str
    times: float = 1
    per: float = 1
    at_most: float = float("inf")
    at_least: float = 0
    labels: Labels = ()

    def of(self, raw: float) -> Reading | Absent:
        """Convert NVML's number to a reading, or to ``Absent`` if it is implausible."""
        value = raw * self.times / self.per
        if self.at_least <= value <= self.at_most:
            return Reading(self.metric, value, self.labels)
        return Absent(self.metric, IMPLAUSIBLE, self.labels)


def _as_they_are(*numbers: float) -> Sequence[float]:
    return numbers


@dataclass(frozen=True, slots=True)
class CallRow:
    """One NVML function of the GPU, and the series of its results, in order.

    Attributes:
        args: arguments between the GPU's handle and the output pointers.
        formats: layout of each output, as in ``struct``.
        numbers: converts the unpacked outputs to one number per series.
        every_s: minimum seconds between two calls.
        before: the function's name in older drivers.
        initial: content of the output memory before the call, such as a structure's version.
    """

    name: str
    outputs: tuple[OutputSeries, ...]
    args: tuple[int, ...] = ()
    formats: tuple[str, ...] = ("I",)
    numbers: Callable[..., Sequence[float]] = _as_they_are
    every_s: float = EVERY_PASS_S
    before: str = ""
    initial: bytes = b""

    def outcome(self, result: Sequence[float] | str) -> list[Reading | Absent]:
        """Convert the outputs of the call, or the reason why it failed, to readings and absences."""
        if isinstance(result, str):
            return [Absent(output_series.metric, result, output_series.labels) for output_series in self.outputs]
        return [output_series.of(number) for output_series, number in zip(self.outputs, self.numbers(*result), strict=True)]


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field value and its series. It is skipped if the earlier field ``unless`` has a value on this GPU."""

    number: int
    output: OutputSeries
    every_s: float = EVERY_PASS_S
    unless: int = 0

    def outcome(self, result: float | str) -> list[Reading | Absent]:
        """Convert the value, or the reason why there is none, to a reading or an absence."""
        return [Absent(self.output.metric, result, self.output.labels) if isinstance(result, str) else self.output.of(result)]


class _CachedRow(Generic[_Row]):
    """A row with its last raw result and the readings made from it, kept until the row is due again.

    Most results equal the previous one; their readings are reused.
    """

    __slots__ = ("_pause_s", "_result", "absent", "due_s", "readings", "row")

    def __init__(self, row: _Row) -> None:
        self.row: _Row = row
        self.due_s = float("-inf")
        self._result: object = None
        self._pause_s = EVERY_PASS_S
        self.readings: Sequence[Reading] = ()
        self.absent: Sequence[Absent] = ()

    def store(self, result: Any, now_s: float) -> None:
        """Store a result. An unsupported row is due again after a minute, a faulty one in the next pass."""
        if result != self._result:
            self._result = result
            outcome = self.row.outcome(result)
            self.readings = [entry for entry in outcome if isinstance(entry, Reading)]
            self.absent = [entry for entry in outcome if isinstance(entry, Absent)]
            self._pause_s = self._again_after_s() if self.absent else self.row.every_s
        self.due_s = now_s + self._pause_s

    def _again_after_s(self) -> float:
        if not self.readings and all(is_lasting(absent.reason) for absent in self.absent):
            return EVERY_60_S
        return EVERY_PASS_S if any(is_fault(absent.reason) for absent in self.absent) else self.row.every_s

    def emit(self, sample_pass: SamplePass) -> None:
        """Add the stored readings and absences to the pass."""
        sample_pass.readings += self.readings
        for absent in self.absent:
            sample_pass.mark_absent(absent.metric, absent.reason, absent.labels)


class RowsTopic(Topic):
    """``Topic`` of rows of the tables."""

    def __init__(self, calls: Sequence[CallRow] = (), fields: Sequence[FieldRow] = ()) -> None:
        self._calls = [(PreparedCall(call), _CachedRow(call)) for call in calls]
        self._fields = [_CachedRow(field) for field in fields]
        self._read_fields: set[int] = set()
        self.has_fields = bool(fields)

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """Return the fields that are due and not replaced by another one (``FieldRow.unless``)."""
        return [
            (field.row.number, 0) for field in self._fields if field.due_s <= now_s and field.row.unless not in self._read_fields
        ]

    def collect(self, sample_pass: SamplePass) -> None:
        """Make the calls that are due, and emit all results, including stored ones."""
        for prepared, call in self._calls:
            if call.due_s <= sample_pass.now_s:
                call.store(prepared.read(sample_pass.nvml), sample_pass.now_s)
            call.emit(sample_pass)
        for field in self._fields:
            row = field.row
            raw = sample_pass.fields.get((row.number, 0))
            if raw is not None:
                field.store(raw, sample_pass.now_s)
            if field.readings:
                self._read_fields.add(row.number)
            if row.unless not in self._read_fields:
                field.emit(sample_pass)


class PreparedCall:
    """A call with preallocated output memory."""

    __slots__ = ("_args", "_call", "_memories")

    def __init__(self, call: CallRow) -> None:
        self._call = call
        self._memories = []
        for letters in call.formats:
            layout = Struct(f"@{letters}")
            self._memories.append((layout.unpack_from, create_string_buffer(call.initial, layout.size)))
        self._args = (*call.args, *(memory for _, memory in self._memories))

    def read(self, nvml: NvmlCalls) -> Sequence[float] | str:
        """Make the call; return the unpacked outputs, NaN for those with all bits set, or the reason why it failed.

        Raises ``SourceError``.
        """
        call = self._call
        code = nvml.call(call.name, nvml.handle, *self._args)
        if code == nvml.binding.NVML_ERROR_FUNCTION_NOT_FOUND and call.before:
            code = nvml.call(call.before, nvml.handle, *self._args)
        if code:
            return nvml.reason_of(code)
        unpack, memory = self._memories[0]
        result: tuple[float, ...] = unpack(memory)
        for unpack, memory in self._memories[1:]:
            result += unpack(memory)
        return without_all_ones(result)

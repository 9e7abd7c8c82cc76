"""What one pass over one GPU gathers, and the parts it consists of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rankscope.exporter.nvml.asking import Asking, is_trouble
from rankscope.exporter.source import Absent, GpuProcess, Labels, MigDevice, Reading, XidEvent

FieldKey = tuple[int, int]


class Pass:
    """One pass: ``ask`` makes the calls, the rest is what came of them.

    ``uuid`` is the GPU's, ``now_s`` the monotonic time of its beginning. ``fields`` are the values of the one batch of
    field values, or the reason why a field has none. ``mig_enabled``: this pass found the GPU divided. ``trouble`` is the first
    thing that went wrong in the collector at hand.
    """

    def __init__(self, ask: Asking, uuid: str, now_s: float) -> None:
        self.ask = ask
        self.uuid = uuid
        self.now_s = now_s
        self.fields: dict[FieldKey, float | str] = {}
        self.readings: list[Reading] = []
        self.absent: list[Absent] = []
        self.processes: list[GpuProcess] | None = None
        self.processes_s: float | None = None
        self.mig_devices: list[MigDevice] = []
        self.xids: list[XidEvent] = []
        self.mig_enabled = False
        self.trouble: str | None = None

    def give(self, metric: str, value: float, labels: Labels = (), uuid: str = "") -> None:
        """A value, in the metric's unit."""
        self.readings.append(Reading(metric, float(value), labels, uuid))

    def lack(self, metric: str, reason: str, labels: Labels = ()) -> None:
        """No value, and why."""
        self.absent.append(Absent(metric, reason, labels))
        if self.trouble is None and is_trouble(reason):
            self.trouble = f"{metric}: {reason}"


class Topic(Protocol):
    """A part of a collector: tells which field values it wants from the batch of this pass, then gives its readings.

    ``metrics`` are those it is responsible for: absent when it raises. ``has_fields`` and ``has_parts`` say whether ``wants`` and
    ``part`` are worth a call.
    """

    has_fields: bool
    has_parts: bool

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the catalogue."""
        ...

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """Field ids with their scope; asked together with everybody's."""
        ...

    def collect(self, at: Pass) -> None:
        """Give readings; may raise ``nvml.NVMLError``, or ``SourceError`` when nothing more can be asked."""
        ...

    def part(self, ask: Asking) -> None:
        """Between two passes; may raise as ``collect``."""
        ...

    def close(self, ask: Asking) -> None:
        """Free what is held."""
        ...


class PlainTopic:
    """What most topics do not need of the above."""

    metrics: Sequence[str] = ()
    has_fields = False
    has_parts = False

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """No field values."""
        del now_s
        return ()

    def part(self, ask: Asking) -> None:
        """Nothing happens between passes."""

    def close(self, ask: Asking) -> None:
        """Nothing is held."""

"""Results of one pass over one GPU, and the protocol of the topics that produce them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from rankscope.exporter.nvml.calls import IMPLAUSIBLE, NvmlCalls, is_fault
from rankscope.exporter.source import Absent, GpuProcess, Labels, MigDevice, Reading, XidEvent

FieldKey = tuple[int, int]


class SamplePass:
    """One pass over a GPU: ``nvml`` makes the NVML calls, the other attributes collect the results.

    Attributes:
        uuid: the GPU's uuid.
        now_s: monotonic time of the start of the pass.
        fields: values of the batch of field values, or the reason why a field has none.
        mig_enabled: MIG is enabled.
        fault: first fault in the current collector; None if there is none.
    """

    def __init__(self, nvml: NvmlCalls, uuid: str, now_s: float) -> None:
        self.nvml = nvml
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
        self.fault: str | None = None

    def emit(self, metric: str, value: float, labels: Labels = (), uuid: str = "") -> None:
        """Add a reading; ``value`` is in the metric's unit. NaN and infinity are absent as ``implausible``."""
        if isfinite(value):
            self.readings.append(Reading(metric, float(value), labels, uuid))
        else:
            self.mark_absent(metric, IMPLAUSIBLE, labels)

    def add(self, outcomes: Iterable[Reading | Absent]) -> None:
        """Add readings, whose values are finite, and absent metrics."""
        for outcome in outcomes:
            if isinstance(outcome, Reading):
                self.readings.append(outcome)
            else:
                self.mark_absent(outcome.metric, outcome.reason, outcome.labels)

    def mark_absent(self, metric: str, reason: str, labels: Labels = ()) -> None:
        """Mark a metric as absent, with the reason."""
        self.absent.append(Absent(metric, reason, labels))
        if self.fault is None and is_fault(reason):
            self.fault = f"{metric}: {reason}"


class Topic:
    """Part of a collector: requests field values for the pass's batch (``wants``), then emits its readings (``collect``).

    If it raises, its ``metrics`` (names of the catalogue) are absent. ``wants`` is called only with ``has_fields``,
    ``sample_activity`` only with ``has_activity``.
    """

    metrics: Sequence[str] = ()
    has_fields = False
    has_activity = False

    def wants(self, now_s: float) -> Sequence[FieldKey]:
        """Return field ids with their scope, to be read in one call with those of all topics."""
        raise NotImplementedError

    def collect(self, sample_pass: SamplePass) -> None:
        """Emit readings; raises ``NVMLError``, or ``SourceError`` if the GPU or the driver is lost."""
        raise NotImplementedError

    def sample_activity(self, nvml: NvmlCalls) -> None:
        """Take a measurement between two passes; raises as ``collect``."""
        raise NotImplementedError

    def close(self, nvml: NvmlCalls) -> None:
        """Free NVML objects."""


class SlowTopic(Topic):
    """Topic that is read every ``every_s`` seconds only; each pass has its last outcomes."""

    every_s: float

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._outcomes: Sequence[Reading | Absent] = ()

    def read(self, sample_pass: SamplePass) -> Iterable[Reading | Absent]:
        """Return readings and absent metrics; raises as ``collect``."""
        raise NotImplementedError

    def collect(self, sample_pass: SamplePass) -> None:
        """Add the outcomes, read again if they are due."""
        if self._due_s <= sample_pass.now_s:
            self._outcomes = tuple(self.read(sample_pass))
            self._due_s = sample_pass.now_s + self.every_s
        sample_pass.add(self._outcomes)

"""Data of one run, read on first access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from rankscope.dashboards.data.source import RunSource, RunSummary, StepMatrices

if TYPE_CHECKING:
    from rankscope.analysis.result.analysis import Analysis
    from rankscope.dashboards.data.events import HardwareEvents
    from rankscope.dashboards.data.hardware import Hardware
    from rankscope.dashboards.data.script import Script
    from rankscope.dashboards.data.topology import Topology
    from rankscope.dashboards.data.trend import Trend
    from rankscope.dashboards.delays.data import Delays

T = TypeVar("T")


class _DerivedPart(Generic[T]):
    """Part of the derived data, which the source has under the name of the attribute."""

    def __set_name__(self, owner: type[RunData], name: str) -> None:
        self._name = name

    def __get__(self, run: RunData, owner: type[RunData]) -> T:
        part: T = run.source.part(run.summary.run_id, self._name)
        run.__dict__[self._name] = part  # found before this descriptor from now on
        return part


def _once(read: Callable[[Any, str], T]) -> cached_property[T]:
    """Return a property that calls the method ``read`` of the run's source once."""

    def call(run: RunData) -> T:
        value: T = getattr(run.source, read.__name__)(run.summary.run_id)
        return value

    return cached_property(call)


@dataclass(frozen=True)
class RunData:
    """One run of a source. Each attribute is read once.

    Any attribute may raise ``RankscopeError``, and ``NotReadyError`` while its data are being computed.
    """

    source: RunSource
    summary: RunSummary
    perfetto_url: str | None = None
    """Perfetto in which pages open windows of the run; ``None`` if they do not."""
    may_capture: bool = False
    """True if visitors may request captures: only with a token."""

    analysis: ClassVar[_DerivedPart[Analysis]] = _DerivedPart()
    """Verdict and its evidence."""
    delays: ClassVar[_DerivedPart[Delays]] = _DerivedPart()
    """Imposed wait by origin, victim and cause."""
    steps: ClassVar[_DerivedPart[StepMatrices]] = _DerivedPart()
    """Values per rank and step."""
    trend: ClassVar[_DerivedPart[Trend]] = _DerivedPart()
    """All ranks together, step by step."""
    script: ClassVar[_DerivedPart[Script]] = _DerivedPart()
    """Metrics and tags that the script reported."""
    topology: ClassVar[_DerivedPart[Topology]] = _DerivedPart()
    hardware: ClassVar[_DerivedPart[Hardware]] = _DerivedPart()
    """GPUs of the run's hosts and their samples; if there are none, empty with the reason."""
    events: ClassVar[_DerivedPart[HardwareEvents]] = _DerivedPart()
    """Events of these GPUs."""

    stale = _once(RunSource.stale)
    whatif = _once(RunSource.whatif)
    combinations = _once(RunSource.combinations)
    alerts = _once(RunSource.alerts)

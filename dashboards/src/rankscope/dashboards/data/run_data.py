"""Data of one run, read on first access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from rankscope.dashboards.data.source import RunSource, RunSummary

Part = TypeVar("Part")


def _once(read: Callable[[Any, str], Part]) -> cached_property[Part]:
    """Return a property that calls the method ``read`` of the run's source once."""

    def part(run: RunData) -> Part:
        found: Part = getattr(run.source, read.__name__)(run.summary.run_id)
        return found

    return cached_property(part)


@dataclass(frozen=True)
class RunData:
    """One run of a source. Each part is read once: see the methods of ``RunSource``.

    Any attribute may raise ``RankscopeError``, and ``NotReadyError`` while its data are being computed.
    """

    source: RunSource
    summary: RunSummary
    perfetto_url: str | None = None
    """Perfetto in which pages open windows of the run; ``None`` if they do not."""
    may_capture: bool = False
    """True if visitors may request captures: only with a token."""

    stale = _once(RunSource.stale)
    analysis = _once(RunSource.analysis)
    blame = _once(RunSource.blame)
    scenarios = _once(RunSource.scenarios)
    steps = _once(RunSource.steps)
    topology = _once(RunSource.topology)
    hardware = _once(RunSource.hardware)
    events = _once(RunSource.events)
    alerts = _once(RunSource.alerts)
    trend = _once(RunSource.trend)
    script = _once(RunSource.script)

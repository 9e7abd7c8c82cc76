"""Details of a trace file, for tests."""

from __future__ import annotations

from pathlib import Path

from rankscope.analysis.collectives.windows import reduce_file, step_breakdowns
from rankscope.analysis.result.detail import RankDetail, WindowDetail
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.detail import detail_of
from rankscope.analysis.trace.work import work_events


def details(path: Path) -> RankDetail:
    trace = read_trace(path)
    events = work_events(trace)
    return detail_of(trace, events, reduce_file(trace, events).breakdowns[0], step_breakdowns(trace, events))


def idle(found: WindowDetail) -> tuple[float, float, float, float]:
    assert found.launch is not None
    part = found.launch
    return (part.idle_queued_us, part.idle_launching_us, part.idle_starved_us, part.idle_unknown_us)

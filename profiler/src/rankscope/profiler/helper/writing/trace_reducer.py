"""Thread of the helper that reduces profiled windows to records: seconds of work that must not delay reading the ring."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.errors import InputError
from rankscope.profiler.handover import ProfiledWindow
from rankscope.profiler.helper.writing.no_activity import reason_without_activity
from rankscope.profiler.helper.writing.trace_retention import TraceRetention
from rankscope.profiler.scratch import remove_trace
from rankscope.runs.records import DeviceKind, StepBreakdown

MAX_WAITING: Final = 2
"""Largest number of traces that wait in local memory while another is reduced: each is tens of megabytes."""
_UNFINISHED: Final = ".unfinished"
"""End of the name of a file in the scratch folder, with the path of a trace that is not reduced yet."""

Judge = Callable[[ProfiledWindow, Sequence[StepBreakdown]], Sequence[StepBreakdown]]
"""Function that fills in ``looked_wrong``."""


@dataclass(frozen=True, slots=True)
class ReducedWindow:
    """Result of a window: its records, or the reason why there are none."""

    reason: str | None = None
    breakdowns: Sequence[StepBreakdown] = ()
    collectives: Sequence[msgspec.Struct] = ()
    kernels: Sequence[msgspec.Struct] = ()

    @property
    def looked_wrong(self) -> bool:
        """True if the trace itself is worth keeping: the window has no records, or something looked wrong in a step."""
        return self.reason is not None or any(row.looked_wrong for row in self.breakdowns)


class TraceReducer:
    """Worker that reduces the traces in ``scratch`` one after the other; ``retention`` then keeps or removes them.

    ``judge`` determines on this thread what looked wrong in a window. ``device_kind``: the device that the rank trains on.
    """

    def __init__(
        self, scratch: Path, retention: TraceRetention, *, judge: Judge | None = None, device_kind: DeviceKind = "cpu"
    ) -> None:
        self._scratch = scratch
        self._retention = retention
        self._judge = judge
        self._device_kind = device_kind
        self._windows: queue.SimpleQueue[ProfiledWindow | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[ReducedWindow] = queue.SimpleQueue()
        self._added = self._reduced = 0
        self._thread = threading.Thread(target=self._work, name="trace reducer", daemon=True)
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove the traces that a killed predecessor of this helper had: reducing one may be what took too much memory."""
        for note in self._scratch.glob(f"*{_UNFINISHED}"):
            with suppress(OSError):
                remove_trace(Path(note.read_text()), self._scratch)
                note.unlink()
                self._done.put(ReducedWindow("the helper was killed before its trace was reduced"))

    def add(self, window: ProfiledWindow) -> None:
        """Queue the trace of a window. It is dropped if too many wait, because they fill local memory that training needs."""
        if self._windows.qsize() >= MAX_WAITING:
            remove_trace(Path(window.path), self._scratch)
            self._done.put(ReducedWindow(f"{MAX_WAITING} traces before it still wait to be reduced"))
            return
        if self._thread.ident is None:
            self._thread.start()
        self._added += 1
        with suppress(OSError):
            self._note_of(Path(window.path)).write_text(window.path)
        self._windows.put(window)

    def results(self) -> list[ReducedWindow]:
        """Return the results since the last call."""
        reduced = []
        while not self._done.empty():
            reduced.append(self._done.get())
        return reduced

    def finish(self, seconds: float) -> int:
        """Wait up to ``seconds`` until nothing is left to reduce. Return the number of windows left."""
        if self._thread.ident is not None:
            self._windows.put(None)
            self._thread.join(seconds)
        return self._added - self._reduced

    def _work(self) -> None:
        while (window := self._windows.get()) is not None:
            path = Path(window.path)
            reduced = _reduce(path, self._device_kind)
            if self._judge is not None:
                reduced = replace(reduced, breakdowns=self._judge(window, reduced.breakdowns))
            self._done.put(reduced)
            self._reduced += 1
            self._retention.take(path, requested=window.keep_trace, wrong=reduced.looked_wrong)
            with suppress(OSError):
                self._note_of(path).unlink()

    def _note_of(self, path: Path) -> Path:
        return self._scratch / f"{path.stem}{_UNFINISHED}"


def _reduce(path: Path, device_kind: DeviceKind) -> ReducedWindow:
    try:
        # Imported at the first window: without windows a rank needs no numpy.
        from rankscope.analysis.collectives.windows import reduce_trace
        from rankscope.analysis.trace.columns import read_trace

        # A torn trace is rejected here, because the records of a run must describe whole steps.
        trace = read_trace(path, complete_only=True)
        # As a trace of a CPU build, one without any device work would tell operators on the host for the work.
        if (device_kind != "cpu" and trace.device_kind == "cpu") or trace.quality.problem == "no_activity":
            return ReducedWindow(reason_without_activity(trace.device_kind if device_kind == "cpu" else device_kind))
        if trace.quality.problem is not None:
            return ReducedWindow(f"its trace {trace.quality.reason}")
        reduction = reduce_trace(trace)
    except InputError as error:
        return ReducedWindow(str(error))
    except Exception as error:  # noqa: BLE001  # no malformed trace may cost the step records
        return ReducedWindow(f"{type(error).__name__}: {error}")
    if not reduction.breakdowns:
        return ReducedWindow("none of its steps is in the profile")
    return ReducedWindow(None, reduction.breakdowns, reduction.collectives, reduction.kernels)

"""The helper's thread that reduces profiled windows to records: seconds of work that must not keep the ring waiting."""

from __future__ import annotations

import gzip
import queue
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rankscope.profiler.handover import Window
from rankscope.profiler.scratch import remove_trace
from rankscope.runs.errors import InputError
from rankscope.runs.records import StepBreakdown


@dataclass(frozen=True, slots=True)
class Reduced:
    """What became of a window: its records, or the reason why there are none."""

    reason: str | None = None
    breakdowns: Sequence[StepBreakdown] = ()
    collectives: Sequence[msgspec.Struct] = ()
    kernels: Sequence[msgspec.Struct] = ()


class Reducing:
    """Reduces the traces in ``scratch`` one after the other and removes them.

    The last ``keep`` are kept in the folder that ``keep_in`` returns (``None``: there is none now), and those asked for.
    """

    def __init__(self, scratch: Path, *, keep: int, keep_in: Callable[[], Path | None], say: Callable[[str], None]) -> None:
        self._scratch = scratch
        self._keep = keep
        self._keep_in = keep_in
        self._say = say
        self._kept: deque[Path] = deque()
        self._windows: queue.SimpleQueue[Window | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Reduced] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="reducing", daemon=True)

    def add(self, window: Window) -> None:
        """A trace is waiting."""
        if self._thread.ident is None:
            self._thread.start()
        self._windows.put(window)

    def results(self) -> list[Reduced]:
        """What has been reduced since this was last asked."""
        taken = []
        while not self._done.empty():
            taken.append(self._done.get())
        return taken

    def finish(self) -> None:
        """Wait until nothing is left to reduce."""
        if self._thread.ident is not None:
            self._windows.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (window := self._windows.get()) is not None:
            path = Path(window.path)
            self._done.put(_reduce(path))
            if self._keep or window.keep_trace:
                self._keep_trace(path, asked=window.keep_trace)
            remove_trace(path, self._scratch)

    def _keep_trace(self, path: Path, *, asked: bool) -> None:
        folder = self._keep_in()
        if folder is None:
            return
        kept = folder / "traces" / f"{path.stem}.json.gz"
        try:
            # Not its parents: a run that was removed is not made again.
            kept.parent.mkdir(exist_ok=True)
            with path.open("rb") as source, gzip.open(kept, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target)
            if not asked:
                self._kept.append(kept)
            while len(self._kept) > self._keep:
                self._kept.popleft().unlink(missing_ok=True)
        except OSError as error:
            self._say(f"cannot keep the trace {kept.name}: {error.strerror or error}")


def _reduce(path: Path) -> Reduced:
    try:
        # Imported for the first window: the rank of a run without windows needs no numpy.
        from rankscope.analysis.reduce import reduce_trace
        from rankscope.analysis.traces import read_trace

        reduction = reduce_trace(read_trace(path))
    except InputError as error:
        return Reduced(str(error))
    except Exception as error:  # noqa: BLE001  # no trace, however odd, may cost the step records
        return Reduced(f"{type(error).__name__}: {error}")
    return Reduced(None, reduction.breakdowns, reduction.collectives, reduction.kernels)

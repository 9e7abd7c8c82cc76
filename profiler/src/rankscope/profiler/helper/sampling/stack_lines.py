"""Conversion of py-spy's samples of a thread to lines of code, with the phases of the steps in which they were taken. Pure,
except that source files are read for the functions that lines call.

py-spy writes a Chrome trace: an event when a frame begins or ends to be in the samples, which has the time of the sample.
"""

from __future__ import annotations

import ast
import sysconfig
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.regular_files import open_regular
from rankscope.profiler.phases import PhaseInterval
from rankscope.runs.records import BatchSource, Phase, StackLine

MAX_LINES: Final = 16
"""Largest number of lines in a record."""
MAX_SOURCE_BYTES: Final = 1 << 20
_MAX_TEXT: Final = 200
_CLEARLY: Final = 0.7
"""Least share of one phase among the samples of a line whose phase is known, for the line to have that phase."""
_LEAST_WITH_PHASE: Final = 0.3
"""Least share of a line's samples whose phase must be known."""
_LIBRARIES: Final = ("site-packages", "dist-packages")
_STANDARD: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
_FETCHES: Final = "/torch/utils/data/_utils/fetch.py"
_STARTS: Final = (
    ("/threading.py", ("_bootstrap_inner", "run")),
    ("/multiprocessing/process.py", ("_bootstrap", "run")),
    ("/concurrent/futures/thread.py", ("_worker", "run")),
)
"""Functions that call what a thread or process was started to run."""
_GETS: Final = (".get", ".recv")
"""Ends of calls that wait for another thread without a frame of their own, as ``queue.SimpleQueue.get`` does."""
_RECORDER: Final = f"{Path(__file__).parents[2]}/"
"""Its wrappers are in the stack of what they wrap."""


class _Args(msgspec.Struct, frozen=True):
    filename: str
    line: int


class _StackEvent(msgspec.Struct, frozen=True):
    name: str
    ph: str
    tid: int
    ts: int
    args: _Args


_decode_trace = msgspec.json.Decoder(list[_StackEvent]).decode
"""Made here, because two threads must not make decoders at once."""


class StackFrame(msgspec.Struct, frozen=True):
    """One frame of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class StackInterval:
    """Consecutive samples with the same stack: from the first of them to the first with another one, in microseconds."""

    start_us: int
    end_us: int
    frames: tuple[StackFrame, ...]
    """Outermost first."""


def stack_intervals(trace: bytes) -> dict[int, list[StackInterval]]:
    """Return the stays of each thread in py-spy's Chrome trace. Raises ``msgspec.DecodeError``."""
    intervals: defaultdict[int, list[StackInterval]] = defaultdict(list)
    stacks: defaultdict[int, list[StackFrame]] = defaultdict(list)
    since: dict[int, int] = {}
    for event in _decode_trace(trace):
        thread, stack = event.tid, stacks[event.tid]
        if stack and event.ts > since[thread]:
            intervals[thread].append(StackInterval(since[thread], event.ts, tuple(stack)))
        since[thread] = event.ts
        if event.ph == "B":
            stack.append(StackFrame(event.args.filename, event.args.line, event.name))
        elif stack:
            stack.pop()
    return intervals


class PhaseTimeline:
    """Phases of the steps of a rank by time, in nanoseconds since 1970."""

    def __init__(self, steps: Iterable[Sequence[PhaseInterval]]) -> None:
        self._intervals = sorted((interval for step in steps for interval in step), key=lambda interval: interval.start_unix_ns)

    def between(self, first_ns: int, last_ns: int) -> Phase | None:
        """Return the phase that lasts from one time to another; ``None`` where none does, or outside of the known steps."""
        place = bisect_right(self._intervals, first_ns, key=lambda interval: interval.start_unix_ns) - 1
        if place < 0 or last_ns >= self._intervals[place].end_unix_ns:
            return None
        return self._intervals[place].phase


@dataclass(slots=True)
class _StackSums:
    duration_us: int = 0
    innermost: Counter[str] = field(default_factory=Counter)
    phases: Counter[Phase | None] = field(default_factory=Counter)
    sources: Counter[BatchSource | None] = field(default_factory=Counter)


class StackLines:
    """Converter of stays to lines, which caches what it read of source files.

    ``source``: function from a stack to where its thread gets batches from.
    """

    def __init__(self, source: Callable[[Sequence[StackFrame]], BatchSource | None] = lambda _: None) -> None:
        self._source = source
        self._calls: dict[str, dict[tuple[int, str], str]] = {}

    def of(
        self, intervals: Sequence[StackInterval], *, rate: int, zero_ns: tuple[int, int], phases: PhaseTimeline
    ) -> tuple[int, list[StackLine]]:
        """Return the number of samples and the most frequent lines.

        ``rate``: samples per second. ``zero_ns``: the earliest and the latest time that can be the zero of the
        intervals' times, in nanoseconds since 1970.
        """
        stays_of_frames: defaultdict[StackFrame, _StackSums] = defaultdict(_StackSums)
        for interval in intervals:
            frame, innermost = own_frame(interval.frames), interval.frames[-1]
            of_frame = stays_of_frames[frame]
            of_frame.duration_us += interval.end_us - interval.start_us
            of_frame.sources[self._source(interval.frames)] += interval.end_us - interval.start_us
            if innermost is not frame:
                of_frame.innermost[innermost.function] += interval.end_us - interval.start_us
            # Only at its first sample is the time of a stay exact.
            of_frame.phases[phases.between(*(zero + interval.start_us * 1000 for zero in zero_ns))] += 1
        total = sum(of_frame.duration_us for of_frame in stays_of_frames.values())
        most = sorted(stays_of_frames.items(), key=lambda item: -item[1].duration_us)[:MAX_LINES]
        lines = [
            self._line(frame, of_frame, samples)
            for frame, of_frame in most
            if (samples := round(of_frame.duration_us * rate / 1e6))
        ]
        return round(total * rate / 1e6), lines

    def _line(self, frame: StackFrame, of_frame: _StackSums, samples: int) -> StackLine:
        call, innermost = self._call(frame), next((name for name, _ in of_frame.innermost.most_common(1)), None)
        source = of_frame.sources.most_common(1)[0][0]
        if source is None and innermost is None and (call or "").endswith(_GETS):
            source = "queue"
        return StackLine(
            file=frame.file[-_MAX_TEXT:],
            line=frame.line,
            function=frame.function[:_MAX_TEXT],
            samples=samples,
            call=call,
            innermost=None if innermost is None else innermost[:_MAX_TEXT],
            phase=_clear(of_frame.phases),
            batches_from=source,
        )

    def _call(self, frame: StackFrame) -> str | None:
        if frame.file not in self._calls:
            self._calls[frame.file] = calls_in(Path(frame.file))
        return self._calls[frame.file].get((frame.line, short_function(frame)))


def own_frame(frames: Sequence[StackFrame]) -> StackFrame:
    """Return the innermost frame of the user's code, or the innermost of all where there is none.

    The user's code is all that is not installed, the script, and the installed package that the script is in. Where torch's data
    loader fetches samples, only what it calls counts: the script's line above it says nothing of the dataset.
    """
    script = next((frame.file for frame in frames if frame.function == "<module>" and not frame.file.startswith("<")), "")
    package = _package(script)
    fetches = next((place for place in reversed(range(len(frames))) if frames[place].file.endswith(_FETCHES)), -1)
    return next((frame for frame in reversed(frames[fetches + 1 :]) if is_own(frame, package)), frames[-1])


def is_own(frame: StackFrame, package: str = "") -> bool:
    """Return whether a frame is of the user's code. ``package``: folder of the installed package that is also the user's."""
    file = frame.file
    if file.startswith(("<", _RECORDER)):
        return False
    installed = file.startswith(_STANDARD) or any(f"/{name}/" in file for name in _LIBRARIES)
    return not installed or bool(package and file.startswith(package))


def started_frames(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Return the frames of what a thread or child process was started to run: a forked process has those of its parent, too."""
    starts = (place for place in reversed(range(len(frames))) if _starts(frames[place]))
    return frames[next(starts, -1) + 1 :] or frames


def _starts(frame: StackFrame) -> bool:
    return any(frame.file.endswith(file) and short_function(frame) in functions for file, functions in _STARTS)


def short_function(frame: StackFrame) -> str:
    """Return the name of a frame's function without its class."""
    return frame.function.rpartition(".")[2]


def _package(script: str) -> str:
    """Return the folder of the installed package that a script is in, with a slash at the end; empty: it is not installed."""
    for name in _LIBRARIES:
        above, separator, inside = script.partition(f"/{name}/")
        if separator:
            return f"{above}{separator}{inside.partition('/')[0]}/"
    return ""


def _clear(phases: Counter[Phase | None]) -> Phase | None:
    known_phases = Counter({phase: count for phase, count in phases.items() if phase is not None})
    if known_phases.total() < _LEAST_WITH_PHASE * phases.total() or not known_phases:
        return None
    phase, count = known_phases.most_common(1)[0]
    return phase if count >= _CLEARLY * known_phases.total() else None


def calls_in(path: Path) -> dict[tuple[int, str], str]:
    """Return the name of the called function by line and function, where the line of the function calls exactly one."""
    try:
        with open_regular(path) as file:
            source = file.read(MAX_SOURCE_BYTES + 1)
        if len(source) > MAX_SOURCE_BYTES:
            return {}
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    calls: dict[tuple[int, str], list[str]] = {}
    nodes: list[tuple[ast.AST, str]] = [(tree, "<module>")]
    while nodes:
        node, function = nodes.pop()
        if isinstance(node, ast.Call):
            calls.setdefault((node.lineno, function), []).append(_dotted(node.func))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        elif isinstance(node, ast.Lambda):
            function = "<lambda>"
        nodes += [(child, function) for child in ast.iter_child_nodes(node)]
    return {place: names[0][:_MAX_TEXT] for place, names in calls.items() if len(names) == 1 and names[0]}


def _dotted(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and (before := _dotted(function.value)):
        return f"{before}.{function.attr}"
    return ""

"""Task of the helper to sample the Python stacks of its rank with py-spy, to find the line at which the rank stalls.

They are those of the threads and, where the training thread waits for them, of worker processes.

A helper does not know whether its rank is slow, because that shows only in comparison. So all ranks take short series of samples
at the same times, multiples of the interval by the clock, and the analysis compares them. py-spy reads the memory of the rank
without pausing it (``--nonblocking``): it costs some 30 ms of CPU time per series on the node, and none of the training thread's.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import Final

from rankscope.profiler.helper.sampling.loaders import batch_source, loader_samples, waits_for_others, workers_of
from rankscope.profiler.helper.sampling.stack_lines import PhaseTimeline, StackInterval, StackLines, stack_intervals
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.phases import PhaseInterval
from rankscope.profiler.starts import process_start_unix_ns
from rankscope.runs.records import LoaderSamples, StackSamples, StepRecord

SERIES_SECONDS: Final = (2.0, 20.0)
"""Shortest and longest duration of a series; in between it covers ``_STEPS`` steps."""
SAMPLES: Final = 100
"""Number of samples in a series."""
EARLY: Final = (60.0, 0.25)
"""In the first so many seconds the interval is shorter by this factor, because many jobs are short."""
LATE: Final = (600.0, 3.0)
"""After so many seconds it is longer by this factor."""
WARM_UP: Final = 3
"""Number of steps before the first series."""
PATIENCE: Final = 3
"""Number of failures in a row after which no more samples are taken."""
GRACE_SECONDS: Final = 10.0
"""Longest time that py-spy may take beyond the duration of a series, and wait for the end of the step after it."""
END_SECONDS: Final = 2.0
MAX_TRACE_BYTES: Final = 32 << 20
_STEPS: Final = 4
_MAX_STEPS: Final = 8192
NOT_INSTALLED: Final = "py-spy is not installed (pip install 'rankscope[stacks]')"
DENIED: Final = "reading another process's memory (ptrace) is not permitted here"


class StackError(Exception):
    """py-spy took no samples. ``lasting``: it never will."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class StackSampler(HelperTask):
    """Task that takes series of samples. ``add`` stores a record and may be called on any thread."""

    def __init__(self, context: HelperContext, add: Callable[[StackSamples], None]) -> None:
        self._context = context
        self._add = add
        self._interval = context.handover.settings.stacks_seconds
        self._thread = context.handover.thread
        self._off = self._interval is None or self._thread is None
        self._program: str | None = None
        self._lines = StackLines(batch_source)
        self._loader_lines = StackLines()
        self._compared = False
        self._steps = 0
        self._last_step: int | None = None
        self._phases = deque[Sequence[PhaseInterval]](maxlen=_MAX_STEPS)
        """Phases of the steps during a series."""
        self._began = self._due = 0.0
        self._cpu_seconds = 0.0
        self._failures = 0
        self._has_requested = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._worker: threading.Thread | None = None
        self._ending = threading.Event()

    def request(self) -> None:
        """Take the next series as soon as possible. May be called on any thread."""
        self._has_requested = True

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:
        """Count a step, and keep its phases during a series."""
        self._steps += 1
        self._last_step = record.step
        if self._worker is not None and not record.profiled and intervals:
            self._phases.append(intervals)

    def tick(self) -> None:
        """Begin a series when it is due."""
        if self._worker is not None:
            if self._worker.is_alive():
                return
            self._worker = None
            self._phases.clear()
        if self._off or self._steps < WARM_UP or not self._context.begun():
            return
        now = time.time()
        if not self._began:
            self._began, self._program = now, find_program()
            self._due = self._next(now)
            if self._program is None:
                self._stop(NOT_INSTALLED)
            return
        if not self._has_requested:
            if now < self._due:
                return
            self._due = self._next(now)
            # The share of the budget, in CPU time of one core.
            if self._cpu_seconds > self._context.handover.settings.budget * (now - self._began):
                return
        self._has_requested = False
        self._worker = threading.Thread(target=self._work, args=(self._duration(),), name="stacks", daemon=True)
        self._worker.start()

    def _duration(self) -> float:
        least, most = SERIES_SECONDS
        return min(max(least, _STEPS * self._step_seconds()), most)

    def _step_seconds(self) -> float:
        return median(self._context.baseline.walls_us()) / 1e6

    def _next(self, now: float) -> float:
        """Return the time of the next series: the same on all ranks, whose clocks agree."""
        assert self._interval is not None
        age = now - self._began
        interval = self._interval * (EARLY[1] if age < EARLY[0] else LATE[1] if age > LATE[0] else 1)
        interval = max(interval, 2 * self._duration())
        return (math.floor(now / interval) + 1) * interval

    def _work(self, seconds: float) -> None:
        try:
            self._sample(seconds)
            self._failures = 0
        except StackError as error:
            self._failures += 1
            if not self._is_gone() and (error.lasting or self._failures >= PATIENCE):
                self._stop(str(error))
                # One report per host is enough.
                if not self._context.handover.rank.local_rank:
                    self._context.report(f"no samples of the Python stack: {error}")
        except Exception as error:  # noqa: BLE001  # nothing else reports errors of this thread
            self._stop(f"{type(error).__name__}: {error}")
            self._context.report(f"no samples of the Python stack: {type(error).__name__}: {error}")

    def _stop(self, reason: str) -> None:
        self._off = True
        self._add(StackSamples(start_unix_ns=time.time_ns(), end_unix_ns=time.time_ns(), missing=reason))

    def follow(self, thread: int) -> None:
        """Sample another thread from now on: training has moved to it."""
        self._thread = thread

    def _is_gone(self) -> bool:
        return self._ending.is_set() or process_start_unix_ns(self._context.handover.rank.pid) is None

    def _sample(self, seconds: float) -> None:
        handover = self._context.handover
        rate, output, before = max(1, round(SAMPLES / seconds)), self._context.scratch / "stacks.json", self._last_step
        start, cpu = time.time_ns(), _cpu_of_children()
        try:
            self._run(seconds, rate, output, handover.rank.pid)
            end = time.time_ns()
            threads = _read(output)
        except (OSError, ValueError) as error:
            raise StackError(str(error)) from error
        finally:
            self._cpu_seconds += _cpu_of_children() - cpu
            with suppress(OSError):
                output.unlink()
        self._wait_for_steps(end)
        phases = PhaseTimeline(list(self._phases))
        zero = _zero_ns(threads, start, end)
        samples, lines = self._lines.of(threads.pop(self._thread or 0, []), rate=rate, zero_ns=zero, phases=phases)
        if not samples:
            raise StackError("py-spy does not see the training thread")
        first = None if before is None else before + 1
        last = self._last_step if first is None or self._last_step is None else max(first, self._last_step)
        loaders = loader_samples(threads, "thread", self._loader_lines, rate=rate)
        # The first series shows what the worker processes of a healthy rank do, too.
        if not self._compared or waits_for_others(lines, loaders, samples):
            self._compared = True
            loaders += self._workers(seconds, rate)
        self._add(
            StackSamples(
                start_unix_ns=start,
                end_unix_ns=end,
                first_step=first,
                last_step=last,
                samples=samples,
                lines=lines,
                loaders=loaders,
            )
        )

    def _workers(self, seconds: float, rate: int) -> list[LoaderSamples]:
        """Sample the worker processes of the rank, all at once."""
        threads: dict[int, list[StackInterval]] = {}
        cpu = _cpu_of_children()

        def sample(pid: int) -> None:
            output = self._context.scratch / f"stacks-{pid}.json"
            # A process that is no Python, or has ended, has no samples.
            with suppress(OSError, ValueError, StackError):
                self._run(seconds, rate, output, pid)
                threads.update({(pid << 64) + thread: intervals for thread, intervals in _read(output).items()})
            with suppress(OSError):
                output.unlink()

        samplers = [
            threading.Thread(target=sample, args=(pid,), daemon=True) for pid in workers_of(self._context.handover.rank.pid)
        ]
        for sampler in samplers:
            sampler.start()
        for sampler in samplers:
            sampler.join()
        self._cpu_seconds += _cpu_of_children() - cpu
        return loader_samples(threads, "process", self._loader_lines, rate=rate)

    def _run(self, seconds: float, rate: int, output: Path, pid: int) -> None:
        assert self._program is not None
        # --idle: a thread that sleeps or waits is what is searched.
        options = ("--nonblocking", "--idle", "--full-filenames", "--format", "chrometrace")
        request = ("--duration", str(math.ceil(seconds)), "--rate", str(rate), "--output", str(output))
        command = [self._program, "record", *options, *request, "--pid", str(pid)]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            self._processes.append(process)
            try:
                _, errors = process.communicate(timeout=seconds + GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise StackError(f"py-spy did not end within {seconds + GRACE_SECONDS:.0f} s") from None
            finally:
                self._processes.remove(process)
        if process.returncode:
            raise stack_error(errors.decode(errors="replace"), process.returncode)

    def _wait_for_steps(self, end_unix_ns: int) -> None:
        """Wait until the step at the end of the series is there, but not for long: it may never end."""
        if not self._phases:
            return
        until = time.monotonic() + min(GRACE_SECONDS, 1 + 2 * self._step_seconds())
        while self._phases[-1][-1].end_unix_ns < end_unix_ns and time.monotonic() < until and not self._ending.wait(0.1):
            pass

    def finish(self) -> None:
        """End the series in progress, and store what it has; py-spy ends with the rank. To be called before the last write."""
        self._off = True
        self._ending.set()
        worker = self._worker
        if worker is not None:
            worker.join(END_SECONDS)
            for process in tuple(self._processes) if worker.is_alive() else ():
                with suppress(OSError):
                    process.kill()
            worker.join(END_SECONDS)


def _read(output: Path) -> dict[int, list[StackInterval]]:
    if output.stat().st_size > MAX_TRACE_BYTES:
        raise StackError(f"py-spy wrote more than {MAX_TRACE_BYTES >> 20} MiB")
    return stack_intervals(output.read_bytes())


def _zero_ns(threads: Mapping[int, Sequence[StackInterval]], start_ns: int, end_ns: int) -> tuple[int, int]:
    """Return the earliest and the latest time that can be the zero of py-spy's times.

    py-spy started after ``start_ns`` and took its last sample before ``end_ns``. On a busy node its start alone takes longer than
    the phase of a step.
    """
    last_us = max((intervals[-1].end_us for intervals in threads.values() if intervals), default=0)
    return start_ns, max(start_ns, end_ns - last_us * 1000)


def stack_error(errors: str, status: int) -> StackError:
    """Return the error for what py-spy wrote to its standard error when it failed."""
    first = next((line.removeprefix("Error: ").strip() for line in errors.splitlines() if line.strip()), f"status {status}")
    if any(sign in errors for sign in ("Permission", "permission", "not permitted", "os error 1)", "os error 13)")):
        return StackError(DENIED, lasting=True)
    return StackError(f"py-spy: {first[:200]}")


def find_program() -> str | None:
    """Return the path of py-spy: that of this Python's environment, else that on PATH; ``None``: it is not installed."""
    script_folders = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    return next((program for path in (*script_folders, None) if (program := shutil.which("py-spy", path=path)) is not None), None)


def _cpu_of_children() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

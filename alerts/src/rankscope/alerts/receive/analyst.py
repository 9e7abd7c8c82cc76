"""Verdicts about runs: one run after the other is analysed in a child process, and no caller waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

import msgspec

from rankscope.alerts.receive.facts import Facts, facts_of
from rankscope.alerts.receive.known_runs import KnownRun, KnownRuns, RunName, UnknownRunError
from rankscope.analysis.result.analysis import Analysis

MEMORY_BYTES: Final = 8 * 2**30
"""Limit on a child's address space."""
OUTPUT_BYTES: Final = 64 * 2**20
_END_S: Final = 5.0
"""Maximum wait for a killed process: one that hangs on a dead disk may never exit."""


@dataclass(frozen=True, slots=True)
class ChildResult:
    """Result of a child process."""

    status: int | None
    """Exit status; ``None`` if the child was killed at its time limit."""
    output: bytes
    error: str
    """Last line of standard error."""


_LAUNCHER: Final = """
import ctypes, os, resource, signal, sys
parent, address, output, *command = sys.argv[1:]
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    sys.exit("the receiver exited")
for limit, most in ((resource.RLIMIT_AS, int(address)), (resource.RLIMIT_FSIZE, int(output)), (resource.RLIMIT_CORE, 0)):
    hard = resource.getrlimit(limit)[1]
    resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
os.execv(sys.executable, [sys.executable, *command])
"""
"""Sets its own limits, then execs the command. Code between fork and exec could deadlock on another thread's lock."""


class BoundedChild:
    """``rankscope ARGUMENTS…`` in a process with limited memory, killed after ``limit_s``.

    The kernel ends the process when the thread that started it exits (Linux).
    """

    def __init__(self, arguments: Sequence[str], *, limit_s: float) -> None:
        self._until = time.monotonic() + limit_s
        self._finished: ChildResult | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``poll``
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(MEMORY_BYTES), str(OUTPUT_BYTES)]
        self._process = subprocess.Popen(
            [*launcher, "-m", "rankscope", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )

    def poll(self) -> ChildResult | None:
        """Return the result; ``None`` while the process runs."""
        if self._finished is None:
            status = self._process.poll()
            if status is None:
                if time.monotonic() < self._until:
                    return None
                self.end()
            output, errors = (_all_of(file) for file in (self._output, self._errors))
            lines = errors.decode(errors="replace").strip().splitlines()
            self._finished = ChildResult(status, output, lines[-1].removeprefix("rankscope: ") if lines else "")
        return self._finished

    def wait(self) -> ChildResult:
        """Wait for the process, and return the result."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._until - time.monotonic()))
        while (finished := self.poll()) is None:
            time.sleep(0.01)
        return finished

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)


def _all_of(file: IO[bytes]) -> bytes:
    with file:
        file.seek(0)
        return file.read(OUTPUT_BYTES)


FRESH_S: Final = 30.0
"""Lifetime of a verdict: the alerts of one problem arrive together. If alerts wait longer, that time counts: one delivery may be
about many runs, and the first verdict must stay valid until the last one is ready.
"""
LIMIT_S: Final = 60.0
"""Time limit for one run: others wait meanwhile. A verdict after the alerts' wait is delivered late."""
MAX_QUEUED: Final = 64
_KEPT: Final = 64


class Analyst:
    """Analyser of runs. Alerts wait ``waits_s`` seconds for its verdicts.

    ``ready`` is called after each analysis, from the analyst's thread.
    """

    def __init__(self, runs: KnownRuns, *, waits_s: float, ready: Callable[[], object]) -> None:
        self._runs = runs
        self._limit_s = max(LIMIT_S, waits_s)
        self._fresh_s = max(FRESH_S, waits_s)
        self._ready = ready
        self._changed = threading.Condition()
        self._queue: dict[RunName, None] = {}
        self._known: OrderedDict[RunName, tuple[float, Facts]] = OrderedDict()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="analyst", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Start no further analysis. A running one ends with the process."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def facts(self, named: RunName) -> Facts | None:
        """Return the facts about a run; ``None`` while its analysis is pending: call again."""
        with self._changed:
            known = self._known.get(named)
            if known is not None and time.monotonic() - known[0] < self._fresh_s:
                return known[1]
            if named not in self._queue:
                if len(self._queue) >= MAX_QUEUED:
                    return Facts(problem="alerts about too many runs arrived at once to analyse them all", late=True)
                self._queue[named] = None
                self._changed.notify()
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                named = next(iter(self._queue))
            try:
                facts = self._analyse(named)
            except Exception as error:  # noqa: BLE001 - a damaged run must not stop the analysis of the next one
                facts = Facts(problem=f"the run cannot be analysed: {type(error).__name__}")
            with self._changed:
                del self._queue[named]
                self._known.pop(named, None)
                self._known[named] = (time.monotonic(), facts)
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            self._ready()

    def _analyse(self, named: RunName) -> Facts:
        try:
            run = self._runs.find(named)
        except UnknownRunError as error:
            return Facts(problem=str(error), unknown=True)
        return msgspec.structs.replace(self._analysed(run), by_name=not named.run_id)

    def _analysed(self, run: KnownRun) -> Facts:
        done = BoundedChild(["analyze", str(run.path), "--format", "json"], limit_s=self._limit_s).wait()
        if done.status is None:
            return Facts(problem=f"the run could not be analysed within {self._limit_s:g} s", run_id=run.run_id)
        if done.status != 0:
            return Facts(problem=f"the run cannot be analysed: {done.error or f'status {done.status}'}", run_id=run.run_id)
        facts = facts_of(msgspec.json.decode(done.output, type=Analysis))
        if facts.run_id and facts.run_id != run.run_id:
            return Facts(problem="the run was replaced by another while it was analysed")
        return facts

"""Start of a job with the recorder attached to all its Python processes, through the environment alone."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankscope.base.errors import InputError
from rankscope.base.process import JOB_SIGNALS
from rankscope.base.text import one_line
from rankscope.profiler.group_signals import ENDING, SIGNALLED, SignalForwarder
from rankscope.profiler.masking import masked
from rankscope.profiler.missing_ends import complete_ends
from rankscope.profiler.scratch import (
    LOCAL_MEMORY,
    hold,
    is_abandoned,
    make_scratch,
    recorded_ranks,
    spooled,
    unrecorded_reasons,
    unwritten_reasons,
)
from rankscope.profiler.settings import PREFIX, SITE_FOLDER, RecorderSettings, RecordingOptions, as_recorded
from rankscope.profiler.spool import remove_own
from rankscope.runs.paths import inspector_dir, memory_dir
from rankscope.runs.reader import RunReader, is_run
from rankscope.runs.records import RunInfo

_BUILD: Final = "the plugin is built by make -C plugins/profiler/inspector in NCCL's repository"
_INSPECTOR: Final = {"DUMP_THREAD_INTERVAL_MICROSECONDS": "500", "DUMP_VERBOSE": "1", "DUMP_MIN_SIZE_BYTES": "0"}
"""Settings of the plugin that the user may change. Without an interval it writes no log, and only a verbose one has starts."""
DRAIN_SECONDS: Final = 30.0
"""Longest wait for the helpers after the job has ended; a profiler window takes seconds to reduce."""
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127


class LaunchOptions(RecordingOptions, frozen=True, kw_only=True):
    """Options of a recorded job."""

    run_dir: Path
    name: str
    nccl_inspector: Path | None = None
    """NCCL Inspector plugin (``libnccl-profiler-inspector.so``) to load, so that durations of collectives are recorded."""
    flight_recorder_times: bool = False
    """True to let torch's Flight Recorder time collectives, so that their durations are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """Result of a recorded job.

    ``status``: the job's exit status as a shell reports it (128 + n after signal n).
    ``ranks``: attempt and rank of each rank that this launcher recorded in ``run_dir``. Without any, a run there may be another
    job's.
    """

    status: int
    run_dir: Path
    attempt: int
    ranks: frozenset[tuple[int, int]]
    unrecorded: tuple[str, ...] = ()
    """If no rank was recorded: the reasons that its processes with torch give."""
    unwritten: tuple[str, ...] = ()
    """If no rank was recorded: the reasons why its records could not be written."""
    memory_snapshots: tuple[Path, ...] = ()
    """Snapshots of GPUs that ran out of memory."""


def launch(command: Sequence[str], options: LaunchOptions) -> LaunchResult:
    """Run ``command`` in the foreground and wait for it, and for the recording to be complete.

    Raises ``InputError`` when the run directory cannot be used; the command is not started then.
    """
    run_dir = options.run_dir.absolute()
    if options.nccl_inspector is not None and not options.nccl_inspector.is_file():
        raise InputError(options.nccl_inspector, f"no such file: {_BUILD}")
    for folder in filter(None, (str(run_dir), options.spool_dir)):
        _check_name(folder)
    with ExitStack() as leaving:
        # Removes only empty folders: a job without training leaves nothing behind.
        leaving.callback(_remove_empty, _check_run_dir(run_dir))
        try:
            scratch = make_scratch("job")
            leaving.callback(shutil.rmtree, scratch, ignore_errors=True)
            leaving.callback(os.close, hold(scratch))
        except OSError as error:
            reason = f"cannot make a folder in local memory: {error.strerror or error}"
            raise InputError(error.filename or LOCAL_MEMORY, reason) from error
        settings = _settings(command, options, run_dir, scratch)
        if settings.spool_dir:
            # Also when a second Ctrl-C ends the waiting: a finished job must not be exported.
            leaving.callback(_clear_spool, scratch, Path(settings.spool_dir))
        if settings.attempt:
            print(f"rankscope: {run_dir} holds a run already; this becomes its attempt {settings.attempt}", file=sys.stderr)
        if options.nccl_inspector is not None:
            logs = inspector_dir(run_dir)
            logs.mkdir(exist_ok=True)
            leaving.callback(_remove_empty, [logs])
        snapshots = _memory_snapshots(run_dir)
        status = _run(command, _environment(settings, options), scratch)
        ranks = recorded_ranks(scratch)
        complete_ends(run_dir, ranks, status)
        reasons = [] if ranks else unrecorded_reasons(scratch)
        unwritten = [] if ranks else unwritten_reasons(scratch)
    return LaunchResult(
        status=status,
        run_dir=run_dir,
        attempt=settings.attempt,
        ranks=ranks,
        unrecorded=tuple(reasons),
        unwritten=tuple(unwritten),
        memory_snapshots=tuple(sorted(path for path, _ in _memory_snapshots(run_dir) - snapshots)),
    )


def _memory_snapshots(run_dir: Path) -> set[tuple[Path, int]]:
    """Return path and modification time of the snapshots in ``run_dir``; a rank may replace one of an earlier start."""
    snapshots = set[tuple[Path, int]]()
    for path in memory_dir(run_dir).glob("rank-*.pickle"):
        with suppress(OSError):
            snapshots.add((path, path.stat().st_mtime_ns))
    return snapshots


def _check_name(folder: str) -> None:
    try:
        # Helpers and readers of an analysis receive the name in JSON.
        folder.encode()
    except UnicodeEncodeError as error:
        raise InputError(folder, "cannot record here: the name is not UTF-8") from error


def _check_run_dir(run_dir: Path) -> list[Path]:
    """Create the run directory and test that it is writable. Returns the created folders, innermost first."""
    missing: list[Path] = []
    try:
        missing += [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
        if run_dir.exists():
            if not run_dir.is_dir():
                raise InputError(run_dir, "cannot record here: it is a file")
            # A folder with nothing else is a run whose ranks still wrote while it was removed.
            own_names = {"attempts", inspector_dir(run_dir).name, memory_dir(run_dir).name}
            if not is_run(run_dir) and {entry.name for entry in run_dir.iterdir()} - own_names:
                raise InputError(run_dir, "cannot record here: the folder is not empty and is no run")
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / f".probe-{os.getpid()}"
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        _remove_empty(missing)
        reason = f"cannot record here: {error.strerror or error}; choose a folder with --run-dir"
        raise InputError(run_dir, reason) from error
    return missing


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _settings(command: Sequence[str], options: LaunchOptions, run_dir: Path, scratch: Path) -> RecorderSettings:
    attempt, run_id = 0, None
    launcher = shlex.join(masked(command))
    if is_run(run_dir):
        reader = RunReader(run_dir)
        _check_same_job(run_dir, reader.info, launcher, options.name)
        run_id = reader.info.run_id
        attempt = max(reader.attempts(), default=-1) + 1
    else:
        attempt = _after_remains(run_dir)
    # Launchers on several nodes start at different moments; one of them, or the scheduler, can fix the number for all.
    fixed = os.environ.get(PREFIX + "ATTEMPT", "")
    chosen = options.chosen()
    if options.spool_dir:
        chosen["spool_dir"] = str(Path(options.spool_dir).absolute())
    if options.price_per_gpu_hour is None:
        chosen["currency"] = None
    settings = RecorderSettings(
        run_dir=str(run_dir),
        run_id=run_id
        or os.environ.get(PREFIX + "RUN_ID")
        or f"{options.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        name=options.name,
        attempt=int(fixed) if fixed.isdecimal() else attempt,
        start_unix_ns=time.time_ns(),
        scratch_dir=str(scratch),
        launcher=launcher,
        **chosen,
    )
    try:
        return settings.with_overrides(os.environ)
    except ValueError as error:
        variable, _, reason = str(error).partition(": ")
        raise InputError(variable, reason) from error


def _check_same_job(run_dir: Path, recorded: RunInfo, command: str, name: str) -> None:
    """Check that the command is that of the recorded run: another job would hide the run's verdict. Raises ``InputError``."""
    if any(os.environ.get(PREFIX + variable) for variable in ("ATTEMPT", "RUN_ID")):
        return  # set explicitly
    if recorded.launcher is None:
        recorded_value, own_value = recorded.name, as_recorded(name)
    else:
        recorded_value, own_value = recorded.launcher, as_recorded(command)
    if recorded_value != own_value:
        shown = textwrap.shorten(one_line(recorded_value, " "), 80, placeholder=" …")
        reason = (
            f"holds a run of another job ({shown}): take another --run-dir, or set "
            f"{PREFIX}ATTEMPT to the number of this start to add it to that run"
        )
        raise InputError(run_dir, reason)


def _after_remains(run_dir: Path) -> int:
    """Return an attempt number above those left in a folder without a run: the ranks of those attempts are taken."""
    names = [entry.name for entry in run_dir.glob("attempts/*")]
    return max((int(name) for name in names if name.isdecimal()), default=-1) + 1


def _clear_spool(scratch: Path, spool: Path) -> None:
    with suppress(OSError):
        remove_own(spool, spooled(scratch))


def _environment(settings: RecorderSettings, options: LaunchOptions) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(PREFIX)}
    environment.update(settings.environment())
    paths = [str(SITE_FOLDER), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # Otherwise Kineto prints two lines per window; a level set by the user stays.
    environment.setdefault("KINETO_LOG_LEVEL", "6")
    if options.nccl_inspector is not None:
        environment |= {"NCCL_PROFILER_PLUGIN": str(options.nccl_inspector.absolute()), "NCCL_INSPECTOR_ENABLE": "1"}
        for name, value in {**_INSPECTOR, "DUMP_DIR": str(inspector_dir(Path(settings.run_dir)))}.items():
            environment.setdefault(f"NCCL_INSPECTOR_{name}", value)
    if options.flight_recorder_times:
        environment["TORCH_NCCL_ENABLE_TIMING"] = "1"
    return environment


def _run(command: Sequence[str], environment: dict[str, str], scratch: Path) -> int:
    """Run the job, wait until it and its helpers have ended, and return its exit status as a shell reports it."""
    # Signals are caught before the job starts: one that ended the launcher at that moment would leave the job behind.
    with SignalForwarder(_forwarded_signals()) as forwarder:
        try:
            child = subprocess.Popen(command, env=environment)
        except FileNotFoundError:
            print(f"rankscope: {command[0]}: command not found", file=sys.stderr)
            return _NOT_FOUND
        except OSError as error:
            print(f"rankscope: {command[0]}: {error.strerror}", file=sys.stderr)
            return _NOT_EXECUTABLE
        forwarder.forward_to(child)
        status = _status_of(child)
        _wait_for_helpers(scratch)
    return SIGNALLED - status if status < 0 else status


def _status_of(child: subprocess.Popen[bytes]) -> int:
    """Wait for the child and return its status. Python handles a signal that comes just before a blocking call when that ends."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=1.0)


def _forwarded_signals() -> set[int]:
    # Only the main thread may set handlers; in other threads the embedding program handles signals, and its handlers stay.
    if threading.current_thread() is not threading.main_thread():
        return set()
    # What this process was told to ignore (nohup), the child ignores, too.
    return {number for number in JOB_SIGNALS if signal.getsignal(number) is signal.SIG_DFL} | ENDING


def _wait_for_helpers(scratch: Path) -> None:
    """Wait, at most ``DRAIN_SECONDS``, until ``scratch`` has no rank's folder: each helper removes its own when it is done."""
    deadline = time.monotonic() + DRAIN_SECONDS
    unfinished: set[Path] = set()
    while folders := {entry for entry in scratch.iterdir() if entry.is_dir()}:
        before, unfinished = unfinished, {folder for folder in folders if is_abandoned(folder)}
        # Seen twice, because a starting helper creates the lock file a moment before it holds the lock.
        if folders <= before & unfinished:
            print(f"rankscope: the helper of {len(folders)} rank(s) was killed; their records are incomplete", file=sys.stderr)
            return
        if time.monotonic() > deadline:
            print("rankscope: some ranks are still writing their records; they may be incomplete", file=sys.stderr)
            return
        time.sleep(0.05)

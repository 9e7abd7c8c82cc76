"""The ``rankscope`` command, run in the process of the test or in one of its own."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from unittest.mock import patch

from rankscope.base.logs import ROOT
from rankscope.cli.main import main

Result = subprocess.CompletedProcess[str]
Cli = Callable[..., Result]
"""Type of the fixtures ``cli`` and ``cli_process``."""


def run_in_process(*args: str | Path, env: Mapping[str, str] | None = None) -> Result:
    """Run the command's ``main`` here, without the time that starting Python takes.

    Everything that a verb changes in a process (descriptors 1 and 2, signal handlers, environment, logging) is put back.
    """
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        patch.dict(os.environ, env or {}),
        patch.object(sys, "argv", ["rankscope", *map(str, args)]),
        _signal_handlers_kept(),
        logging_kept(),
        _written_to("stdout", 1, out),
        _written_to("stderr", 2, err),
    ):
        status = _status()
        sys.stdout.flush()
        sys.stderr.flush()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(args, status, out.read().decode(), err.read().decode())


def run_process(*args: str | Path, timeout: float = 120, env: Mapping[str, str] | None = None) -> Result:
    """Run the real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rankscope", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(env or {})},
    )


def one_line_error(completed: Result, status: int = 3) -> str:
    """Check that a command ended with ``status`` and printed nothing but one line on standard error; return that line."""
    assert (completed.returncode, completed.stdout) == (status, ""), completed.stderr
    [line] = completed.stderr.splitlines()
    return line


def _status() -> int:
    """Return the exit status with which the interpreter would end."""
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:  # noqa: BLE001  # as the interpreter does with it
        traceback.print_exc()
        return 1


@contextmanager
def _written_to(name: str, descriptor: int, file: IO[bytes]) -> Iterator[None]:
    """Send a standard stream to a file: what Python writes, and what child processes write."""
    getattr(sys, name).flush()
    before = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        with open(descriptor, "w", closefd=False, encoding="utf-8") as stream, patch.object(sys, name, stream):
            yield
    finally:
        os.dup2(before, descriptor)
        os.close(before)


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def logging_kept() -> Iterator[None]:
    """Put back what daemons change about logging."""
    root, own = logging.getLogger(), logging.getLogger(ROOT)
    before = (root.handlers[:], root.level, own.level, logging.raiseExceptions)
    try:
        yield
    finally:
        root.handlers[:], root_level, own_level, logging.raiseExceptions = before
        root.setLevel(root_level)
        own.setLevel(own_level)

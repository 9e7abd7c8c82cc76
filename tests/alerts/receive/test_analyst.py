"""The processes in which the receiver analyses runs: they have limits and never outlive the receiver."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from rankscope.alerts.receive.bounded_child import MEMORY_BYTES, BoundedChild

STARTED = """
import os, sys, threading, time
from rankscope.alerts.receive.bounded_child import BoundedChild

os.register_at_fork(after_in_child=lambda: print("Python ran between fork and exec", flush=True))

def start():
    child = BoundedChild(["alerts", "serve", "--listen", "127.0.0.1:0"], limit_s=600)
    print(child._process.pid, flush=True)
    time.sleep(600)

threading.Thread(target=start).start()
"""


def running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_child_of_a_thread_is_limited_and_ends_with_the_receiver() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTED], stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        line = receiver.stdout.readline()
        assert line.strip().isdigit(), line
        pid = int(line)
        wait_until(lambda: "rankscope" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
        wait_until(lambda: "-c" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
        limits = Path(f"/proc/{pid}/limits").read_text()
        receiver.send_signal(signal.SIGKILL)
    assert f"Max address space         {MEMORY_BYTES}" in limits
    assert "Max core file size        0 " in limits
    wait_until(lambda: not running(pid))


def test_its_output_and_status_are_returned(tmp_path: Path, make_run: Callable[..., Any]) -> None:
    completed = BoundedChild(["analyze", str(make_run(slow=2).path), "--format", "json"], limit_s=120).wait()
    assert (completed.status, b'"rankscope.analysis/1"' in completed.output) == (0, True)
    failed = BoundedChild(["analyze", str(tmp_path / "none")], limit_s=120).wait()
    assert failed.status == 3
    assert "none" in failed.error

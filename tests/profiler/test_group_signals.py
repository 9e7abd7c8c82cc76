"""Signals to the process group of ``rankscope run`` and its job: the job receives each once, as without the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COUNTS = """
import os, signal, sys, time
got = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda number, _frame: got.append(number) or os.write(1, b"%d\\n" % number))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(print(*got)))
print("up", flush=True)
while True:
    time.sleep(0.02)  # not pause: a signal just before it would wait for the next one
"""
LAUNCH = """
import sys
from pathlib import Path
from rankscope.profiler.launch import *
sys.exit(launch(sys.argv[2:], LaunchOptions(run_dir=Path(sys.argv[1]), name="x")).status)
"""


NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("leaves", [False, True], ids=["in the group", "in a group of its own"])
def test_the_job_receives_a_signal_to_the_group_once(tmp_path: Path, *, leaves: bool, together: bool) -> None:
    job = [*(["setsid", "--wait"] if leaves else []), sys.executable, "-c", COUNTS]
    command = [sys.executable, "-c", LAUNCH, str(tmp_path / "run"), *job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
        assert launcher.stdout is not None
        try:
            assert launcher.stdout.readline() == "up\n"
            for number in NUMBERS:
                os.killpg(launcher.pid, number)
                if not together:
                    assert launcher.stdout.readline() == f"{int(number)}\n"
            if together:
                assert {int(launcher.stdout.readline()) for _ in NUMBERS} == set(NUMBERS)
            os.kill(launcher.pid, signal.SIGUSR2)  # only to the launcher, which forwards it
            assert sorted(map(int, launcher.stdout.readline().split())) == sorted(NUMBERS)
            assert launcher.wait(60) == 0
        finally:
            launcher.kill()

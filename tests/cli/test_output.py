"""Output that finds no place, or no end; and leaving before there is any."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["schema", "analysis"], ["--help"], ["alerts", "rules", "show"]])
def test_whatever_is_printed_a_full_disk_is_one_of_standard_output(arguments: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rankscope", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr) == (3, "rankscope: standard output: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_finds_room_for_a_part_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    # given a file that may not become larger than 1 KiB, and more to print
    shell = f"ulimit -f 1; exec {sys.executable} -m rankscope schema analysis >{tmp_path / 'schema.json'}"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONUNBUFFERED": unbuffered}
    )
    assert (done.returncode, done.stderr) == (3, "rankscope: standard output: File too large\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_is_set_not_to_wait_gets_everything(unbuffered: str) -> None:
    # given a pipe that holds less than what is printed, read late, of which a writer is told when it is full
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        [sys.executable, "-m", "rankscope", "schema", "analysis"], stdout=writing, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            select.select([pipe], [], [])
            time.sleep(0.1)
            json.loads(pipe.read())
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("module", ["click", "numpy", "rankscope.analysis.render"])
def test_ctrl_c_is_quiet_while_modules_are_imported(tmp_path: Path, module: str) -> None:
    # given an interpreter that is interrupted when the module is looked for
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    trace = tmp_path / "rank-0.json"
    trace.write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 5, "pid": 0, "tid": 7}]}')
    # when it is started
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "analyze", str(trace)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nInterrupted.\n")

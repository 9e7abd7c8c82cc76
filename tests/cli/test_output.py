"""Output that cannot be written, and interrupts while modules are imported."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

BUFFERED = {"PYTHONUNBUFFERED": ""}
UNBUFFERED = pytest.param({"PYTHONUNBUFFERED": "1"}, id="unbuffered", marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        pytest.param(["schema", "analysis"], BUFFERED, id="schema"),
        pytest.param(["schema", "analysis"], {"PYTHONUNBUFFERED": "1"}, id="schema unbuffered"),
        pytest.param(["--help"], BUFFERED, id="help", marks=pytest.mark.full),
        pytest.param(["--help"], {"PYTHONUNBUFFERED": "1"}, id="help unbuffered", marks=pytest.mark.full),
        pytest.param(["alerts", "rules", "show"], BUFFERED, id="rules", marks=pytest.mark.full),
        pytest.param(["alerts", "rules", "show"], {"PYTHONUNBUFFERED": "1"}, id="rules unbuffered", marks=pytest.mark.full),
    ],
)
def test_full_disk_is_a_one_line_error_naming_standard_output(arguments: list[str], environ: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "rankscope", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, **environ},
        )
    assert_one_line(completed, "No space left on device")


def assert_one_line(done: subprocess.CompletedProcess[str], reason: str) -> None:
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "standard output" in done.stderr
    assert reason in done.stderr


@pytest.mark.parametrize("environ", [pytest.param(BUFFERED, id="buffered"), UNBUFFERED])
def test_partially_written_output_is_an_error(tmp_path: Path, environ: dict[str, str]) -> None:
    # given a file that may not become larger than 1 KiB, and more to print
    shell = f"ulimit -f 1; exec {sys.executable} -m rankscope schema analysis >{tmp_path / 'schema.json'}"
    completed = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, env={**os.environ, **environ})
    assert_one_line(completed, "File too large")


def test_closed_standard_output_is_no_error() -> None:
    shell = f"{sys.executable} -m rankscope schema analysis >&-"
    completed = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")


@pytest.mark.parametrize("environ", [pytest.param(BUFFERED, id="buffered"), UNBUFFERED])
def test_non_blocking_pipe_receives_the_whole_output(environ: dict[str, str]) -> None:
    # given a pipe that holds less than the output, and that is read only when it is full
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    with subprocess.Popen(
        [sys.executable, "-m", "rankscope", "schema", "analysis"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
    ) as process:
        wait_until(lambda: not select.select([], [writing], [], 0)[1], process=process)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            json.loads(pipe.read())
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    "module",
    ["numpy", *(pytest.param(name, marks=pytest.mark.full) for name in ("click", "rankscope.analysis.report.terminal"))],
)
def test_ctrl_c_during_imports_prints_no_traceback(tmp_path: Path, module: str) -> None:
    # given an interpreter that is interrupted while it searches for the module
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
    completed = subprocess.run(
        [sys.executable, "-m", "rankscope", "analyze", str(trace)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (completed.returncode, completed.stdout, completed.stderr) == (130, "", "\nInterrupted.\n")

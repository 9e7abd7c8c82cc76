"""The README's and the tutorial's commands work as described, typed by a new user in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.analysis.flight_dumps import Job, always
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.partition(" #")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
TABLE_HEAD = next(line for line in README.splitlines() if line.startswith("rank  host  compute"))


def test_first_commands_are_make_demo_and_make_test() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]
    for command in COMMANDS[:2]:
        assert subprocess.run([*command.split(), "-n"], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_every_file_link_has_a_target() -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_every_named_extra_exists() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(re.findall(r"rankscope\[(\w+)\]", README))
    assert named
    assert named <= set(extras)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("require_torch")
def test_every_rankscope_command_works_as_written(tmp_path: Path, example_traces: Path) -> None:
    # given an empty folder with a training script, some traces and some dumps
    shutil.copy(ROOT / "cli/src/rankscope/cli/demo/train.py", tmp_path / "train.py")
    shutil.copytree(example_traces / "jobs" / "ddp", tmp_path / "traces")
    Job(always(2, 15.0)).write(tmp_path / "flight-recorder-dumps")
    bin_folder = Path(sys.executable).parent
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    # Wide enough for all columns of the README's example.
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    commands = [command for command in COMMANDS if command.startswith("rankscope ")]
    assert len(commands) >= 7
    for command in commands:
        # when each is typed as it stands
        words = shlex.split(command)
        if words[1] == "dashboard":
            _serves(words, tmp_path, env)
            continue
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
        # then it works and prints something
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.stdout or done.stderr
        if words[1:] == ["analyze", "runs/first"]:
            # and the verdict in the README still resembles the printed one
            heads = [line.split() for line in done.stdout.splitlines()]  # the widths of columns depend on their values
            assert TABLE_HEAD.split() in heads
    assert list((tmp_path / "rules").iterdir())


def _serves(words: list[str], folder: Path, env: dict[str, str]) -> None:
    """Check that a server prints its address, and that Ctrl-C ends it. Another test may use the README's port for a while."""

    def served() -> bool:
        with subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            output = ""
            while "http://" not in output and (line := process.stdout.readline()):
                output += line
            if "http://" not in output:
                assert "already in use" in output, output
                return False
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 0
        return True

    wait_until(served, poll_s=1)


TUTORIAL = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
TUTORIAL_COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL) for line in block.splitlines()]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("require_torch")
def test_tutorial_finds_the_slow_rank_and_its_fix(tmp_path: Path) -> None:
    # given the tutorial's script and nothing else
    (script,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    printed = {}
    for command in TUTORIAL_COMMANDS:
        words = shlex.split(command)
        if words[0] != "rankscope" or words[1] == "dashboard":  # installation; a server, which the README's test starts
            continue
        # when each command is typed
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        printed[command] = done.stdout + done.stderr
    # then the rank and the cause of the tutorial are named
    slow, mended, compared = (
        next(text for command, text in printed.items() if part in command)
        for part in ("runs/slow --", "runs/mended --", "compare")
    )
    cause = re.compile(r"Rank\s2 .* its\s+batches\s+load\s+slowly,\s+and\s+its\s+training\s+thread\s+loads", re.DOTALL)
    assert cause.search(slow), slow
    # and the second run is the faster one, in which rank 2 delays no other rank
    assert not cause.search(mended), mended
    # with one of the verdicts that the tutorial lists
    listed = r"^(COMMUNICATION BOUND|BALANCED|HOST BOUND|INSUFFICIENT DATA)$|explained\s+by\s+cpu\s+contention"
    assert re.search(listed, mended, re.MULTILINE), mended
    before, after = re.findall(r"^typical step +([\d.]+) ms +([\d.]+) ms", compared, re.MULTILINE)[0]
    assert float(after) < float(before)
    assert (tmp_path / "report.html").stat().st_size > 0

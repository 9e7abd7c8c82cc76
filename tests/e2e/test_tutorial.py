"""The tutorial's commands, typed in its order, find the slow rank and show that it is mended."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL) for line in block.splitlines()]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("require_torch")
def test_the_tutorial_leads_to_the_slow_rank_and_to_its_mending(tmp_path: Path) -> None:
    # given the tutorial's script and nothing else
    (script,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    printed = {}
    for command in COMMANDS:
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
    listed = r"^(COMMUNICATION BOUND|BALANCED|INSUFFICIENT DATA)$|explained\s+by\s+cpu\s+contention"
    assert re.search(listed, mended, re.MULTILINE), mended
    before, after = re.findall(r"^typical step +([\d.]+) ms +([\d.]+) ms", compared, re.MULTILINE)[0]
    assert float(after) < float(before)
    assert (tmp_path / "report.html").stat().st_size > 0

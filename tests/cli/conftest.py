"""The command line in the process of the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.cli.main import main

InProcess = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def in_process(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Like ``cli``, without the time that it takes to start Python, and with what the test has patched."""

    def invoke(*args: str | Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["rankscope", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capfd.readouterr()
        return subprocess.CompletedProcess(args, int(left.value.code or 0), said.out, said.err)

    return invoke

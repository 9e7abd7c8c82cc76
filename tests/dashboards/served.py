"""The real command, which serves runs on a port of its choice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(path: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command until the block ends; yield the process and the address it printed, such as ``http://127.0.0.1:1``."""
    command = [sys.executable, "-m", "rankscope", "dashboard", str(path), "--listen", "127.0.0.1:0", *options]
    around = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=around) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        try:
            assert match is not None, line
            yield process, match[0]
        finally:
            process.terminate()

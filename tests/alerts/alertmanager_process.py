"""Debian's Alertmanager as a process that chooses its own port."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.waiting import wait_until


@contextmanager
def alertmanager_process(program: str, config: Path, folder: Path) -> Iterator[str]:
    """Run Alertmanager and yield its address once it is ready; its data and its log are below ``folder``."""
    folder.mkdir()
    log = folder / "log"
    command = [program, f"--config.file={config}", f"--storage.path={folder / 'data'}"]
    command += ["--web.listen-address=127.0.0.1:0", "--cluster.listen-address="]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=folder) as process:
        try:

            def ready() -> str | None:
                match = re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", log.read_text())
                url = f"http://{match[1]}" if match else None
                return url if url and httpx.get(f"{url}/-/ready").is_success else None

            yield wait_until(ready, process=process, details=log.read_text)
        finally:
            process.kill()

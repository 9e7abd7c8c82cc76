"""Prometheus and Alertmanager as Debian packages them, each as a process that chooses its own port."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.needs import program
from tests.waiting import wait_until


@contextmanager
def prometheus_server(folder: Path, config: str = "", *, samples: str = "", arguments: Sequence[str] = ()) -> Iterator[str]:
    """Run Prometheus in ``folder`` and yield its address once it is ready.

    ``config`` is its configuration; ``samples`` are past samples as OpenMetrics, with times in seconds, of 2001 or later.
    """
    command = [program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command += ["--storage.tsdb.retention.time=100y", "--web.listen-address=127.0.0.1:0", *arguments]
    if samples:
        (folder / "samples.txt").write_text(f"{samples}# EOF\n")
        make = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"]
        subprocess.run(make, check=True, capture_output=True, cwd=folder)
    (folder / "prometheus.yml").write_text(config)
    with _serving(command, folder) as url:
        yield url


@contextmanager
def alertmanager_server(folder: Path, config: Path) -> Iterator[str]:
    """Run Alertmanager in the new folder ``folder`` and yield its address once it is ready."""
    folder.mkdir()
    command = [program("prometheus-alertmanager"), f"--config.file={config}", "--storage.path=data", "--cluster.listen-address="]
    with _serving([*command, "--web.listen-address=127.0.0.1:0"], folder) as url:
        yield url


def ask(url: str, query: str) -> Any:
    """Return the data that the API of a Prometheus answers to ``query``, such as ``alerts``."""
    return httpx.get(f"{url}/api/v1/{query}", trust_env=False).json()["data"]


@contextmanager
def _serving(command: list[str], folder: Path) -> Iterator[str]:
    log = folder / "log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=folder) as process:

        def ready() -> str | None:
            match = re.search(r"address=(127\.0\.0\.1:[1-9]\d*)", log.read_text())
            url = f"http://{match[1]}" if match else None
            return url if url and httpx.get(f"{url}/-/ready", trust_env=False).is_success else None

        try:
            yield wait_until(ready, process=process, details=log.read_text)
        finally:
            process.kill()

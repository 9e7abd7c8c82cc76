"""A real Prometheus over a past that a test has made up."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


@contextmanager
def remembering(folder: Path, openmetrics: str, *, program: Callable[[str], str], rules: str | None = None) -> Iterator[str]:
    """Its address. ``openmetrics``: samples with times in seconds, of 2001 or later; ``rules``: a rule file."""
    (folder / "past.txt").write_text(openmetrics + "# EOF\n")
    make = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*make, folder / "past.txt", folder / "data"], check=True, capture_output=True)
    config = "global: {evaluation_interval: 10s}\n"
    if rules is not None:
        (folder / "test.rules.yaml").write_text(rules)
        config += "rule_files: [test.rules.yaml]\n"
    (folder / "prometheus.yml").write_text(config)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        while not _ready(url):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False

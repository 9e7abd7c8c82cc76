"""Real Prometheus over past samples that a test has written."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.waiting import wait_until


@contextmanager
def remembering(folder: Path, openmetrics: str, *, program: Callable[[str], str], rules: str | None = None) -> Iterator[str]:
    """Run it and yield its address. ``openmetrics``: samples with times in seconds, of 2001 or later; ``rules``: a rule file."""
    if openmetrics:
        samples = folder / "samples.txt"
        samples.write_text(f"{openmetrics}# EOF\n")
        make = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(samples), str(folder / "data")]
        subprocess.run(make, check=True, capture_output=True)
    lines = ["global: {evaluation_interval: 15s}"]
    if rules is not None:
        (folder / "past.rules.yaml").write_text(rules)
        lines.append("rule_files: [past.rules.yaml]")
    (folder / "prometheus.yml").write_text("\n".join(lines) + "\n")
    with socket.socket() as reserved:
        # A bound socket that does not listen keeps the port from other programs; Prometheus binds beside it (SO_REUSEADDR).
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--storage.tsdb.retention.time=100y",
                    f"--web.listen-address={address}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _wait_until_ready(process, f"http://{address}", folder / "log")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    def ready() -> bool:
        try:
            return httpx.get(f"{url}/-/ready", trust_env=False).is_success
        except httpx.TransportError:
            return False

    wait_until(ready, process=process, details=lambda: log.read_text(errors="replace"))

"""A Prometheus of our own over a past that is written down: Debian's programs, a folder that is thrown away, a loopback port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import httpx

from rankscope.alerts.child import end_with_parent
from rankscope.alerts.events import plain
from rankscope.alerts.prometheus import Prometheus, Server
from rankscope.runs.errors import MissingError, RankscopeError

START_S: Final = 60.0
STARTS: Final = 3
"""Another may take the port that was free a moment ago."""

_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Programs:
    """Where they are."""

    prometheus: str
    promtool: str


def find_programs() -> Programs:
    """Raises ``MissingError``."""
    found = {name: shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin") for name in ("prometheus", "promtool")}
    for name, path in found.items():
        if path is None:
            raise MissingError(f"replaying rankscope's own rules needs the program {name!r}: apt-get install prometheus")
    return Programs(str(found["prometheus"]), str(found["promtool"]))


class OwnPrometheus:
    """Its data lie in ``folder``. ``lookback_s``: a series without a new sample for so long is gone."""

    def __init__(self, programs: Programs, folder: Path, *, lookback_s: float) -> None:
        self._programs = programs
        self._folder = folder
        self._lookback_s = lookback_s

    def remember(self, write: Callable[[TextIO], object]) -> None:
        """Add samples, as OpenMetrics text with times. Not while it runs. Raises ``OSError`` and ``RankscopeError``."""
        text = self._folder / "samples.txt"
        with text.open("w", encoding="utf-8") as file:
            write(file)
            if not file.tell():
                return
            file.write("# EOF\n")
        make = [self._programs.promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(self._folder / "data")]
        done = subprocess.run(make, capture_output=True, text=True, errors="replace", check=False)
        text.unlink()
        if done.returncode:
            raise RankscopeError(f"promtool cannot take the run's metrics: {_reason(done.stderr)}")

    @contextmanager
    def running(self, *, rules: str | None = None) -> Iterator[Prometheus]:
        """A client of it, evaluating the rule file ``rules``. Raises ``RankscopeError`` when it does not start."""
        config = self._folder / "prometheus.yml"
        lines = ["global: {evaluation_interval: 15s}"]
        if rules is not None:
            (self._folder / "replayed.rules.yaml").write_text(rules, encoding="utf-8")
            lines.append("rule_files: [replayed.rules.yaml]")
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        process, url = self._start(config)
        try:
            yield Prometheus(Server(url=url), ours=True)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, config: Path) -> tuple[subprocess.Popen[bytes], str]:
        log = self._folder / "log"
        for _ in range(STARTS):
            url = f"127.0.0.1:{_free_port()}"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [
                        self._programs.prometheus,
                        f"--config.file={config}",
                        f"--storage.tsdb.path={self._folder / 'data'}",
                        "--storage.tsdb.retention.time=100y",  # a run may be of any age
                        f"--query.lookback-delta={self._lookback_s * 1000:.0f}ms",
                        f"--web.listen-address={url}",
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    preexec_fn=end_with_parent,  # noqa: PLW1509  nothing but a system call
                )
            if self._is_ready(process, f"http://{url}"):
                return process, f"http://{url}"
        raise RankscopeError(f"prometheus does not start: {_reason(log.read_text(errors='replace'))}")

    @staticmethod
    def _is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
        """Whether it answers; one that does not in time, or for which nobody waits any more, is ended."""
        patience = time.monotonic() + START_S
        is_ready = False
        try:
            with httpx.Client(timeout=1.0, trust_env=False) as client:
                while not is_ready and process.poll() is None and time.monotonic() < patience:
                    time.sleep(0.05)
                    with suppress(httpx.TransportError):
                        is_ready = client.get(f"{url}/-/ready").status_code == httpx.codes.OK and process.poll() is None
        finally:
            if not is_ready:
                process.kill()
                process.wait()
        return is_ready


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _reason(text: str) -> str:
    """The last line that speaks of an error, of what a program left behind."""
    lines = [line for line in text.splitlines() if line.strip()] or ["it does not say why"]
    return plain(([line for line in lines if "err" in line.lower()] or lines)[-1])[-_SHOWN:]

"""A fleet in a separate process, and the queries of the tests."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.exporter.fake_driver import uuid_of
from tests.processes import is_running
from tests.waiting import wait_until

ZERO, ONE = uuid_of(0), uuid_of(1)
DEADLINE_S = 120


StartFleet = Callable[..., "FleetHost"]


class FleetHost:
    """The process that runs the fleet."""

    def __init__(self, process: subprocess.Popen[str], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr

    @property
    def log(self) -> str:
        return self._stderr.read_text()

    def lines(self, words: str) -> list[str]:
        """Return the lines of the log with these words."""
        return [line for line in self.log.splitlines() if words in line]

    def ask(self, *command: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        readable, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert readable, f"no answer to {command}\n{self.log}"
        line = self.process.stdout.readline()
        assert line, self.log
        return json.loads(line)

    def state(self) -> Any:
        return self.ask("state")

    def gpu(self, uuid: str) -> Any:
        return next((gpu for gpu in self.state()["gpus"] if gpu["identity"]["uuid"] == uuid), None)

    def until(self, condition: Callable[[Any], object]) -> Any:
        """Wait for a state that meets the condition and return it."""
        states: list[Any] = []

        def holds() -> object:
            states[:] = [self.state()]
            return condition(states[0])

        wait_until(holds, details=lambda: f"{states}\n{self.log}")
        return states[0]

    def until_up(self, *uuids: str) -> Any:
        return self.until(lambda state: {gpu["identity"]["uuid"] for gpu in state["gpus"] if gpu["up"]} == set(uuids))

    def until_down(self, uuid: str, reason: str, detail: str = "") -> Any:
        """Wait until the GPU is down with this reason and detail, and return the GPU."""
        state = self.until(lambda state: any(_is_down(gpu, uuid, reason) and detail in gpu["detail"] for gpu in state["gpus"]))
        return next(gpu for gpu in state["gpus"] if gpu["identity"]["uuid"] == uuid)

    def until_logged(self, words: str) -> None:
        self.until(lambda _: words in self.log)

    def until_sampled(self, uuid: str, seconds: float) -> Any:
        """Wait until the GPU has a sample that is newer by ``seconds``, and return the state."""
        before = self.gpu(uuid)["sample"]["monotonic_s"]
        return self.until(
            lambda state: any(
                gpu["identity"]["uuid"] == uuid and gpu["up"] and gpu["sample"]["monotonic_s"] > before + seconds
                for gpu in state["gpus"]
            )
        )

    def children(self) -> dict[str, int]:
        """Return the processes that call the driver: pid by name."""
        nursery = self.ask("info")["nursery"]
        pids = map(int, Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split())
        named = {}
        for pid in pids:
            with contextlib.suppress(OSError):
                named[Path(f"/proc/{pid}/comm").read_text().strip()] = pid
        return named

    def worker(self, index: int) -> int:
        return self.children()[f"rs-gpu-{0x1A + index:02x}:00.0"]

    def stop(self) -> None:
        self.ask("stop")
        self.process.wait(DEADLINE_S)


def _is_down(gpu: Any, uuid: str, reason: str) -> bool:
    return bool(gpu["identity"]["uuid"] == uuid and not gpu["up"] and gpu["reason"] == reason)


def until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_running, pids)), details=lambda: list(filter(is_running, pids)))

"""``start_fleet``: real processes over the real nvidia-ml-py and the fake driver, with short time-outs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.exporter.fake_driver import FakeDriver
from tests.exporter.fleet.hosted_fleet import FleetHost, StartFleet

HOST = Path(__file__).with_name("fleet_host.py")
TIMEOUTS = {
    "call_s": 0.5,
    "open_s": 0.5,
    "die_s": 0.3,
    "end_s": 0.5,
    "retry_s": [0.1, 0.2],
    "survey_s": 0.2,
    "survey_retry_s": [0.1],
    "watch_s": 0.05,
    "stale_driver_s": 0.1,
}


@pytest.fixture
def start_fleet(fake_nvml: FakeDriver, tmp_path: Path) -> Iterator[StartFleet]:
    """Function ``start_fleet(state_dir=…, pci_root=…, timeouts={…})`` that runs a fleet until the test ends."""
    with contextlib.ExitStack() as stack:
        number = iter(range(100))

        def start(*, timeouts: dict[str, object] | None = None, **options: object) -> FleetHost:
            defaults = {"interval_s": 0.1, "pci_root": str(tmp_path / "no-pci"), "timeouts": {**TIMEOUTS, **(timeouts or {})}}
            stderr = tmp_path / f"fleet-{next(number)}.log"
            with stderr.open("w") as log:
                process = subprocess.Popen(
                    [sys.executable, str(HOST), json.dumps({**defaults, **options})],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, **fake_nvml.env},
                )
            stack.enter_context(process)
            stack.callback(process.kill)
            host = FleetHost(process, stderr)
            assert host.ask("wait", 120) is True, host.log
            return host

        yield start

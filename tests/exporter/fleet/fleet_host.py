"""A process that runs a fleet, for tests: options as JSON in argv, one command per line of stdin, one answer per line."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from rankscope.exporter.fleet.nursery import Nursery


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    nursery = Nursery.start()
    from rankscope.exporter.catalogue import COLLECTORS
    from rankscope.exporter.fleet import nvml_fleet
    from rankscope.exporter.fleet.inventory import Inventory
    from rankscope.exporter.fleet.timeouts import FleetTimeouts

    ends: list[tuple[int, str]] = []
    xids: list[tuple[str, int]] = []
    resets: list[str] = []
    state_dir = options.get("state_dir")
    nvml_fleet._RELEASE_S = options.get("release_s", nvml_fleet._RELEASE_S)  # type: ignore[misc]
    fleet = nvml_fleet.NvmlFleet(
        nursery,
        collectors=frozenset(name for name, collector in COLLECTORS.items() if collector.default_on),
        interval_s=options["interval_s"],
        inventory=Inventory(Path(state_dir) if state_dir else None, forget_after_s=options.get("forget_after_s", 1e9)),
        expected_gpus=options.get("expected_gpus"),
        on_xid=lambda gpu, event: xids.append((gpu.uuid, event.xid)),
        on_reset=lambda gpu, _monotonic_s: resets.append(gpu.uuid),
        on_fatal=lambda status, why: ends.append((status, why)),
        pci_root=Path(options["pci_root"]),
        timeouts=msgspec.convert(options["timeouts"], FleetTimeouts),
    )
    fleet.start()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command in ("xids", "resets"):
            print(json.dumps(xids if command == "xids" else resets), flush=True)
            continue
        print(json.dumps(_answer(fleet, nursery, ends, command, arguments)), flush=True)
        if command == "stop":
            break


def _answer(fleet: Any, nursery: Nursery, ends: list[tuple[int, str]], command: str, arguments: list[Any]) -> Any:
    try:
        if command == "state":
            began = time.monotonic()
            state = fleet.state()
            took_s = time.monotonic() - began
            readings = {gpu.identity.uuid: len(gpu.sample.readings) for gpu in state.gpus if gpu.sample is not None}
            return {**msgspec.to_builtins(state), "readings": readings, "ends": ends, "took_s": took_s}
        if command == "info":
            return {"nursery": nursery.pid, "fds": len(list(Path("/proc/self/fd").iterdir())), "modules": sorted(sys.modules)}
        if command == "release":
            fleet.release(arguments[0], ttl_s=arguments[1])
        elif command == "resume":
            fleet.resume(arguments[0])
        elif command == "wait":
            return fleet.wait_for_first_pass(arguments[0])
        elif command == "stop":
            began = time.monotonic()
            fleet.stop()
            return time.monotonic() - began
    except (KeyError, TimeoutError) as error:
        return type(error).__name__
    return None


main()

"""Write the files that a release leaves on users' machines, for the test that later versions read them.

usage: python scripts/released_formats.py VERSION

Records a real job of two CPU ranks, lets the watcher raise an alert that it cannot deliver, and keeps an exporter's state. All is
written below tests/data/released/VERSION, with invented names in place of those of this machine. Run it once for each release,
and again only until that version is released.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

import rankscope.cli.demo.train as training
from rankscope.base.process import boot_id
from rankscope.exporter.fleet.inventory import Inventory
from rankscope.exporter.source import GpuIdentity, XidEvent
from rankscope.exporter.xid.journal import XidJournal
from rankscope.runs.durations import DurationBlock, DurationGroup
from rankscope.runs.paths import Stream, attempt_dir, host_dir, rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import HardwareSample, PlannedWindow, StackLine, StackSamples, StepEvent
from rankscope.runs.segment_writer import JsonLinesWriter

FOLDER: Final = Path(__file__).resolve().parents[1] / "tests" / "data" / "released"
RUN: Final = Path("/runs/train")
"""Path in the kept files in place of the temporary one."""
JOB: Final = ("--steps", "24", "--width", "64", "--length", "16", "--fault", "input:1", "--fault-ms", "40")
TARGETS: Final = '[[target]]\nname = "oncall"\nurl = "http://127.0.0.1:9/hook"\n'
"""A target that nothing listens at: its message waits."""
GPUS: Final = [GpuIdentity(f"GPU-{index}", index, "NVIDIA H100", f"00000000:{index + 1:02x}:00.0") for index in range(2)]


def main() -> None:
    """Write a run, a store of alerts and an exporter's state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", metavar="VERSION", help="version that is about to be released, as 0.1.0")
    release = parser.parse_args().version
    release_folder = FOLDER / release
    shutil.rmtree(release_folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "train"
        _record(run)
        _replace(run, {version("rankscope"): release, socket.gethostname(): "node0", boot_id(): "boot-0"})
        _add_rare_records(run)
        _raise_an_alert(run, Path(temporary) / "alerts")
        _replace(run, {str(run): str(RUN)})
        shutil.copytree(run, release_folder / "run")
        store = _store(Path(temporary) / "alerts" / "alerts.sqlite", {str(run): str(RUN), boot_id(): "boot-0"})
    (release_folder / "alerts.sqlite.gz").write_bytes(store)
    _exporter_state(release_folder / "exporter")
    total = sum(path.stat().st_size for path in release_folder.rglob("*") if path.is_file())
    print(f"{release_folder}: {total / 1e3:.0f} kB")


def _record(run: Path) -> None:
    window = ("--window-first", "8", "--window-every", "0", "--window-steps", "3")
    recorder = (
        sys.executable,
        "-m",
        "rankscope",
        "run",
        "--run-dir",
        run,
        *window,
        "--no-hardware",
        "--no-stacks",
        "--no-verdict",
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([*recorder, "--", *torchrun, training.__file__, *JOB], env=environment, check=True, capture_output=True)
    file = run / "run.json"
    launcher = f"torchrun --nproc-per-node 2 train.py {' '.join(JOB)}"
    file.write_text(re.sub(r'"launcher": ".*"', f'"launcher": "{launcher}"', file.read_text()))


def _add_rare_records(run: Path) -> None:
    """Add records of streams for which the job would need GPUs, NCCL, py-spy, tags or a capture."""
    start_ns = RunReader(run).info.start_unix_ns
    line = StackLine(file="train.py", line=12, function="load", samples=18, call="time.sleep", phase="data")
    stack = StackSamples(
        start_unix_ns=start_ns, end_unix_ns=start_ns + 2 * 10**9, first_step=2, last_step=20, samples=20, lines=[line]
    )
    _append(rank_dir(run, 0, 1), "stacks", stack)
    _append(rank_dir(run, 0, 0), "events", StepEvent(step=5, end_unix_ns=start_ns, tags=["eval"], sections_us={"log": 3.0}))
    _append(attempt_dir(run, 0), "plan", PlannedWindow(first=8, steps=3, reason="schedule", chosen_unix_ns=start_ns))
    for rank in (0, 1):
        group = DurationGroup(name="0", size=2, ranks=[0, 1])
        block = DurationBlock(
            source="flight_recorder",
            start_unix_ns=start_ns,
            end_unix_ns=start_ns + 90_000,
            groups=[group],
            ops=["all_reduce"],
            group=[0, 0],
            op=[0, 0],
            number=[1, 2],
            size=[1024, 1024],
            issued_us=[0, 50],
            ended_us=[40, 90],
            duration_us=[20.0, 21.0],
            flags=[0, 0],
        )
        _append(rank_dir(run, 0, rank), "durations", block)
    samples = [_gpu_sample(start_ns + second * 10**9, gpu) for second in range(3) for gpu in GPUS]
    _append(host_dir(run, "node0"), "gpu", *samples)


def _gpu_sample(unix_ns: int, gpu: GpuIdentity) -> HardwareSample:
    return HardwareSample(
        unix_ns=unix_ns,
        gpu_uuid=gpu.uuid,
        gpu_index=gpu.index,
        simulated=True,
        throttle_reasons=[],
        utilization_ratio=0.5,
        temperature_celsius=60.0,
        power_watts=300.0,
        sm_clock_hertz=1.98e9,
    )


def _append(folder: Path, stream: Stream, *records: object) -> None:
    writer = JsonLinesWriter(folder, stream)
    writer.append(*records)  # type: ignore[arg-type]
    writer.close()


def _raise_an_alert(run: Path, state: Path) -> None:
    targets = state.with_name("alerts.toml")
    targets.write_text(TARGETS)
    watch = (sys.executable, "-m", "rankscope", "alerts", "watch", run, "--once", "--state", state, "--config", targets)
    done = subprocess.run(watch, capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"an alert that is not delivered is expected\n{done.stdout}{done.stderr}"


def _store(file: Path, names: dict[str, str]) -> bytes:
    """Return the store, compressed: most of a small SQLite file is empty pages."""
    with sqlite3.connect(file) as database:
        for table, column in (("messages", "body"), ("alerts", "entry"), ("active_runs", "run"), ("meta", "value")):
            for old, new in names.items():
                text = f"replace(CAST({column} AS TEXT), ?, ?)"
                changed = f"CAST({text} AS BLOB)" if column in {"body", "entry"} else text
                database.execute(f"UPDATE {table} SET {column} = {changed}", (old, new))  # noqa: S608  # names of this function
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("VACUUM")  # removes the old contents
    database.close()
    return gzip.compress(file.read_bytes(), mtime=0)


def _exporter_state(folder: Path) -> None:
    inventory = Inventory(folder)
    for gpu in GPUS:
        inventory.see(gpu)
    inventory.pass_time(7200.0, frozenset({GPUS[0].uuid}))
    inventory.save()
    inventory.wait(60.0)
    journal = XidJournal(folder, job_at=lambda _: "4711", boot_id="boot-0", now=lambda: 1.79e9, monotonic=lambda: 5000.0)
    for code in (79, 79, 31):
        journal.record(GPUS[1].uuid, GPUS[1].pci_bus_id, XidEvent(1.79e9, code))
    journal.close()
    for lock in folder.glob("*.lock"):
        lock.unlink()


def _replace(run: Path, names: dict[str, str]) -> None:
    for file in (*run.rglob("*.json"), *run.rglob("*.jsonl")):
        text = file.read_text()
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"') if old != str(run) else text.replace(old, new)
        file.write_text(text)


if __name__ == "__main__":
    main()

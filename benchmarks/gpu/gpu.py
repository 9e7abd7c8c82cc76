"""Everything that a GPU makes possible: the tests in tests/gpu, and the benchmarks that can run on a device.

Runs them one after the other, since they would slow each other, and writes ``benchmarks/results/DATE-gpu.json``: device, driver,
versions of torch, CUDA and NCCL, the outcome of each test, and the figures and budgets of each benchmark. A part that fails is
in the result, too, and the exit status is then 1. Without a GPU nothing runs, nothing is written, and the exit status is 0.

    python -m benchmarks.gpu.gpu [--without-tests] [--nccl-inspector PLUGIN]        (needs .venv; make gpu)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.common.result import environment

from rankscope.cli.verbs.nvml import ask_nvml

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/gpu"
BENCHMARKS = {
    "overhead": ["-m", "benchmarks.recorder.overhead", "--device", "cuda"],
    "window_cost": ["-m", "benchmarks.recorder.window_cost", "--device", "cuda"],
    "nccl": ["-m", "benchmarks.gpu.gpu_nccl"],
}
MOST_SECONDS = 3600
"""Time after which a part has failed: a GPU may hang."""


def reason_to_skip() -> str | None:
    """Return why nothing here can run on a GPU, or ``None`` if it can."""
    answer = ask_nvml()
    if not answer.gpus:
        return f"no NVIDIA GPU on this machine (NVML: {answer.reason or 'it sees none'})"
    if find_spec("torch") is None:
        return "torch is not installed (make install)"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA (CONTRIBUTING.md has the command for a CUDA build)"
    return None if torch.cuda.is_available() else f"torch {torch.__version__} cannot use the GPU of driver {answer.driver}"


def gpu_environment(**more: object) -> dict[str, object]:
    """Return what the figures depend on, with the device, its driver, and the versions of CUDA and of NCCL that torch has."""
    import torch

    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None  # type: ignore[no-untyped-call]
    return environment(
        "rankscope",
        "torch",
        device=torch.cuda.get_device_name(0),
        devices=torch.cuda.device_count(),
        driver=ask_nvml().driver,
        cuda=torch.version.cuda,
        nccl=None if nccl is None else ".".join(map(str, nccl)),
        **more,
    )


def run(command: list[str], **options: Any) -> tuple[str, str | None]:
    """Run a part with this Python. Return its standard output, and why it failed, if it did."""
    print(f"== {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        completed = subprocess.run(
            [sys.executable, *command], cwd=ROOT, text=True, check=False, timeout=MOST_SECONDS, stdout=subprocess.PIPE, **options
        )
    except subprocess.TimeoutExpired:
        return "", f"not over after {MOST_SECONDS} s"
    return completed.stdout, f"exit status {completed.returncode}" if completed.returncode else None


def test() -> dict[str, Any]:
    """Run the tests. Return the number of each outcome, and the names of those that failed or were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        out, failure = run(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", TESTS, f"--junitxml={report}"])
        print(out, file=sys.stderr)
        result: dict[str, Any] = {"failure": failure, "passed": 0, "failed": [], "skipped": []}
        for case in ET.parse(report).iter("testcase") if report.exists() else ():
            name = f"{case.get('classname')}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                result["failed"].append(name)
            elif (skipped := case.find("skipped")) is not None:
                result["skipped"].append(f"{name}: {skipped.get('message')}")
            else:
                result["passed"] += 1
    return result


def measure(command: list[str]) -> dict[str, Any]:
    """Run a benchmark. Return what it prints, or why it failed; a benchmark also ends with status 1 if it misses a budget."""
    out, failure = run(command)
    try:
        result: dict[str, Any] = json.loads(out)
    except ValueError:
        return {"failure": failure or "it printed no result", "budgets": []}
    return result


def main() -> int:
    """Run all parts and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-tests", action="store_true")
    parser.add_argument("--nccl-inspector", type=Path, help="NCCL Inspector's plugin, for the jobs that need it")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the result")
    args = parser.parse_args()
    if (reason := reason_to_skip()) is not None:
        parts = ", ".join([TESTS, *(" ".join(command) for command in BENCHMARKS.values())])
        print(f"Skipped: {reason}. What needs one and did not run: {parts}. No result was written.", file=sys.stderr)
        return 0
    result: dict[str, Any] = {"environment": gpu_environment()}
    if not args.without_tests:
        result["tests"] = test()
    commands = {name: [*command] for name, command in BENCHMARKS.items()}
    if args.nccl_inspector is not None:
        commands["nccl"] += ["--plugin", str(args.nccl_inspector)]
    result["benchmarks"] = {name: measure(command) for name, command in commands.items()}
    result["budgets"] = [
        {**row, "name": f"{name}: {row['name']}"} for name, value in result["benchmarks"].items() for row in value["budgets"]
    ]
    path = args.results / f"{time.strftime('%Y-%m-%d')}-gpu.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
    failures = [part["failure"] for part in (result.get("tests", {}), *result["benchmarks"].values()) if part.get("failure")]
    exceeded = [row["name"] for row in result["budgets"] if not row["ok"]]
    for line in (*failures, *(f"over its budget: {name}" for name in exceeded)):
        print(line, file=sys.stderr)
    return 1 if failures or exceeded else 0


if __name__ == "__main__":
    sys.exit(main())

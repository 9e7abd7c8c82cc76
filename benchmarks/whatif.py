"""`rankscope whatif` against the analyser that its authors published: prints one JSON object.

The same answer from the same file, S, M_W and M_S among it, by both: for that the analyser needs three programs (wia.py,
compute_mw.py, compute_ms.py), one after the other. Repeats take turns; medians.

    git clone https://github.com/ByteDance-Seed/StragglerAnalysis      its commit 8efcd7f was measured
    python -m venv peer && peer/bin/pip install 'pandas<3' numpy pyarrow tqdm pyyaml ujson
    python benchmarks/whatif.py --analyser StragglerAnalysis --analyser-python peer/bin/python

Without --analyser only our side is measured, and there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

LEAST_FASTER: Final = 5.0
"""Times that the analyser must take, of ours."""

DATA: Final = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "whatif"

OURS: Final = """
import sys, time
from pathlib import Path
from rankscope.analysis.whatif.engine import whatif
from rankscope.analysis.whatif import operations_answer
begin = time.perf_counter()
whatif([Path(sys.argv[1])])
print(time.perf_counter() - begin)
"""

THEIRS: Final = """
import logging, sys, time, json
logging.disable()
import yaml
from analyzer import wia, compute_ms, compute_mw
from analyzer.metatypes import JobMeta
folder, name, out = sys.argv[1:]
meta = JobMeta(**yaml.safe_load(open(f"{folder}/meta-{name}.yaml")))
begin = time.perf_counter()
result = wia.WhatIfAnalyzer(f"{folder}/trace-{name}.parquet", root=out, steps=None).analyze(meta)
wia_s = time.perf_counter() - begin
row = json.loads(open(f"{out}/published.json").read())
compute_mw.work(out, name, dict(row))
compute_ms.work(out, name, dict(row))
print(wia_s, time.perf_counter() - begin)
"""


class Analyser:
    """The published analyser on one sample."""

    def __init__(self, checkout: Path, python: str, name: str, out: Path) -> None:
        self.checkout, self.python, self.name, self.out = checkout, python, name, out
        self.trace, self.meta = DATA / f"trace-{name}.parquet", DATA / f"meta-{name}.yaml"
        self.result = out / f"{name}.json"

    def _run(self, *args: str) -> str:
        done = subprocess.run(
            [self.python, *args],
            check=True,
            capture_output=True,
            text=True,
            cwd=self.checkout,
            # Some of its modules are imported by their bare names.
            env={**os.environ, "PYTHONPATH": f"{self.checkout}{os.pathsep}{self.checkout / 'analyzer'}"},
        )
        return done.stdout

    def slowdowns(self) -> None:
        """Everything but M_W and M_S."""
        folders = ("--dump-dir", os.fspath(self.out), "--root", os.fspath(self.out))
        self._run("analyzer/wia.py", "--metadata", os.fspath(self.meta), "--trace", os.fspath(self.trace), *folders)

    def shares(self) -> None:
        """M_W and M_S, from what ``slowdowns`` left."""
        folders = ("--dump-dir", os.fspath(self.out), "--root", os.fspath(self.out), "--analysis-result", os.fspath(self.result))
        for program in ("compute_mw", "compute_ms"):
            self._run(f"analyzer/{program}.py", "--trial", self.name, *folders)

    def inside(self) -> tuple[float, float]:
        """Seconds of the first program and of all three in one process, imports apart."""
        (self.out / "published.json").write_bytes(self.result.read_bytes())
        first, everything = self._run("-c", THEIRS, os.fspath(DATA), self.name, os.fspath(self.out)).split()
        return float(first), float(everything)

    def answer(self) -> tuple[float, float, float]:
        """S, M_W and M_S."""
        shares = [
            json.loads((self.out / f"{kind}-{self.name}.json").read_text())[key] for kind, key in (("mw", "Mw"), ("ms", "Ms"))
        ]
        return json.loads(self.result.read_text())["blocking_slowdown"], shares[0], shares[1]


def ours(name: str) -> dict[str, Any]:
    """The answer of the whole command."""
    trace = os.fspath(DATA / f"trace-{name}.parquet")
    done = subprocess.run(
        [sys.executable, "-m", "rankscope", "whatif", trace, "--format", "json"], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def timed(call: Any, *args: Any) -> tuple[float, Any]:
    """Seconds, and what came back."""
    begin = time.perf_counter()
    found = call(*args)
    return time.perf_counter() - begin, found


def inside(name: str) -> float:
    """Seconds of load and analysis in a process of its own, imports apart."""
    trace = os.fspath(DATA / f"trace-{name}.parquet")
    done = subprocess.run([sys.executable, "-c", OURS, trace], check=True, capture_output=True, text=True)
    return float(done.stdout)


def measure(name: str, times: int, analyser: Analyser | None) -> dict[str, list[float]]:
    """Seconds of each thing, by turns."""
    taken: dict[str, list[float]] = {}
    for _ in range(times):
        whole, answer = timed(ours, name)
        taken.setdefault("ours_process_s", []).append(whole)
        taken.setdefault("ours_inside_s", []).append(inside(name))
        if analyser is None:
            continue
        first, _ = timed(analyser.slowdowns)
        rest, _ = timed(analyser.shares)
        taken.setdefault("theirs_first_process_s", []).append(first)
        taken.setdefault("theirs_processes_s", []).append(first + rest)
        alone, everything = analyser.inside()
        taken.setdefault("theirs_first_inside_s", []).append(alone)
        taken.setdefault("theirs_inside_s", []).append(everything)
        same = np.allclose([answer["slowdown"], answer["m_worker"], answer["m_stage"]], analyser.answer(), rtol=1e-5, atol=1e-5)
        assert same, "the answers differ"
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--analyser", type=Path, help="checkout of ByteDance-Seed/StragglerAnalysis")
    parser.add_argument("--analyser-python", type=Path, default=Path(sys.executable), help="interpreter that has what it imports")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    budgets: list[dict[str, Any]] = []
    for name in ("AR", "ST"):
        with tempfile.TemporaryDirectory() as out:
            analyser = None
            if args.analyser is not None:
                analyser = Analyser(args.analyser.resolve(), os.fspath(args.analyser_python.absolute()), name, Path(out))
            taken = measure(name, args.times, analyser)
        figures[name] = {what: round(statistics.median(values), 4) for what, values in taken.items()}
        if analyser is None:
            continue
        for what, slower, faster in (
            ("process", "theirs_processes_s", "ours_process_s"),
            ("process_first_program", "theirs_first_process_s", "ours_process_s"),
            ("inside", "theirs_inside_s", "ours_inside_s"),
            ("inside_first_program", "theirs_first_inside_s", "ours_inside_s"),
        ):
            ratio = statistics.median(a / b for a, b in zip(taken[slower], taken[faster], strict=True))
            figures[name][f"{what}_ratio"] = round(ratio, 2)
            if name == "AR" and what != "process_first_program":
                budgets.append(
                    {"name": f"{what}_ratio", "value": round(ratio, 2), "limit": LEAST_FASTER, "ok": ratio >= LEAST_FASTER}
                )
    environment = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "cpus": os.cpu_count(),
        "times": args.times,
    }
    print(json.dumps({"figures": figures, "budgets": budgets, "environment": environment}, indent=2))


if __name__ == "__main__":
    main()

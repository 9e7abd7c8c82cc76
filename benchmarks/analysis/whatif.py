"""`rankscope whatif` against the analyser that its authors published, and on the step records of a run. Prints one JSON object.

**Traced operations.** Both tools read the same Parquet file and the same small file of metadata, and their answers are compared.
The analyser is three programs: wia.py computes S and the slowdowns by data-parallel rank, stage and operation; compute_mw.py and
compute_ms.py add M_W and M_S, from files that wia.py writes to a given folder. Ours is one program, which computes all of that
and the slowdown of each rank. It is measured against

- the whole answer: all three programs, one after the other;
- the first program alone, which does less than ours, without the files for the other two.

Each is timed as whole processes, and as load and analysis alone, after the imports. Repeats take turns; ratios are medians. The
analyser is public:

    git clone https://github.com/ByteDance-Seed/StragglerAnalysis && git -C StragglerAnalysis checkout 8efcd7f
    python -m venv peer && peer/bin/pip install 'pandas<3' numpy pyarrow tqdm pyyaml ujson
    python -m benchmarks.analysis.whatif --analyser StragglerAnalysis --analyser-python peer/bin/python

Without --analyser only our side is measured, and there is nothing to compare with. The samples are in its folder `data`.

**A run.** The whole command on a run of 1,024 ranks and 10,000 steps: seconds, processor time and peak memory. The run is written
first, which takes minutes and 2.2 GB; --run uses an existing one, as `common/make_run.py` writes it.

    python -m benchmarks.analysis.whatif --part run [--run RUN | --ranks 1024 --steps 10000] [--times 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.common.make_run import Shape, write_run
from benchmarks.common.result import budget, environment, finish

LEAST_FASTER: Final = 5.0
"""Minimum ratio of the analyser's time to ours."""
RUN_SECONDS: Final = 20.0
RUN_PEAK_MIB: Final = 1024.0
"""Budgets of a run of 1,024 ranks and 10,000 steps, on two cores."""

DATA: Final = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "whatif"

OURS: Final = """
import sys, time
from pathlib import Path
from rankscope.analysis.whatif.whatif_of_paths import whatif
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
trace = f"{folder}/trace-{name}.parquet"
begin = time.perf_counter()
wia.WhatIfAnalyzer(trace, root=None, steps=None).analyze(meta)
first_s = time.perf_counter() - begin
row = json.loads(open(f"{out}/{name}.json").read())
begin = time.perf_counter()
wia.WhatIfAnalyzer(trace, root=out, steps=None).analyze(meta)
compute_mw.work(out, name, dict(row))
compute_ms.work(out, name, dict(row))
print(first_s, time.perf_counter() - begin)
"""

VERSIONS: Final = """
import json, platform, numpy, pandas, pyarrow
versions = {module.__name__: module.__version__ for module in (numpy, pandas, pyarrow)}
print(json.dumps({"python": platform.python_version(), **versions}))
"""

COMPARED: Final = {
    # ratio: (theirs, ours)
    "process": ("theirs_process_s", "ours_process_s"),
    "process_first_program": ("theirs_first_process_s", "ours_process_s"),
    "inside": ("theirs_inside_s", "ours_inside_s"),
    "inside_first_program": ("theirs_first_inside_s", "ours_inside_s"),
}


class Analyser:
    """The published analyser on one sample."""

    def __init__(self, checkout: Path, python: str, name: str, out: Path) -> None:
        self.checkout, self.python, self.name, self.out = checkout, python, name, out
        self.trace, self.meta = DATA / f"trace-{name}.parquet", DATA / f"meta-{name}.yaml"
        self.result = out / f"{name}.json"

    def _run(self, *args: str) -> str:
        return run(
            [self.python, *args],
            cwd=self.checkout,
            # Some of its modules are imported by their bare names.
            env={**os.environ, "PYTHONPATH": f"{self.checkout}{os.pathsep}{self.checkout / 'analyzer'}"},
        )

    def slowdowns(self, *folders: str) -> None:
        """Compute everything except M_W and M_S; the input of the other two programs is written to ``--root``."""
        files = ("--metadata", os.fspath(self.meta), "--trace", os.fspath(self.trace), "--dump-dir", os.fspath(self.out))
        self._run("analyzer/wia.py", *files, *folders)

    def everything(self) -> None:
        """Run all three programs."""
        self.slowdowns("--root", os.fspath(self.out))
        folders = ("--dump-dir", os.fspath(self.out), "--root", os.fspath(self.out), "--analysis-result", os.fspath(self.result))
        for program in ("compute_mw", "compute_ms"):
            self._run(f"analyzer/{program}.py", "--trial", self.name, *folders)

    def inside(self) -> tuple[float, float]:
        """Return the seconds of the first program and of all three in one process, without imports."""
        first, everything = self._run("-c", THEIRS, os.fspath(DATA), self.name, os.fspath(self.out)).split()
        return float(first), float(everything)

    def about(self) -> dict[str, str]:
        """Return the commit of the analyser, and the versions of Python and its packages."""
        commit = run(["git", "-C", os.fspath(self.checkout), "rev-parse", "--short", "HEAD"]).strip()
        return {"commit": commit, **json.loads(self._run("-c", VERSIONS))}

    def answer(self) -> tuple[float, float, float]:
        """Return S, M_W and M_S."""
        shares = [
            json.loads((self.out / f"{kind}-{self.name}.json").read_text())[key] for kind, key in (("mw", "Mw"), ("ms", "Ms"))
        ]
        return json.loads(self.result.read_text())["blocking_slowdown"], shares[0], shares[1]


def run(command: list[str], **options: Any) -> str:
    """Run a command and return its output. If it fails, exit with its standard error."""
    completed: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options
    )
    if completed.returncode:
        sys.exit(f"{command}: status {completed.returncode}\n{completed.stderr}")
    return completed.stdout


def ours(name: str) -> dict[str, Any]:
    """Return the answer of the whole command."""
    trace = os.fspath(DATA / f"trace-{name}.parquet")
    result: dict[str, Any] = json.loads(run([sys.executable, "-m", "rankscope", "whatif", trace, "--format", "json"]))
    return result


def timed(call: Any, *args: Any) -> tuple[float, Any]:
    """Return the seconds of a call, and its result."""
    begin = time.perf_counter()
    result = call(*args)
    return time.perf_counter() - begin, result


def inside(name: str) -> float:
    """Return the seconds of load and analysis in a process of its own, without imports."""
    return float(run([sys.executable, "-c", OURS, os.fspath(DATA / f"trace-{name}.parquet")]))


def measure(name: str, times: int, analyser: Analyser | None) -> dict[str, list[float]]:
    """Return the seconds of each measurement; the repeats take turns. Exits if the answers differ."""
    taken: dict[str, list[float]] = {}
    for _ in range(times):
        process_s, answer = timed(ours, name)
        taken.setdefault("ours_process_s", []).append(process_s)
        taken.setdefault("ours_inside_s", []).append(inside(name))
        if analyser is None:
            continue
        taken.setdefault("theirs_first_process_s", []).append(timed(analyser.slowdowns)[0])
        taken.setdefault("theirs_process_s", []).append(timed(analyser.everything)[0])
        first, everything = analyser.inside()
        taken.setdefault("theirs_first_inside_s", []).append(first)
        taken.setdefault("theirs_inside_s", []).append(everything)
        own_answer = [answer["slowdown"], answer["m_worker"], answer["m_stage"]]
        if not np.allclose(own_answer, analyser.answer(), rtol=1e-5, atol=1e-5):
            sys.exit(f"the answers differ: S, M_W and M_S are {own_answer}, the analyser's {analyser.answer()}")
    return taken


def measure_run(run_folder: Path, times: int) -> dict[str, float]:
    """Return medians of the whole command: seconds, processor time, and peak memory."""
    command = [sys.executable, "-m", "rankscope", "whatif", os.fspath(run_folder), "--format", "json"]
    taken: list[tuple[float, float, float]] = []
    answer: dict[str, Any] = {}
    for _ in range(times):
        begin = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            answer = json.loads(process.stdout.read() or "{}")
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if answer.get("status") != "ok":
            sys.exit(f"{command}: status {process.returncode}, {answer.get('summary')}")
        taken.append((time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    seconds, cpu, peak = (round(statistics.median(column), 2) for column in zip(*taken, strict=True))
    source = answer["source"]
    return {"ranks": source["ranks"], "steps": source["steps"], "process_s": seconds, "process_cpu_s": cpu, "peak_mib": peak}


def run_part(args: argparse.Namespace) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return figures and budgets of a run, which is written first unless it is given."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.run or write_run(Path(scratch) / "run", Shape(ranks=args.ranks, steps=args.steps))
        figures = measure_run(folder, args.times)
    return figures, [
        budget("run: whole process, seconds", figures["process_s"], RUN_SECONDS),
        budget("run: peak memory, MiB", figures["peak_mib"], RUN_PEAK_MIB),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--analyser", type=Path, help="checkout of ByteDance-Seed/StragglerAnalysis")
    parser.add_argument("--analyser-python", type=Path, default=Path(sys.executable), help="interpreter that has what it imports")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--part", choices=("operations", "run"), action="append", help="what to measure; both by default")
    parser.add_argument("--run", type=Path, help="measure this run instead of one that is made")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    parts = args.part or ["operations", "run"]
    figures: dict[str, dict[str, float]] = {}
    budgets: list[dict[str, Any]] = []
    about: dict[str, Any] = {"times": args.times}
    for name in ("AR", "ST") if "operations" in parts else ():
        with tempfile.TemporaryDirectory() as out:
            analyser = None
            if args.analyser is not None:
                analyser = Analyser(args.analyser.resolve(), os.fspath(args.analyser_python.absolute()), name, Path(out))
                about["analyser"] = analyser.about()
            taken = measure(name, args.times, analyser)
        figures[name] = {comparison: round(statistics.median(values), 4) for comparison, values in taken.items()}
        for comparison, (slower, faster) in COMPARED.items() if analyser is not None else ():
            ratio = round(statistics.median(a / b for a, b in zip(taken[slower], taken[faster], strict=True)), 2)
            figures[name][f"{comparison}_ratio"] = ratio
            if name == "AR":
                budgets.append(budget(f"{comparison}_ratio", ratio, LEAST_FASTER, at_least=True))
    if "run" in parts:
        figures["run"], of_run = run_part(args)
        budgets += of_run
    finish(figures, budgets, environment("rankscope", "numpy", "pyarrow", **about))


if __name__ == "__main__":
    main()

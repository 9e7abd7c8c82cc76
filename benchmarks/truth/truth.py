"""Accuracy of the verdict on real jobs with planted faults. Prints one JSON object.

Every case is a job of two or four gloo ranks, started by torchrun under ``rankscope run``. Its script ``truth_job.py`` plants the
fault and does not use rankscope. The verdict is computed twice: from the whole run ("windows"), and from a copy without its
profiled windows ("records"). In the first repeats, jobs without a fault and with a fault of half a step also run under TraceML
(PyPI ``traceml-ai``). The script then has the lines that TraceML requires.

Sizes are shares of the step time without the fault, as measured in earlier jobs without a fault. ``core``, ``work`` and
``enlarged`` have the size that a busy core, longer samples and samples made longer after the loader cause, and no known loss.
Rotating faults, slow networks and pipelines are reported and not required. In jobs with noise the host of every rank pauses at
every step (exponential, a twentieth of the step on average), and in 5 to 10 % of the steps that of any rank for 50 to 150 ms;
they have budgets of their own.

Each result is appended to FOLDER/results.jsonl at once. Started again with the same folder, the campaign continues where it
stopped. The runs are kept in FOLDER, too: ``--judge-again`` judges them with the current analysis. A slow network is two network
namespaces with a shaped link between them, which requires root and iproute2.

    python -m benchmarks.truth.truth --folder FOLDER [--repeats 5] [--only 'forward*'] [--hours 2] [--traceml PYTHON]
        [--judge-again] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.result import environment, finish
from benchmarks.truth.counts import EXPECTED, QUIET, markdown, outcome, summary
from benchmarks.truth.network import slow_network

JOB = Path(__file__).with_name("truth_job.py")
SIZES = (0.1, 0.2, 0.5, 1.0)
COUNTED_FROM = 0.2
"""Minimum size of a fault that must be found; smaller faults are only reported."""
WARM_UP = 5
TIMEOUT_S = 180
GRACE_S = 30
"""Seconds that torchrun has to end its ranks."""
WINDOW_EVERY = 13
"""Steps between windows, coprime to the period of an intermittent fault.

Otherwise the fault could always fall on profiled steps, which the records leave out.
"""

STALLS = ("loader", "forward", "backward_early", "backward_late", "optimizer", "between", "gc", "checkpoint", "intermittent")
REPORTED = ("rotating", "network")
COMPUTING = ("--width", "256", "--device-ms", "0")
"""Options of a job whose step is all CPU time."""
LONG = (*COMPUTING, "--length", "128")
"""Options of a job with samples so long that the step grows with them.

Samples that are longer by half take 41 % more CPU time, against 31 % at the usual length.
"""
NOISY = ("--steps", "100", "--device-ms", "30", "--noise")
"""Options of a job with short pauses of every rank at every step and long ones of any rank in some steps."""
RARE = ("--steps", "120")
"""Options of a job with enough steps to distinguish a fault in one step of ten from chance, also with two ranks."""
TRACEML_PHASES = {"input": "data", "input_wait": "data", "dataloader_fetch": "data"}


@dataclass(frozen=True, slots=True)
class CampaignCase:
    """One job of the campaign."""

    fault: str
    layout: str
    ranks: int
    repeat: int
    size: float = 0.0
    """Time that the fault adds as a share of the step time, averaged over all steps."""
    model: str = "mlp"
    noise: bool = False
    """True if the hosts of all ranks pause, some of the pauses being long."""

    @property
    def name(self) -> str:
        """Unique name of the case."""
        return f"{self.fault}/{self.layout}{self.ranks}/{self.model}/{self.size:g}/{self.repeat}" + (
            "/noise" if self.noise else ""
        )

    @property
    def options(self) -> tuple[str, ...]:
        """Options for the size of the job."""
        if self.noise:
            return NOISY
        return {"core": COMPUTING, "work": LONG, "enlarged": LONG, "intermittent": RARE}.get(self.fault, ())

    @property
    def slow(self) -> list[int]:
        """Ranks with the fault; they differ from repeat to repeat."""
        first = self.repeat % self.ranks
        if self.fault == "two":
            return sorted((first, (first + 1 + self.repeat // self.ranks) % self.ranks))
        return [] if self.fault in (*QUIET, *REPORTED) else [first]

    @property
    def required(self) -> bool:
        """True if the budgets count the case."""
        return self.layout != "pp" and self.fault in EXPECTED and (not self.size or self.size >= COUNTED_FROM)


def cases(repeats: int) -> Iterator[CampaignCase]:
    """Generate all cases; one repeat of everything before the next."""
    data_parallel = (("ddp", 2), ("ddp", 4), ("fsdp2", 2))
    for repeat in range(repeats):
        for layout, ranks in data_parallel:
            for model in ("mlp", "convolution", "transformer"):
                yield CampaignCase("none", layout, ranks, repeat, model=model)
            # Twice: a low rate of false accusations shows only in many jobs.
            yield CampaignCase("neighbour", layout, ranks, repeat)
            yield CampaignCase("neighbour", layout, ranks, repeat, model="transformer")
            for fault in STALLS:
                for size in SIZES:
                    yield CampaignCase(fault, layout, ranks, repeat, size)
        for layout in ("ddp", "fsdp2"):
            yield CampaignCase("core", layout, 2, repeat)
            for size in SIZES[1:]:
                yield CampaignCase("work", layout, 2, repeat, size)
                yield CampaignCase("enlarged", layout, 2, repeat, size)
        for size in SIZES[1:]:
            yield CampaignCase("two", "ddp", 4, repeat, size)
            yield CampaignCase("rotating", "ddp", 4, repeat, size)
        yield from noisy(repeat)
        for fault in ("none", "forward", "backward_late", "loader"):
            yield CampaignCase(fault, "pp", 2, repeat, 0.0 if fault == "none" else 0.5)
        yield CampaignCase("network", "ddp", 2, repeat)


def noisy(repeat: int) -> Iterator[CampaignCase]:
    """Generate the cases with noise."""
    for ranks in (2, 4):
        yield CampaignCase("none", "ddp", ranks, repeat, noise=True)
        for fault in ("loader", "forward", "backward_early", "optimizer"):
            yield CampaignCase(fault, "ddp", ranks, repeat, 0.25, noise=True)


# One job.


def torchrun(case: CampaignCase, node: int | None = None) -> list[str]:
    """Return the launcher's command. ``node``: one of two nodes, each with one rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    if node is None:
        return [*launcher, "--standalone", "--nproc-per-node", str(case.ranks)]
    return [*launcher, "--nnodes", "2", "--node-rank", str(node), "--master-addr", "10.9.8.1", "--master-port", "29511"]


def job(case: CampaignCase, ms: float, truth: Path) -> list[str]:
    """Return the script and its options."""
    options = ["--fault", case.fault, "--layout", case.layout, "--model", case.model, "--seed", str(case.repeat), *case.options]
    if case.slow:
        options += ["--slow", ",".join(map(str, case.slow))]
    return [str(JOB), "--truth", str(truth), "--ms", f"{ms:.3f}", *options]


def run_all(commands: Sequence[Sequence[str]], log: Path) -> None:
    """Run the commands at the same time until all have ended. Raises ``RuntimeError`` with their output if one fails."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    with ExitStack() as stack, log.open("wb") as log_file:
        running = [
            stack.enter_context(
                subprocess.Popen(command, stdout=log_file, stderr=log_file, env=variables, start_new_session=True)
            )
            for command in commands
        ]
        try:
            statuses = [process.wait(TIMEOUT_S) for process in running]
        finally:
            for process in running:
                # On SIGTERM, torchrun ends its ranks, which are in sessions of their own.
                process.terminate()
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                with suppress(OSError):
                    os.killpg(process.pid, 9)
    if any(statuses):
        raise RuntimeError(log.read_text(encoding="utf-8", errors="replace"))


def record(case: CampaignCase, ms: float, folder: Path) -> Path:
    """Run the case under the recorder. Returns the run directory."""
    run_dir = folder / "run"
    recorder = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(run_dir), "--no-verdict"]
    recorder += ["--window-every", str(WINDOW_EVERY), "--window-steps", "2", "--"]
    with ExitStack() as stack:
        if case.fault == "network":
            inside = stack.enter_context(slow_network("40mbit"))
            commands = [
                [*prefix, *recorder, *torchrun(case, node), *job(case, ms, folder / "truth")]
                for node, prefix in enumerate(inside)
            ]
        else:
            commands = [[*recorder, *torchrun(case), *job(case, ms, folder / "truth")]]
        run_all(commands, folder / "log")
    return run_dir


def planted_us(folder: Path) -> float:
    """Return the mean planted time of the slowest rank per step after warm-up, in microseconds."""
    ranks = [json.loads(path.read_text(encoding="utf-8"))["planted_s"] for path in sorted((folder / "truth").iterdir())]
    slowest_s: list[float] = [max(step) for step in zip(*ranks, strict=True)]
    return statistics.mean(slowest_s[WARM_UP:]) * 1e6


def verdict_of(run_dir: Path) -> dict[str, Any]:
    """Return the parts of the verdict that are evaluated here."""
    from rankscope.analysis.engine import analyze

    analysis = analyze([run_dir])
    verdict = analysis.verdict
    saved = next((e.value for f in analysis.findings if f.kind == "straggler" for e in f.evidence if e.name == "saved"), None)
    return {
        "kind": verdict.kind,
        "ranks": verdict.ranks,
        "cause": verdict.cause,
        "phase": verdict.phase,
        "pattern": verdict.pattern,
        "explained_by": verdict.explained_by,
        "source": verdict.evidence_source,
        "confidence": verdict.confidence,
        "saved_us": saved,
        "summary": verdict.summary,
    }


def step_us(run_dir: Path) -> float:
    """Return the median step time of the first rank after warm-up, in microseconds."""
    import numpy as np

    from rankscope.runs.reader import RunReader

    walls_us = np.concatenate([rows["wall_us"] for rows in RunReader(run_dir).step_rows(0, 0)])
    return float(np.median(walls_us[WARM_UP:]))


def without_windows(run_dir: Path, to: Path) -> Path:
    """Copy the run with its always-on records alone. Returns the copy."""
    shutil.copytree(run_dir, to, ignore=shutil.ignore_patterns("windows-*", "collectives-*", "kernels-*", "traces"))
    return to


def under_traceml(case: CampaignCase, ms: float, folder: Path, python: str) -> dict[str, Any]:
    """Run the same job under TraceML and return its diagnosis."""
    command = [str(Path(python).with_name("traceml")), "run", str(JOB), f"--nproc-per-node={case.ranks}"]
    command += ["--logs-dir", str(folder / "logs"), "--args", "--traceml", *job(case, ms, folder / "their_truth")[1:]]
    run_all([command], folder / "their_log")
    (summary,) = folder.glob("logs/*/final_summary.json")
    text = json.loads(summary.read_text(encoding="utf-8"))["step_time"]["diagnosis"]
    phase = text.get("phase") or text.get("metric")
    return {
        "kind": "straggler" if "STRAGGLER" in text["kind"] else text["kind"].lower(),
        "ranks": sorted(text.get("ranks") or []),
        "cause": None,
        "phase": TRACEML_PHASES.get(phase, phase),
        "summary": text.get("summary"),
    }


def judged(run_dir: Path, scratch: Path) -> dict[str, Any]:
    """Return the verdicts on a recorded run."""
    return {"windows": verdict_of(run_dir), "records": verdict_of(without_windows(run_dir, scratch / "records"))}


def measure(case: CampaignCase, ms: float, traceml: str | None, keep: Path) -> dict[str, Any]:
    """Run a case and return its line of the results. The run, without its raw traces, is copied to ``keep``."""
    with tempfile.TemporaryDirectory(prefix="rankscope-truth-") as name:
        folder = Path(name)
        run_dir = record(case, ms, folder)
        row: dict[str, Any] = {
            **asdict(case),
            "name": case.name,
            "slow": case.slow,
            "required": case.required,
            "ms": ms,
            "step_us": step_us(run_dir),
            "planted_us": planted_us(folder),
            **judged(run_dir, folder),
        }
        if traceml is not None and case.layout != "pp" and case.fault != "network":
            row["traceml"] = under_traceml(case, ms, folder, traceml)
        shutil.copytree(run_dir, keep, ignore=shutil.ignore_patterns("traces"), dirs_exist_ok=True)
        return row


def judge_again(row: dict[str, Any], runs_folder: Path) -> dict[str, Any]:
    """Return a line of the results with the verdicts of the current analysis on its run."""
    with tempfile.TemporaryDirectory(prefix="rankscope-truth-") as name:
        return {**row, **judged(runs_folder, Path(name))}


# The campaign.


def base_us(case: CampaignCase, rows: Sequence[dict[str, Any]]) -> float:
    """Return the median step time of earlier jobs with the layout of the case and without a fault."""
    job = (case.layout, case.ranks, case.noise)
    calm: list[float] = [
        row["step_us"] for row in rows if row["fault"] == "none" and (row["layout"], row["ranks"], row.get("noise", False)) == job
    ]
    if not calm:
        raise LookupError(f"no job without a fault yet for {case.layout} on {case.ranks} ranks")
    return statistics.median(calm)


def fault_ms(case: CampaignCase, rows: Sequence[dict[str, Any]]) -> float:
    """Return the option ``--ms`` of the job."""
    if case.fault in ("work", "enlarged"):
        return case.size * 100
    if not case.size:
        return 0.0
    # An intermittent fault is in one step of ten; a pipeline has four micro-batches per step.
    factor = {"intermittent": 10.0}.get(case.fault, 1.0) / (4 if case.layout == "pp" and case.fault != "loader" else 1)
    return case.size * factor * base_us(case, rows) / 1000


def kept_run(folder: Path, name: str) -> Path:
    """Return the folder in which the run of a case is kept."""
    return folder / "runs" / name.replace("/", "_")


def campaign(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the cases without a result. Returns all results."""
    args.folder.mkdir(parents=True, exist_ok=True)
    results_file = args.folder / "results.jsonl"
    rows = [json.loads(line) for line in results_file.read_text(encoding="utf-8").splitlines()] if results_file.exists() else []
    collected = {row["name"] for row in rows}
    # Jobs without a fault come first, because they show the step time.
    wanted = [case for case in cases(args.repeats) if case.name not in collected and fnmatch.fnmatch(case.name, args.only)]
    wanted.sort(key=lambda case: (case.repeat, case.fault != "none"))
    until = time.monotonic() + args.hours * 3600
    for number, case in enumerate(wanted):
        if time.monotonic() > until:
            print(f"time is up: {len(wanted) - number} cases left", file=sys.stderr)
            break
        peer = args.traceml if case.size in (0.0, 0.5) and case.repeat < args.traceml_repeats else None
        try:
            row = measure(case, fault_ms(case, rows), peer, kept_run(args.folder, case.name))
        except (RuntimeError, subprocess.SubprocessError, LookupError) as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        rows.append(row)
        with results_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        output = ", ".join(f"{arm} {outcome(row, arm)}" for arm in ("windows", "records", "traceml") if arm in row)
        print(f"{number + 1}/{len(wanted)} {case.name}: {output}", file=sys.stderr)
    return rows


def main() -> None:
    """Run the campaign and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept from case to case")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="*", help="pattern of the cases' names: FAULT/LAYOUT/MODEL/SIZE/REPEAT")
    parser.add_argument("--hours", type=float, default=24.0, help="begin no case after so long")
    parser.add_argument("--traceml", metavar="PYTHON", help="Python of an environment that has traceml-ai and torch")
    parser.add_argument("--traceml-repeats", type=int, default=2, help="so many of the repeats")
    parser.add_argument("--judge-again", action="store_true", help="ask the verdict anew of all runs that were kept")
    parser.add_argument("--markdown", type=Path, help="also write the tables there")
    args = parser.parse_args()
    rows = campaign(args)
    if args.judge_again:
        rows = [judge_again(row, kept_run(args.folder, row["name"])) for row in rows]
    # Compute ``required`` again, so that a changed rule needs no new jobs.
    for row in rows:
        row["required"] = CampaignCase(**{name: row[name] for name in CampaignCase.__slots__ if name in row}).required
    figures, budgets = summary(rows)
    if args.markdown is not None:
        args.markdown.write_text(markdown(figures, budgets), encoding="utf-8")
    finish(figures, budgets, environment("rankscope", "torch", date=time.strftime("%Y-%m-%d")))


if __name__ == "__main__":
    main()

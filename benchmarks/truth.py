"""Is the verdict right? Real jobs with planted faults, recorded, judged, and counted: prints one JSON object.

Every case is a job of two or four gloo ranks, started by torchrun under ``rankscope run``; ``truth_job.py`` knows nothing of
rankscope and plants the fault. The verdict is asked twice: of the whole run ("windows"), and of a copy without its profiled
windows ("records"). Jobs without a fault and with one of half a step run under TraceML, too (PyPI ``traceml-ai``), in the first
repeats, with the lines in the script that it asks for.

Sizes are shares of the step time without the fault, which jobs without one have shown before. ``core`` and ``work`` have the size
that a busy core or the longer samples give them, and no known loss. Rotating faults, slow networks and pipelines are reported
and not required.

Each result is a line of FOLDER/results.jsonl as soon as it is there; started again with the same folder, the campaign goes on
where it was. The runs stay there, too: ``--judge-again`` asks a changed analysis what it says of them. A slow network is two
network namespaces and a shaped link between them, which takes root and iproute2.

    python benchmarks/truth.py --folder FOLDER [--repeats 5] [--only 'forward*'] [--hours 2] [--traceml PYTHON] [--judge-again]
        [--markdown FILE]
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from truth_counts import EXPECTED, QUIET, markdown, outcome, summary

JOB = Path(__file__).with_name("truth_job.py")
SIZES = (0.1, 0.2, 0.5, 1.0)
COUNTED_FROM = 0.2
"""Smaller faults are reported, and not required to be found."""
WARM_UP = 5
TIMEOUT_S = 180
GRACE_S = 30
"""For torchrun to end its ranks."""
WINDOW_EVERY = 13
"""Prime to the distance of an intermittent fault, so that it does not keep to the profiled steps, which records leave out."""

STALLS = ("loader", "forward", "backward_early", "backward_late", "optimizer", "between", "gc", "checkpoint", "intermittent")
REPORTED = ("rotating", "network")
COMPUTING = ("--width", "256", "--device-ms", "0")
"""A job whose step is all CPU."""
LONG = (*COMPUTING, "--length", "128")
"""Samples so long that the step grows with them: half as long again is 41 % more CPU time, and 31 % of the usual length."""
RARE = ("--steps", "120")
"""A job in which what comes in one step of ten comes often enough to be told from chance, of two ranks too."""
TRACEML_PHASES = {"input": "data", "input_wait": "data", "dataloader_fetch": "data"}


@dataclass(frozen=True, slots=True)
class Case:
    """One job."""

    fault: str
    layout: str
    ranks: int
    repeat: int
    size: float = 0.0
    """Share of the step that the fault adds, over all steps."""
    model: str = "mlp"

    @property
    def name(self) -> str:
        """What is different from other cases."""
        return f"{self.fault}/{self.layout}{self.ranks}/{self.model}/{self.size:g}/{self.repeat}"

    @property
    def options(self) -> tuple[str, ...]:
        """The job's size."""
        return {"core": COMPUTING, "work": LONG, "intermittent": RARE}.get(self.fault, ())

    @property
    def slow(self) -> list[int]:
        """Ranks that have the fault; they differ from repeat to repeat."""
        first = self.repeat % self.ranks
        if self.fault == "two":
            return sorted((first, (first + 1 + self.repeat // self.ranks) % self.ranks))
        return [] if self.fault in (*QUIET, *REPORTED) else [first]

    @property
    def required(self) -> bool:
        """Whether the budgets count it."""
        return self.layout != "pp" and self.fault in EXPECTED and (not self.size or self.size >= COUNTED_FROM)


def cases(repeats: int) -> Iterator[Case]:
    """All of them; one repeat of everything before the next."""
    data_parallel = (("ddp", 2), ("ddp", 4), ("fsdp2", 2))
    for repeat in range(repeats):
        for layout, ranks in data_parallel:
            for model in ("mlp", "convolution", "transformer"):
                yield Case("none", layout, ranks, repeat, model=model)
            # Twice: few false accusations are only seen in many jobs.
            yield Case("neighbour", layout, ranks, repeat)
            yield Case("neighbour", layout, ranks, repeat, model="transformer")
            for fault in STALLS:
                for size in SIZES:
                    yield Case(fault, layout, ranks, repeat, size)
        for layout in ("ddp", "fsdp2"):
            yield Case("core", layout, 2, repeat)
            for size in SIZES[1:]:
                yield Case("work", layout, 2, repeat, size)
        for size in SIZES[1:]:
            yield Case("two", "ddp", 4, repeat, size)
            yield Case("rotating", "ddp", 4, repeat, size)
        for fault in ("none", "forward", "backward_late", "loader"):
            yield Case(fault, "pp", 2, repeat, 0.0 if fault == "none" else 0.5)
        yield Case("network", "ddp", 2, repeat)


# One job.


@contextmanager
def slow_network(rate: str) -> Iterator[list[list[str]]]:
    """Two network namespaces with a link of that rate; gives what to put before a command in each."""
    mine = f"rs{os.getpid()}"
    names = [f"{mine}a", f"{mine}b"]

    def ip(*args: str) -> None:
        subprocess.run(["ip", *args], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", f"{mine}0", "netns", names[0], "type", "veth", "peer", "name", f"{mine}1", "netns", names[1])
        for number, name in enumerate(names):
            link = f"{mine}{number}"
            ip("-n", name, "addr", "add", f"10.9.8.{number + 1}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
            shape = [
                "tc",
                "-n",
                name,
                "qdisc",
                "add",
                "dev",
                link,
                "root",
                "tbf",
                "rate",
                rate,
                "burst",
                "64kb",
                "latency",
                "100ms",
            ]
            subprocess.run(shape, check=True, capture_output=True, text=True)
        yield [["ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={mine}{number}"] for number, name in enumerate(names)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def torchrun(case: Case, node: int | None = None) -> list[str]:
    """The launcher; ``node``: one of two, each with one rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    if node is None:
        return [*launcher, "--standalone", "--nproc-per-node", str(case.ranks)]
    return [*launcher, "--nnodes", "2", "--node-rank", str(node), "--master-addr", "10.9.8.1", "--master-port", "29511"]


def job(case: Case, ms: float, truth: Path) -> list[str]:
    """The script and its options."""
    options = ["--fault", case.fault, "--layout", case.layout, "--model", case.model, "--seed", str(case.repeat), *case.options]
    if case.slow:
        options += ["--slow", ",".join(map(str, case.slow))]
    return [str(JOB), "--truth", str(truth), "--ms", f"{ms:.3f}", *options]


def run_all(commands: Sequence[Sequence[str]], log: Path) -> None:
    """Run them at the same time, to their end. Raises ``RuntimeError`` with what they said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    with ExitStack() as stack, log.open("wb") as said:
        running = [
            stack.enter_context(subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True))
            for command in commands
        ]
        try:
            statuses = [process.wait(TIMEOUT_S) for process in running]
        finally:
            for process in running:
                # torchrun ends its ranks, which are in sessions of their own, if it is asked to.
                process.terminate()
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                with suppress(OSError):
                    os.killpg(process.pid, 9)
    if any(statuses):
        raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")[-2000:])


def record(case: Case, ms: float, folder: Path) -> Path:
    """Run the case under the recorder; gives the run directory."""
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
    """Per step after warm-up, what the slowest rank was made to lose."""
    ranks = [json.loads(path.read_text(encoding="utf-8"))["planted_s"] for path in sorted((folder / "truth").iterdir())]
    return statistics.mean(max(step) for step in list(zip(*ranks, strict=True))[WARM_UP:]) * 1e6


def verdict_of(run_dir: Path) -> dict[str, Any]:
    """What the analysis says, as far as it is judged here."""
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
    """Median step after warm-up of the first rank."""
    import numpy as np

    from rankscope.runs.reader import RunReader

    walls_us = np.concatenate([rows["wall_us"] for rows in RunReader(run_dir).step_rows(0, 0)])
    return float(np.median(walls_us[WARM_UP:]))


def without_windows(run_dir: Path, to: Path) -> Path:
    """A copy of the run with its always-on records alone."""
    shutil.copytree(run_dir, to, ignore=shutil.ignore_patterns("windows-*", "collectives-*", "kernels-*", "traces"))
    return to


def under_traceml(case: Case, ms: float, folder: Path, python: str) -> dict[str, Any]:
    """What TraceML says of the same job."""
    command = [str(Path(python).with_name("traceml")), "run", str(JOB), f"--nproc-per-node={case.ranks}"]
    command += ["--logs-dir", str(folder / "logs"), "--args", "--traceml", *job(case, ms, folder / "their_truth")[1:]]
    run_all([command], folder / "their_log")
    (summary,) = folder.glob("logs/*/final_summary.json")
    said = json.loads(summary.read_text(encoding="utf-8"))["step_time"]["diagnosis"]
    phase = said.get("phase") or said.get("metric")
    return {
        "kind": "straggler" if "STRAGGLER" in said["kind"] else said["kind"].lower(),
        "ranks": sorted(said.get("ranks") or []),
        "cause": None,
        "phase": TRACEML_PHASES.get(phase, phase),
        "summary": said.get("summary"),
    }


def judged(run_dir: Path, scratch: Path) -> dict[str, Any]:
    """The verdicts on a recorded run."""
    return {"windows": verdict_of(run_dir), "records": verdict_of(without_windows(run_dir, scratch / "records"))}


def measure(case: Case, ms: float, traceml: str | None, keep: Path) -> dict[str, Any]:
    """One line of the results. The run, without its raw traces, stays in ``keep``."""
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


def judge_again(row: dict[str, Any], kept: Path) -> dict[str, Any]:
    """A line of the results with what the analysis says of its run today."""
    with tempfile.TemporaryDirectory(prefix="rankscope-truth-") as name:
        return {**row, **judged(kept, Path(name))}


# The campaign.


def base_us(case: Case, rows: Sequence[dict[str, Any]]) -> float:
    """Step time of that layout without a fault, as jobs without one have shown."""
    calm = [
        row["step_us"] for row in rows if row["fault"] == "none" and (row["layout"], row["ranks"]) == (case.layout, case.ranks)
    ]
    if not calm:
        raise LookupError(f"no job without a fault yet for {case.layout} on {case.ranks} ranks")
    return statistics.median(calm)


def fault_ms(case: Case, rows: Sequence[dict[str, Any]]) -> float:
    """The option ``--ms`` of the job."""
    if case.fault == "work":
        return case.size * 100
    if not case.size:
        return 0.0
    # Ten steps without for each that has it; four micro-batches each.
    factor = {"intermittent": 10.0}.get(case.fault, 1.0) / (4 if case.layout == "pp" and case.fault != "loader" else 1)
    return case.size * factor * base_us(case, rows) / 1000


def kept_run(folder: Path, name: str) -> Path:
    """Where the run of a case stays."""
    return folder / "runs" / name.replace("/", "_")


def campaign(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is not there yet, and give all there is."""
    args.folder.mkdir(parents=True, exist_ok=True)
    kept = args.folder / "results.jsonl"
    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()] if kept.exists() else []
    done = {row["name"] for row in rows}
    # Jobs without a fault tell how long a step is.
    wanted = [case for case in cases(args.repeats) if case.name not in done and fnmatch.fnmatch(case.name, args.only)]
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
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        said = ", ".join(f"{arm} {outcome(row, arm)}" for arm in ("windows", "records", "traceml") if arm in row)
        print(f"{number + 1}/{len(wanted)} {case.name}: {said}", file=sys.stderr)
    return rows


def main() -> None:
    """Run it, and print what came out."""
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
    # Required anew, so that a changed rule of what is right needs no new jobs.
    rows = [{**row, "required": _case(row).required} for row in rows]
    result = summary(rows)
    versions = {name: importlib.metadata.version(name) for name in ("rankscope", "torch")}
    result["environment"] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d"),
        **versions,
    }
    if args.markdown is not None:
        args.markdown.write_text(markdown(result), encoding="utf-8")
    print(json.dumps(result, indent=1))


def _case(row: dict[str, Any]) -> Case:
    return Case(**{name: row[name] for name in ("fault", "layout", "ranks", "repeat", "size", "model")})


if __name__ == "__main__":
    main()

"""The long campaign of verdicts: every fault of the demo, and a stall in every phase of every layout, on gloo ranks."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.analysis.engine import analyze
from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

JOB = Path(__file__).parents[1] / "profiler" / "jobs" / "parallel.py"
PAUSE_US = 40_000
STEPS = 24  # a fifth of them is warm-up, in which graphs are compiled
PLANTED: tuple[Phase, ...] = ("data", "forward", "backward", "optimizer")

# Name, ranks, options. In the first table several ranks do the same work; in the second each stage is on one rank only.
WITH_PEERS = [
    ("ddp", 2, ()),
    ("ddp", 2, ("--compile",)),
    ("fsdp2", 2, ()),
    ("fsdp2", 2, ("--amp", "--checkpointing")),
    ("fsdp2", 2, ("--compile",)),
    ("tp", 2, ()),
    ("tp", 2, ("--compile",)),
    ("tp", 2, ("--compile", "--backend", "inductor")),
    ("hsdp", 4, ()),
    ("fsdp2+tp", 4, ()),
    ("fsdp2+tp", 4, ("--compile",)),
    ("pp-gpipe+fsdp2", 4, ()),
    ("pp-1f1b+fsdp2", 4, ()),
    ("pp-1f1b+ddp", 4, ()),
    ("pp-interleaved+fsdp2", 4, ()),
]
ALONE = [("pp-gpipe", 2, ()), ("pp-1f1b", 2, ()), ("pp-interleaved", 2, ()), ("pp-1f1b", 2, ("--amp", "--compile"))]


def record(run_dir: Path, layout: str, ranks: int, *options: str) -> None:
    """Run one job with the recorder attached from outside."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    # Where ranks share cores, the planted pause must exceed their contention.
    pause = PAUSE_US / 1e6 * (3 if ranks > (os.cpu_count() or 1) else 1)
    command = [
        *(torchrun if ranks > 1 else [sys.executable]),
        str(JOB),
        "--layout",
        layout,
        "--steps",
        str(STEPS),
        "--pause",
        str(pause),
        *options,
    ]
    assert launch(command, LaunchOptions(run_dir=run_dir, name="parallel", window_steps=0)).status == 0


def own(run: RunReader, rank: int, phase: Phase) -> float:
    """Return the median own time of a rank in a phase, in microseconds."""
    times = []
    for step in list(run.steps(0, rank))[3:]:
        assert step.blocked_us is not None, "no signal"
        assert sum(step.phases_us.get(name) or 0 for name in PHASES) == pytest.approx(step.wall_us, abs=0.01)
        times.append((step.phases_us.get(phase) or 0) - (step.blocked_us.get(phase) or 0))
    return statistics.median(times)


@pytest.fixture(autouse=True)
def single_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One OpenMP thread per rank, so that ranks do not compete for cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("phase", PLANTED)
@pytest.mark.parametrize(("layout", "ranks", "options"), WITH_PEERS)
def test_verdict_names_the_slow_rank_and_phase(
    tmp_path: Path, layout: str, ranks: int, options: tuple[str, ...], phase: Phase
) -> None:
    slow = PLANTED.index(phase) % ranks
    record(tmp_path / "run", layout, ranks, "--fault", f"{phase}:{slow}", *options)
    verdict = analyze([tmp_path / "run"]).verdict
    assert (verdict.kind, verdict.rank, verdict.phase) == ("straggler", slow, phase), verdict.summary


@pytest.mark.parametrize("phase", PLANTED)
@pytest.mark.parametrize(("layout", "ranks", "options"), ALONE)
def test_slow_stage_without_peer_ranks_has_own_time_but_no_straggler(
    tmp_path: Path, layout: str, ranks: int, options: tuple[str, ...], phase: Phase
) -> None:
    slow = PLANTED.index(phase) % ranks
    record(tmp_path / "run", layout, ranks, "--fault", f"{phase}:{slow}", *options)
    run = RunReader(tmp_path / "run")
    assert own(run, slow, phase) > 0.9 * PAUSE_US
    assert own(run, 1 - slow, phase) < PAUSE_US / 2
    verdict = analyze([tmp_path / "run"]).verdict
    assert verdict.kind != "straggler"
    assert "very pipeline stage is on one rank" in verdict.summary


@pytest.mark.parametrize(("layout", "ranks", "options"), WITH_PEERS)
def test_no_rank_is_a_straggler_without_a_planted_fault(
    tmp_path: Path, layout: str, ranks: int, options: tuple[str, ...]
) -> None:
    record(tmp_path / "run", layout, ranks, *options)
    verdict = analyze([tmp_path / "run"]).verdict
    assert verdict.kind != "straggler", verdict.summary


@pytest.mark.parametrize("phase", PLANTED)
def test_single_process_is_never_a_straggler(tmp_path: Path, phase: Phase) -> None:
    record(tmp_path / "run", "single", 1, "--fault", f"{phase}:0")
    run = RunReader(tmp_path / "run")
    assert own(run, 0, phase) > 0.9 * PAUSE_US
    assert analyze([tmp_path / "run"]).verdict.kind != "straggler"


@pytest.mark.parametrize(
    "fault", [*(f"{kind}:{rank}" for kind in ("input", "host", "backward", "imbalance") for rank in range(4)), *(["none"] * 10)]
)
def test_demo_finds_the_planted_fault(
    cli_process: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, fault: str
) -> None:
    done = cli_process("demo", "--once", "--fault", fault, "--run-dir", tmp_path / "run", "--format", "json", timeout=900)
    assert done.stdout, done.stderr
    assert [part for part in json.loads(done.stdout)["parts"] if not part["ok"]] == []

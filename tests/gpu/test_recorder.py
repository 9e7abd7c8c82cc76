"""On a machine with an NVIDIA GPU: device times match the device's work, and recording never waits for the device."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, StepRecord

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("gpu_count", "require_torch")]

STEPS = 40
# A training with much device work and little host work; the middle steps are replays of one captured graph.
SCRIPT = """
import json, sys, time, torch
from rankscope.profiler.step import StepProfiler
kind, run_dir = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
inputs = torch.ones(4096, 4096, pin_memory=True)
static = inputs.cuda()
def work(batch):
    loss = model(batch).square().mean()
    loss.backward()
    return loss
for _ in range(3):
    work(static)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
torch.cuda.synchronize()
hosts, begin, end = [], torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
with StepProfiler(run_dir=run_dir, window_steps=0, exporter_url=None) as prof:
    begin.record()
    for step in range(40):
        began = time.perf_counter()
        if kind == "captured" and step == 20:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                work(static)
        if kind == "captured" and step >= 20:
            graph.replay()
        else:
            with prof.section("h2d"):
                batch = inputs.to("cuda", non_blocking=True)
            work(batch)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        prof.step()
        hosts.append(time.perf_counter() - began)
    end.record()
    end.synchronize()
    print(json.dumps({"device_us": begin.elapsed_time(end) * 1000, "host_us": sum(hosts) * 1e6}))
"""


OUT_OF_MEMORY = """
import sys, torch
from rankscope.profiler.step import StepProfiler
with StepProfiler(run_dir=sys.argv[1], window_steps=0, exporter_url=None, memory_snapshot=True):
    kept = torch.ones(1 << 20, device="cuda")
    torch.ones(1 << 50, device="cuda", dtype=torch.uint8)
"""


def test_out_of_memory_rank_leaves_a_snapshot_with_stack_frames(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(OUT_OF_MEMORY)
    command = [sys.executable, "job.py", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "OutOfMemoryError" in done.stderr
    (file,) = (tmp_path / "run" / "memory").glob("rank-00000-*.pickle")
    blocks = [block for segment in pickle.loads(file.read_bytes())["segments"] for block in segment["blocks"]]
    assert any(frame["filename"].endswith("job.py") for block in blocks for frame in block.get("frames", []))


def recorded(run_dir: Path, kind: str) -> tuple[list[StepRecord], dict[str, float]]:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(run_dir)], capture_output=True, text=True, check=False, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return list(RunReader(run_dir).steps(0, 0)), json.loads(ended.stdout)


def test_device_times_are_recorded_without_blocking_the_host(tmp_path: Path) -> None:
    records, truth = recorded(tmp_path / "run", "plain")
    assert [row.step for row in records] == list(range(STEPS))
    # The first step opens the recording, the device may not have finished the last ones when it ends, and if marks cost much for
    # such short steps, the last have fewer.
    timed = [row for row in records if row.device_us is not None]
    assert len(timed) >= STEPS - 10
    assert records[0].device_us is None
    for row in timed:
        assert row.device_us is not None
        assert row.device_us.h2d
        assert row.device_us.forward
        assert (row.device_us.backward or 0) > row.device_us.forward, "backward is twice the work"
        # A single rank never waits: own time is all of it.
        assert row.own_us == pytest.approx(sum(row.device_us.get(phase) or 0 for phase in PHASES))
    total = sum(row.own_us or 0 for row in timed)
    assert total == pytest.approx(truth["device_us"] * len(timed) / STEPS, rel=0.2)
    # The host only launches. If it waited at every step, its steps would be as long as the device's.
    assert truth["host_us"] < truth["device_us"]
    assert any(row.allocated_bytes and row.reserved_bytes and row.peak_allocated_bytes for row in records)
    assert all(row.resident_bytes for row in records if row.allocated_bytes)


def test_cuda_graph_capture_works_while_recording(tmp_path: Path) -> None:
    records, _ = recorded(tmp_path / "run", "captured")
    assert [row.step for row in records] == list(range(STEPS))
    assert records[20].device_us is None, "nothing was asked of the device while it was captured"
    replays = [row for row in records[22:] if row.device_us is not None]
    assert replays
    # The phases of a replay cannot be separated, but its total time is recorded.
    assert all((row.own_us or 0) > 0 for row in replays)


@pytest.mark.timeout(600)
def test_a_planted_straggler_is_found_on_cuda(
    cli_process: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = cli_process("demo", "--once", "--fault", "input:2", "--run-dir", tmp_path / "run", "--format", "json", timeout=540)
    report = json.loads(done.stdout)
    assert [part for part in report["parts"] if not part["ok"]] == [], done.stderr
    analysis = json.loads(cli_process("analyze", tmp_path / "run", "--format", "json").stdout)
    assert {rank["device_kind"] for rank in analysis["ranks"]} == {"cuda"}
    assert analysis["source"]["simulated"] is False

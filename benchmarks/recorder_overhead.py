"""What the recorder costs a training loop that has nothing else to do: prints one JSON object.

The same loop runs in fresh processes, with and without the recorder, alternately; each answers with the medians of its steps.
Steps of a few milliseconds are the hard case: the cost per step is fixed.

    python benchmarks/recorder_overhead.py [--pairs 5] [--steps 300]
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

WALL_BUDGET = 1.02
"""Ratio of median step times; means something on a quiet machine only."""
CPU_BUDGET = 1.02
"""Ratio of the training thread's median CPU time per step: what the recorder costs it, whoever else is on the machine."""


def train(steps: int) -> None:
    """A few milliseconds of work per step; prints the median wall and CPU time of a step in microseconds."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(12)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    walls, cpus = [], []
    wall, cpu = time.perf_counter(), time.thread_time()
    for batch in DataLoader(torch.ones(steps * 64, 256), batch_size=64):  # type: ignore[arg-type]
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.thread_time() - cpu)
        wall, cpu = time.perf_counter(), time.thread_time()
    print(statistics.median(walls[steps // 10 :]) * 1e6, statistics.median(cpus[steps // 10 :]) * 1e6)


def measure(steps: int, run_dir: Path | None) -> tuple[float, float]:
    """Median wall and CPU time of a step (us) in one process, recorded into ``run_dir`` if given."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if run_dir is not None:
        from rankscope.profiler.launch import SITE_FOLDER
        from rankscope.profiler.settings import RecorderSettings

        settings = RecorderSettings(
            run_dir=str(run_dir), run_id="bench", name="bench", start_unix_ns=time.time_ns(), window_steps=0
        )
        environment |= settings.environment() | {"PYTHONPATH": str(SITE_FOLDER)}
    command = [sys.executable, __file__, "--train", "--steps", str(steps)]
    wall, cpu = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return float(wall), float(cpu)


def main() -> None:
    """Measure in pairs and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.steps)
        return
    plain, recorded = [], []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(args.pairs):
            plain.append(measure(args.steps, None))
            recorded.append(measure(args.steps, Path(folder) / str(pair)))
        assert (Path(folder) / "0" / "run.json").is_file(), "nothing was recorded"
    walls = [after[0] / before[0] for before, after in zip(plain, recorded, strict=True)]
    cpus = [after[1] / before[1] for before, after in zip(plain, recorded, strict=True)]
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    result = {
        "figures": {
            "step_wall_us_without": statistics.median(before[0] for before in plain),
            "step_wall_us_with": statistics.median(after[0] for after in recorded),
            "step_cpu_us_without": statistics.median(before[1] for before in plain),
            "step_cpu_us_with": statistics.median(after[1] for after in recorded),
            "wall_ratios": walls,
            "cpu_ratios": cpus,
        },
        "budgets": [
            {"name": "wall time of a step, with / without", "value": wall, "limit": WALL_BUDGET, "ok": wall <= WALL_BUDGET},
            {"name": "CPU time of a step, with / without", "value": cpu, "limit": CPU_BUDGET, "ok": cpu <= CPU_BUDGET},
        ],
        "environment": {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
        },
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

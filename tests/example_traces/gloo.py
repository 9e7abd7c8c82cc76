"""Recording of a real job over gloo: two CPU ranks train under ``rankscope run``, which keeps the traces of one window."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.example_traces.variants import packed

import rankscope.cli.demo.train as training

RANKS: Final = 2
STEPS: Final = 3
JOB: Final = ("--steps", "16", "--width", "128", "--length", "16", "--fault", "input:1", "--fault-ms", "40")


def record(folder: Path) -> dict[str, bytes]:
    """Record the job in ``folder`` and return its traces by name, without what names this machine."""
    window = ["--keep-traces", "1", "--window-first", "8", "--window-every", "0", "--window-steps", str(STEPS)]
    recorder = [sys.executable, "-m", "rankscope", "run", "--run-dir", str(folder), *window, "--no-hardware", "--no-stacks"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [*recorder, "--no-verdict", "--", *torchrun, str(training.__file__), *JOB]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    traces = sorted(folder.glob("attempts/*/ranks/*/traces/*.json.gz"))
    assert len(traces) == RANKS, f"expected a trace of each rank below {folder}"
    return {f"rank-{rank}.json.gz": _nameless(path.read_bytes()) for rank, path in enumerate(traces)}


def _nameless(data: bytes) -> bytes:
    content = json.loads(gzip.decompress(data))
    content |= {"host_name": "node0", "traceName": "rank.json"}
    return packed(content)

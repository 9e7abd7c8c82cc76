"""Time and memory of the analysis of traces. Prints one JSON object.

- **peer**: load and breakdown of one trace, against HTA (PyPI ``HolisticTraceAnalysis``) and against the floor. The floor only
  unpacks the file with the fastest of some libraries and parses its JSON with the fastest of some parsers. The three take turns,
  each in a process of its own: *load and analyse* is timed inside the process after the imports, *whole process* from outside.
  Budgets use wall-clock time. The figures also have the same ratios of processor time, which other processes of the machine
  disturb less.
- **size**: a synthetic trace of a quarter, half and all of ``--size`` of JSON text.
- **ranks**: eight traces, read by one process and by one process per core.

    python -m benchmarks.traces.analysis [--data FOLDER] [--repeats 5] [--size 1.0] [--part peer --part size --part ranks]

FOLDER holds one folder of Kineto traces per name (default: ../shared/data/traces).
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.result import CORES, budget, environment, finish

TRACES = ("hta_df_index_resolver/rank-1.json.gz", "hta_trace_diff_test/rank-1.json.gz")
LOAD_TIMES = 15.0
"""Minimum speed-up over HTA, without imports."""
WHOLE_TIMES = 10.0
"""Minimum speed-up over HTA for the whole process."""
MEMORY_SHARE = 1 / 3
"""Maximum share of HTA's peak memory."""
FLOOR_TIMES = 3.0
"""Maximum ratio of the time to that of the floor."""
SIZE_MEMORY_MIB = 1024.0
LINEAR = 1.25
"""Maximum ratio of CPU seconds per byte between the whole size and its quarter."""
RANKS = 8
EFFICIENCY = 0.7
"""Minimum speed-up per core, with one process per core."""

# Each program prints the wall-clock and processor seconds after its imports.
OURS = """
import sys, time
from rankscope.analysis.engine import analyze
from rankscope.analysis.parallel.workers import keep_freed_memory
keep_freed_memory()  # as ``rankscope analyze`` does
begin, cpu = time.perf_counter(), time.process_time()
analyze(sys.argv[1:])
print(time.perf_counter() - begin, time.process_time() - cpu)
"""
HTA = """
import logging, os, sys, time
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin, cpu = time.perf_counter(), time.process_time()
analysis = TraceAnalysis(trace_dir=os.path.dirname(sys.argv[1]), trace_files={1: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
print(time.perf_counter() - begin, time.process_time() - cpu)
"""
FLOOR = """
import gzip, sys, time
import msgspec
class Event(msgspec.Struct, gc=False):
    cat: str | None = None
    ts: float | None = None
    dur: float | None = None
class Trace(msgspec.Struct):
    traceEvents: list[Event]
def typed(data):
    return msgspec.json.decode(data, type=Trace)
parsers = [typed, msgspec.json.decode]
try:
    import orjson
    parsers.append(orjson.loads)
except ImportError:
    pass
unpackers = [gzip.decompress]
try:
    from zlib_ng import gzip_ng, zlib_ng
    unpackers += [gzip_ng.decompress, lambda packed: zlib_ng.decompress(packed, 31)]
except ImportError:
    pass
def fastest(functions, argument):
    took = []
    for function in functions:
        begin, cpu = time.perf_counter(), time.process_time()
        result = function(argument)
        took.append((time.perf_counter() - begin, time.process_time() - cpu))
    return result, *map(min, zip(*took))
with open(sys.argv[1], "rb") as file:
    packed = file.read()
data, unpacked, unpacked_cpu = fastest(unpackers, packed)
_, parsed, parsed_cpu = fastest(parsers, data)
print(unpacked + parsed, unpacked_cpu + parsed_cpu)
"""
WORKERS = """
import sys, time
from rankscope.analysis.engine import analyze
from rankscope.analysis.parallel.workers import LocalEngine
if __name__ == "__main__":
    begin = time.perf_counter()
    analyze(sys.argv[2:], engine=LocalEngine(int(sys.argv[1])))
    print(time.perf_counter() - begin, time.process_time())
"""


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Environment in which Python writes bytecode: installed packages have theirs, so rankscope may keep its own."""


class Run(NamedTuple):
    """Time and memory of one process."""

    inside_s: float
    inside_cpu_s: float
    whole_s: float
    cpu_s: float
    peak_mib: float


def run(*command: str) -> Run:
    """Run Python with these arguments."""
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - begin
    if process.returncode:
        raise SystemExit(f"{command[:2]} ended with status {process.returncode}")
    cpu = usage.ru_utime + usage.ru_stime
    inside, inside_cpu = (wall_s, cpu) if "rankscope.analysis/1" in output else map(float, output.split())
    return Run(inside, inside_cpu, wall_s, cpu, usage.ru_maxrss / 1024)


def median(runs: list[Run]) -> Run:
    return Run(*(statistics.median(column) for column in zip(*runs, strict=True)))


def shown(measured_run: Run) -> dict[str, float]:
    return {name: round(value, 3) for name, value in measured_run._asdict().items()}


def ratios(longer: list[Run], shorter: list[Run], figure: str) -> list[float]:
    """Return the ratio of a figure in each round."""
    return [round(getattr(item, figure) / getattr(other, figure), 2) for item, other in zip(longer, shorter, strict=True)]


def peer(data: Path, repeats: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Compare with HTA and the floor, in turns."""
    figures: dict[str, Any] = {}
    budgets: list[dict[str, Any]] = []
    for name in TRACES:
        path = str(data / name)
        programs = {
            "hta": ("-c", HTA, path),
            "ours": ("-c", OURS, path),
            "command": ("-m", "rankscope", "analyze", path, "--format", "json"),
            "floor": ("-c", FLOOR, path),
        }
        runs: dict[str, list[Run]] = {program: [] for program in programs}
        for command in programs.values():
            run(*command)  # not counted: the first run reads from disk and writes bytecode
        for _ in range(repeats):
            for program, command in programs.items():
                runs[program].append(run(*command))
        rounds = {
            "load": ratios(runs["hta"], runs["ours"], "inside_s"),
            "load, processor time": ratios(runs["hta"], runs["ours"], "inside_cpu_s"),
            "whole": ratios(runs["hta"], runs["command"], "whole_s"),
            "whole, processor time": ratios(runs["hta"], runs["command"], "cpu_s"),
            "floor": ratios(runs["ours"], runs["floor"], "inside_s"),
            "floor, processor time": ratios(runs["ours"], runs["floor"], "inside_cpu_s"),
        }
        of_all = {ratio: statistics.median(each) for ratio, each in rounds.items()}
        memory = median(runs["command"]).peak_mib / median(runs["hta"]).peak_mib
        short = name.partition("/")[0]
        figures[short] = {program: shown(median(of)) for program, of in runs.items()} | {"ratios": rounds}
        budgets += [
            budget(f"{short}: load and analyse, times faster than HTA", of_all["load"], LOAD_TIMES, at_least=True),
            budget(f"{short}: whole process, times faster than HTA", of_all["whole"], WHOLE_TIMES, at_least=True),
            budget(f"{short}: peak memory, share of HTA's", memory, MEMORY_SHARE),
            budget(f"{short}: load and analyse, times the floor", of_all["floor"], FLOOR_TIMES),
        ]
    return figures, budgets


def steps(rng: random.Random) -> Iterator[str]:
    """Generate the events of one training step after another, as Kineto writes them."""
    identifier, now = 1, 4_458_676_000_000.0
    shapes = "[[32, 1024, 4096], [4096, 1024], [], []]"
    free = {7: now, 20: now}
    for step in range(1_000_000):
        begin, lines = now, []
        for call in range(400):
            identifier += 1
            now += rng.uniform(20, 40)
            collective = call % 20 == 19
            name = f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_{call % 50}x128_32x4_tn_align8>(Params)"
            more = ""
            if collective:
                name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                more = (
                    '"Collective name": "allreduce", "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": 8, '
                    '"dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", '
                )
            stream = 20 if collective else 7
            device, length = max(now + rng.uniform(5, 60), free[stream]), rng.uniform(10, 35)
            free[stream] = device + length
            lines.append(
                f"""  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 77,
    "ts": {now:.3f}, "dur": {rng.uniform(8, 18):.3f},
    "args": {{
      "External id": {identifier},"Record function id": 0, "Sequence number": {identifier}, "Fwd thread id": 0,
      "Input Dims": {shapes}, "Input type": ["c10::BFloat16", "c10::BFloat16", "", ""]
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 77,
    "ts": {now + 3:.3f}, "dur": {rng.uniform(3, 6):.3f},
    "args": {{
      "External id": {identifier}, "cbid": 211, "correlation": {identifier}
    }}
  }},
  {{
    "ph": "s", "id": {identifier}, "pid": 77, "tid": 77, "ts": {now + 3:.3f},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},
    "ts": {device:.3f}, "dur": {length:.3f},
    "args": {{
      "External id": {identifier}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, "correlation": {identifier},
      {more}"registers per thread": 128, "shared memory": 65536, "blocks per SM": 2.4, "warps per SM": 19.2,
      "grid": [32, 8, 1], "block": [256, 1, 1], "est. achieved occupancy %": 25
    }}
  }},
  {{
    "ph": "f", "id": {identifier}, "pid": 0, "tid": {stream}, "ts": {device:.3f},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }}"""
            )
        lines.append(
            f"""  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 77, "tid": 77,
    "ts": {begin:.3f}, "dur": {now - begin:.3f},
    "args": {{ "External id": 0 }}
  }}"""
        )
        yield ",\n".join(lines)


def synthetic(path: Path, size: float, rank: int = 0, world_size: int = 1) -> int:
    """Write a trace of about ``size`` bytes. Returns its exact number of bytes."""
    about = {"backend": "nccl", "rank": rank, "world_size": world_size}
    with path.open("w") as file:
        file.write(f'{{\n  "schemaVersion": 1,\n  "distributedInfo": {json.dumps(about)},\n  "traceEvents": [\n')
        for number, step in enumerate(steps(random.Random(rank))):
            file.write((",\n" if number else "") + step)
            if file.tell() >= size:
                break
        file.write('\n  ],\n  "traceName": "synthetic",\n  "baseTimeNanoseconds": 1711964646000000000\n}\n')
    return path.stat().st_size


def size(scratch: Path, gigabytes: float, repeats: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure time and memory over the length of a trace."""
    paths = {share: scratch / f"rank-{int(share * 100)}.json" for share in (0.25, 0.5, 1.0)}
    lengths = {share: synthetic(path, share * gigabytes * 1e9) for share, path in paths.items()}
    runs: dict[float, list[Run]] = {share: [] for share in paths}
    for _ in range(repeats):
        for share, path in paths.items():
            runs[share].append(run("-c", OURS, str(path)))
    for path in paths.values():
        path.unlink()
    medians = {share: median(of) for share, of in runs.items()}
    figures = {f"{lengths[share] / 1e9:.3g} GB": shown(value) for share, value in medians.items()}
    # CPU time does not include other processes of the machine.
    per_byte = {share: value.cpu_s / lengths[share] for share, value in medians.items()}
    return figures, [
        budget(f"{gigabytes:g} GB: peak memory, MiB", medians[1.0].peak_mib, SIZE_MEMORY_MIB),
        budget("CPU time per byte, all of it to a quarter", per_byte[1.0] / per_byte[0.25], LINEAR),
    ]


def ranks(scratch: Path, gigabytes: float, repeats: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure the analysis of eight traces with one process and with one process per core."""
    script = scratch / "workers.py"
    script.write_text(WORKERS)
    paths = [scratch / f"rank-{rank}.json" for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        synthetic(path, gigabytes * 1e9 / RANKS, rank, RANKS)
    runs: dict[int, list[Run]] = {count: [] for count in (1, CORES)}
    for _ in range(repeats):
        for count, value in runs.items():
            value.append(run(str(script), str(count), *map(str, paths)))
    speedup = statistics.median(item.inside_s / many.inside_s for item, many in zip(runs[1], runs[CORES], strict=True))
    figures = {f"{count} processes": shown(median(of)) for count, of in runs.items()}
    return figures, [budget(f"{RANKS} ranks: speed-up per core, {CORES} cores", speedup / CORES, EFFICIENCY, at_least=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data" / "traces")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=float, default=1.0, help="GB of the synthetic trace")
    parser.add_argument("--part", action="append", choices=("peer", "size", "ranks"), help="only this; may be repeated")
    args = parser.parse_args()
    parts = args.part or ["peer", "size", "ranks"]
    figures: dict[str, Any] = {}
    budgets: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        measures = {
            "peer": lambda: peer(args.data, args.repeats),
            "size": lambda: size(scratch, args.size, max(1, args.repeats // 2)),
            "ranks": lambda: ranks(scratch, args.size, max(1, args.repeats // 2)),
        }
        for part in parts:
            figures[part], result = measures[part]()
            budgets += result
    peers = [name for name in ("zlib-ng", "HolisticTraceAnalysis") if any(importlib.metadata.distributions(name=name))]
    finish(figures, budgets, environment("rankscope", "msgspec", "numpy", *peers))


if __name__ == "__main__":
    main()

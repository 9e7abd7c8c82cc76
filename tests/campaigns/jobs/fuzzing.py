"""Run mutated real traces through the whole analysis: each must give an answer, or one line that names the file.

    python fuzzing.py FOLDER_OF_TRACES SCRATCH FIRST_SEED COUNT

Prints one JSON object per failure and a last one with counts. Each seed is one case and always gives the same file.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis.collectives.windows import reduce_trace
from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.trace.columns import read_trace
from rankscope.base.errors import InputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BASES = (
    "dlrm_8ranks_v100/rank-0.json.gz",
    "dlrm_8ranks_v100/rank-1.json.gz",
    "ddp_2ranks_nccl_metadata/rank-0.json.gz",
    "hta_sampled_128/rank-0.json.gz",
    "kineto_2021_schema/rank-0.json.gz",
    "moe_dualpipe_deepep/rank-0.json.gz",
    "resnet_8ranks_mi300/rank-0.json.gz",
    "timesformer_h100/rank-0.json.gz",
)
EVENTS = 300
"""Number of events sampled evenly from each trace, so that a case takes milliseconds."""

WEIRD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, -0.0, 0.5, 1e-320, 1e300, -1e300, 2**31, 2**53 + 1, 2**62, 2**63, 2**64, -(2**63), 10**30,
    "",
    "0", "nan", "-1", "1e999", "9" * 5000, "x" * 70_000, "\ud800", "}, {", "]", "\x00", "ProfilerStep#" + "9" * 18,
    "ProfilerStep#99999999",
    "[" + "9" * 5000 + "]", "[0, 1, ..., 63]", [], {}, [[]], [None], [{}], {"a": {"b": [1]}}, [2**63] * 3,
)  # fmt: skip
TOKENS = (
    b"nan", b"-inf", b"Infinity", b"1e999", b"9" * 5000, b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\",
    b"\\ud800", b"\xff\xfe", b"\x00",
    b"null", b"}, {", b'"traceEvents": [', b"]}", b"[" * 50_000, b'{"a":' * 50_000, b"-", b"1" * 400,
)  # fmt: skip


def load_bases(traces: Path, names: Sequence[str] = BASES) -> list[Any]:
    """Load real traces with a sample of their events."""
    bases = []
    for name in names:
        document = json.loads(gzip.decompress((traces / name).read_bytes()))
        events = document["traceEvents"]
        document["traceEvents"] = events[:: max(1, len(events) // EVENTS)]
        bases.append(document)
    return bases


def odd_values(rng: random.Random, trace: Any) -> Any:
    """Replace values, drop keys or shuffle events; the result is still JSON."""
    trace = copy.deepcopy(trace)
    for _ in range(rng.randrange(1, 30)):
        place = trace if rng.random() < 0.15 else rng.choice(trace["traceEvents"] or [{}])
        while isinstance(place, dict | list) and place:
            key: Any = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and key != "traceEvents" and rng.random() < 0.7:
                place = inner
                continue
            if key != "traceEvents" or rng.random() < 0.1:
                if rng.random() < 0.15:
                    del place[key]
                else:
                    place[key] = rng.choice(WEIRD)
            break
        if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
            return trace
    if rng.random() < 0.1:
        rng.shuffle(trace["traceEvents"])
    return trace["traceEvents"] if rng.random() < 0.1 else trace


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    """Flip one bit, or many."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 5, 200])):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def odd_text(rng: random.Random, data: bytes) -> bytes:
    """Change, remove, duplicate or insert bytes."""
    for _ in range(rng.randrange(1, 4)):
        if not data:
            break
        at = rng.randrange(len(data))
        past = at + min(int(rng.expovariate(1 / 2000)) + 1, len(data) - at)
        token = rng.choice(TOKENS)
        data = rng.choice(
            [
                flip_bits(rng, data),
                data[:at],
                data[:at] + data[past:],
                data[:past] + data[at:],
                data[:at] + token + data[at:],
                data[:at] + token + data[past:],
                data[:at] + rng.randbytes(past - at) + data[past:],
            ]
        )
    return data


def make_case(rng: random.Random, bases: list[Any]) -> bytes:
    """Return the content of the file of one case."""
    trace = rng.choice(bases)
    if rng.random() < 0.6:
        trace = odd_values(rng, trace)
    data = json.dumps(trace, indent=rng.choice([None, None, 2]), ensure_ascii=rng.random() < 0.8).encode(errors="surrogatepass")
    if rng.random() < 0.6:
        data = odd_text(rng, data)
    packed = rng.random()
    if packed < 0.4:
        data = gzip.compress(data, 1) if packed < 0.25 else zstd.compress(data, 1)
        if rng.random() < 0.5:
            data = odd_text(rng, data)
    return data


def run_case(seed: int, bases: list[Any], scratch: Path) -> tuple[str, str | None]:
    """Run one case; return its outcome (``answer`` or ``refused``) and ``None``, or ``failure`` and its description."""
    rng = random.Random(seed)
    path = scratch / "rank-0.json"
    path.write_bytes(make_case(rng, bases))
    paths = [path]
    if rng.random() < 0.3:
        other = scratch / "other" / "rank-1.json"
        other.parent.mkdir(exist_ok=True)
        other.write_text(json.dumps(rng.choice(bases)))
        paths.append(other)
    try:
        analysis = analyze(paths)
        msgspec.json.encode(analysis)
        render_text(analysis, width=80, color=False)
        reduce_trace(read_trace(path))
    except InputError as error:
        if "\n" in str(error) or str(scratch) not in str(error):
            return "failure", f"no single line with the file's name: {error!r}"
        return "refused", None
    except Exception:  # noqa: BLE001  # any other exception is a failure
        return "failure", traceback.format_exc()
    return "answer", None


def main() -> None:
    """Run the cases that the arguments name."""
    traces, scratch, first, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    bases = load_bases(traces)
    counts: Counter[str] = Counter()
    slowest = (0.0, first)
    for seed in range(first, first + count):
        begin = time.process_time()
        outcome, detail = run_case(seed, bases, scratch)
        slowest = max(slowest, (time.process_time() - begin, seed))
        counts[outcome] += 1
        if detail:
            print(json.dumps({"seed": seed, "detail": detail}), flush=True)
    print(json.dumps({"counts": counts, "slowest_s": slowest[0], "slowest_seed": slowest[1]}), flush=True)


if __name__ == "__main__":
    main()

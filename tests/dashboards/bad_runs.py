"""Runs as they are left by full disks, killed jobs, broken clocks and strangers: each is made out of a good one."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rankscope.runs.paths import rank_dir

Line = dict[str, Any]
Spoil = Callable[[Path], object]


def of_rank(run: Path, rank: int, stream: str) -> Path:
    """The file of a stream of a rank of the first attempt."""
    (file,) = rank_dir(run, 0, rank).glob(f"{stream}*.jsonl")
    return file


def change_lines(file: Path, change: Callable[[int, Line], Line | str | None]) -> None:
    """Rewrite records one by one; ``None`` drops one, a text stands as it is."""
    told = [change(number, json.loads(line)) for number, line in enumerate(file.read_text().splitlines())]
    text = [one if isinstance(one, str) else json.dumps(one) for one in told if one is not None]
    file.write_text("".join(f"{line}\n" for line in text))


def change_info(file: Path, **fields: Any) -> None:
    """Other values in a ``run.json``, ``attempt.json`` or ``rank.json``."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def _each(stream: str, change: Callable[[int, Line], Line | str | None], ranks: range = range(4)) -> Spoil:
    def spoil(run: Path) -> None:
        for rank in ranks:
            change_lines(of_rank(run, rank, stream), change)

    return spoil


def _set(stream: str, ranks: range = range(4), **fields: Any) -> Spoil:
    return _each(stream, lambda _, line: {**line, **fields}, ranks)


def _info(name: str, **fields: Any) -> Spoil:
    return lambda run: change_info(run / name, **fields)


def _write(name: str, text: str | bytes) -> Spoil:
    def spoil(run: Path) -> None:
        (run / name).write_bytes(text.encode() if isinstance(text, str) else text)

    return spoil


def _remove(pattern: str) -> Spoil:
    def spoil(run: Path) -> None:
        for path in list(run.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return spoil


def _instead(pattern: str, make: Spoil) -> Spoil:
    def spoil(run: Path) -> None:
        for path in list(run.glob(pattern)):
            path.unlink()
            make(path)

    return spoil


def _socket(path: Path) -> None:
    """A path of a socket is short, so it is named from beside it."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _torn(run: Path) -> None:
    for stream in ("steps", "windows", "collectives"):
        file = of_rank(run, 1, stream)
        file.write_bytes(file.read_bytes()[:-37])
    with of_rank(run, 2, "steps").open("ab") as end:
        end.write(b'\n{"step": 1, "start\xff\xfe\x00garbage\n\n[]\nnull\n{"step": {}}\n')


def _ranks_only(keep: tuple[int, ...]) -> Spoil:
    def spoil(run: Path) -> None:
        for rank in range(4):
            if rank not in keep:
                shutil.rmtree(rank_dir(run, 0, rank))

    return spoil


def _jumping(number: int, line: Line) -> Line:
    return {**line, "start_unix_ns": line["start_unix_ns"] + (-1) ** number * number * 10**15}


def _far_apart(number: int, line: Line) -> Line:
    return {**line, "step": number if number < 30 else 10**14 + number * 10**9}


def _with_numbers(value: str) -> Callable[[int, Line], Line | str]:
    def change(number: int, line: Line) -> Line | str:
        return line if number % 7 else json.dumps({**line, "wall_us": 0.25}).replace('"wall_us": 0.25', f'"wall_us": {value}')

    return change


def _junk(run: Path) -> None:
    junk = run / "traces"
    junk.mkdir()
    (junk / "x.json.gz").write_bytes(b"\x1f\x8b" + b"\0" * 100)
    (junk / "kineto.json").write_text('{"traceEvents": [')
    os.mkfifo(junk / "pipe.json")
    (junk / "dir.json").mkdir()
    (run / "ranks").mkdir()
    (run / "attempts" / "junk").mkdir()
    (run / "attempts" / "999999999999").mkdir()
    (run / "attempts" / "000" / "ranks" / "-1").mkdir()
    (run / "hosts").mkdir(exist_ok=True)
    (run / "hosts" / os.fsdecode(b"\xff\xfenode")).mkdir()
    (run / os.fsdecode(b"\xe9t\xe9")).write_text("")
    (run / "findings.jsonl").write_text('{"kind": "straggler"}\n' * 20_000 + "{")


def _deep(run: Path) -> None:
    folder = run / "attempts"
    for _ in range(60):
        folder /= "deep"
    folder.mkdir(parents=True)
    for rank in range(4):
        with of_rank(run, rank, "steps").open("a") as file:
            file.write("[" * 50_000 + "\n")


def _steps_upside_down(run: Path) -> None:
    for rank in range(4):
        file = of_rank(run, rank, "steps")
        file.write_text("".join(f"{line}\n" for line in reversed(file.read_text().splitlines())) * 2)


def _steps_apart(run: Path) -> None:
    for rank in range(4):
        _each("steps", lambda _, line, rank=rank: {**line, "step": line["step"] * 4 + rank}, range(rank, rank + 1))(run)  # type: ignore[misc]


def _second_attempt(run: Path) -> None:
    """It has just begun: no rank has shown up."""
    folder = run / "attempts" / "001"
    folder.mkdir()
    first = json.loads((run / "attempts" / "000" / "attempt.json").read_text())
    (folder / "attempt.json").write_text(json.dumps({**first, "attempt": 1, "start_unix_ns": first["start_unix_ns"] + 10**12}))


def _all_zero(_: int, line: Line) -> Line:
    return {key: 0.0 if key.endswith("_us") and isinstance(value, float) else value for key, value in line.items()}


def _samples(run: Path) -> None:
    """Of a host that is gone, by a clock that jumps, of GPUs without a name, with values beyond all."""
    folder = run / "hosts" / "node-0"
    folder.mkdir(parents=True, exist_ok=True)
    values = [0.5, -1e300, 1e300, 1e306, -0.0, None]
    lines = [
        {
            "unix_ns": (-1) ** number * number * 2**58,
            "gpu_uuid": None if number % 5 == 0 else "GPU-00000000-5d1f-4a52-9c3e-0123456789ab",
            "gpu_index": -number,
            "utilization_ratio": values[number % 6],
            "memory_used_bytes": 2**62,
            "temperature_celsius": values[(number + 1) % 6],
            "power_watts": values[(number + 2) % 6],
            "throttle_reasons": ["<b>" * 99],
            "xid_errors": -number,
            "missing": "\x1b[2J" if number % 4 == 0 else None,
        }
        for number in range(60)
    ]
    (folder / "gpu-00000.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _hostile(number: int, line: Line) -> Line:
    return {**line, "group": "=cmd|' /C calc'!A0\u202e" * (1 + number % 3), "op": "<img src=x onerror=alert(1)>" * 9}


def _unreadable(pattern: str) -> Spoil:
    def spoil(run: Path) -> None:
        for path in run.glob(pattern):
            path.chmod(0)

    return spoil


BAD_RUNS: Final[Mapping[str, Spoil]] = {
    "good": lambda _run: None,
    "torn lines": _torn,
    "no rank.json": _remove("attempts/000/ranks/*/rank.json"),
    "no rank.json of one": _remove("attempts/000/ranks/00001/rank.json"),
    "empty rank.json": _write("attempts/000/ranks/00002/rank.json", ""),
    "no attempt.json": _remove("attempts/000/attempt.json"),
    "no attempts": _remove("attempts"),
    "no steps": _remove("attempts/000/ranks/*/steps*"),
    "no steps of one": _remove("attempts/000/ranks/00002/steps*"),
    "no collectives": _remove("attempts/000/ranks/*/collectives*"),
    "no windows": _remove("attempts/000/ranks/*/windows*"),
    "windows only": _remove("attempts/000/ranks/*/[sc]*"),
    "one step": _each("steps", lambda number, line: line if number == 21 else None),
    "half a run.json": _write("run.json", '{"schema": "rankscope.run/1", "run_id": "half'),
    "empty run.json": _write("run.json", ""),
    "run.json is a list": _write("run.json", "[1, 2]"),
    "run.json nested": _write("run.json", "[" * 100_000),
    "run.json binary": _write("run.json", b"\xff\xfe\x00\x01"),
    "newer": _info("run.json", schema="rankscope.run/2"),
    "start before 1970": _info("run.json", start_unix_ns=-(10**18)),
    "start far away": _info("run.json", start_unix_ns=9 * 10**18),
    "start past int64": _info("run.json", start_unix_ns=10**19),
    "price nonsense": _info("run.json", price_per_gpu_hour=-1e300, currency="<b>"),
    "price huge": _info("run.json", price_per_gpu_hour=1e308),
    "no rank": _ranks_only(()),
    "one rank": _ranks_only((0,)),
    "gaps in ranks": _ranks_only((1, 3)),
    "world size 0": _info("attempts/000/attempt.json", world_size=0),
    "world size huge": _info("attempts/000/attempt.json", world_size=2**62),
    "world size negative": _info("attempts/000/attempt.json", world_size=-4),
    "layout nonsense": _info("attempts/000/attempt.json", layout={"pp": 0, "tp": -3, "": 10**18, "dp": 2**62}),
    "pipeline nonsense": _info(
        "attempts/000/attempt.json", layout={"pp": 4}, pipeline={"schedule": "<b>", "microbatches": 0, "chunks": 0}
    ),
    "pipeline negative": _info(
        "attempts/000/attempt.json", layout={"pp": 4}, pipeline={"schedule": "1f1b", "microbatches": -1, "chunks": -7}
    ),
    "coordinates nonsense": _info("attempts/000/ranks/00001/rank.json", coordinates={"pp": -5, "x": 10**15}, local_rank=-9),
    "rank.json of another rank": _info("attempts/000/ranks/00001/rank.json", rank=77, world_size=-1, attempt=5),
    "device cuda": lambda run: [_info(f"attempts/000/ranks/{rank:05}/rank.json", device_kind="cuda")(run) for rank in range(4)],
    "device cuda of one": _info("attempts/000/ranks/00001/rank.json", device_kind="cuda"),
    "windows cuda": _set("windows", device_kind="cuda"),
    "windows cuda of one": _set("windows", range(1), device_kind="cuda"),
    "windows truncated": _set("windows", truncated=True),
    "windows nothing": _each("windows", _all_zero),
    "windows upside down": _set("windows", idle_us=-1e9, exposed_communication_us=1e300, overlap_us=-5.0),
    "windows too large": _set("windows", window_us=1e308, compute_us=1e308, communication_us=1e308, idle_us=1e308),
    "windows long": _set("windows", window_us=1e17, compute_us=1e17),
    "windows endless": _set("windows", window_us=1e306),
    "collectives longer than time": _set("collectives", start_unix_ns=-(2**62), end_unix_ns=2**62, enqueue_unix_ns=-(2**62)),
    "phases endless": _set("steps", phases_us={"data": 1e17, "forward": -1e17}, wall_us=1e17),
    "phases beyond": _set("steps", phases_us={"data": 1e306, "forward": -1e306}),
    "sections hostile": _set("steps", sections_us={"<b>": 1e306, "": -1.0, "a" * 5000: 0.0}, tags=["<script>"] * 50),
    "steps gaps": _each("steps", _far_apart),
    "steps gaps of one": _each("steps", _far_apart, range(1)),
    "steps huge": _each("steps", lambda _, line: {**line, "step": line["step"] + 2**62}),
    "steps past int64": _each("steps", lambda _, line: {**line, "step": line["step"] + 2**64}),
    "steps negative": _each("steps", lambda _, line: {**line, "step": line["step"] - 40}),
    "steps twice, backwards": _steps_upside_down,
    "steps not shared": _steps_apart,
    "NaN": _each("steps", _with_numbers("NaN")),
    "Infinity": _each("steps", _with_numbers("Infinity")),
    "1e300": _each("steps", _with_numbers("1e300")),
    "1e308": _set("steps", wall_us=1e308, cpu_us=1e308, phases_us={"data": 1e308, "forward": 1e308, "backward": 1e308}),
    "1e999": _each("steps", _with_numbers("1e999")),
    "negative": _set("steps", wall_us=-5.0, cpu_us=-1e9, phases_us={"data": -1e9}, blocked_us={"backward": -3.0}),
    "all zero": _set("steps", wall_us=0.0, phases_us={}, blocked_us={}, cpu_us=0.0),
    "huge counts": _set("steps", samples=2**62, tokens=2**62, flops=1e308, allocated_bytes=2**62, input_elements=2**62),
    "negative counts": _set("steps", samples=-5, tokens=-5, flops=-1.0, allocated_bytes=-1, input_elements=-9),
    "clocks jump": _each("steps", _jumping),
    "clock past int64": _set("steps", start_unix_ns=2**64),
    "clock at the end": _set("steps", start_unix_ns=2**63 - 1),
    "collectives jump": _each("collectives", lambda number, line: {**line, "start_unix_ns": (-1) ** number * 2**62}),
    "collectives end first": _each("collectives", lambda _, line: {**line, "end_unix_ns": line["start_unix_ns"] - 10**12}),
    "collectives at 0": _set("collectives", start_unix_ns=0, end_unix_ns=0, enqueue_unix_ns=0),
    "collectives at the end": _set("collectives", end_unix_ns=2**63 - 1),
    "collectives of strangers": _set("collectives", group_ranks=[77, -1], group_size=0, peer=99, root=-5),
    "collectives of nobody": _set("collectives", group_ranks=[], group_size=None, sequence=None, bytes=None),
    "collectives huge": _set("collectives", bytes=2**62, sequence=-1, index=2**40),
    "collectives hostile": _each("collectives", _hostile),
    "compute spans nonsense": _set("collectives", compute_spans_us=[(5.0, -5.0), (-1e300, 1e300)]),
    "junk": _junk,
    "deep": _deep,
    "streams are folders": _instead("attempts/000/ranks/00001/*.jsonl", Path.mkdir),
    "streams are pipes": _instead("attempts/000/ranks/00001/*.jsonl", os.mkfifo),
    "streams are sockets": _instead("attempts/000/ranks/00001/*.jsonl", _socket),
    "rank.json is a pipe": _instead("attempts/000/ranks/00001/rank.json", os.mkfifo),
    "attempt.json is a folder": _instead("attempts/000/attempt.json", Path.mkdir),
    "links to nowhere": _instead("attempts/000/ranks/00001/*.jsonl", lambda path: path.symlink_to("nowhere")),
    "links in a circle": _instead("attempts/000/ranks/00001/*.jsonl", lambda path: path.symlink_to(path.name)),
    "second attempt": _second_attempt,
    "steps may not be read": _unreadable("attempts/000/ranks/00001/steps*"),
    "rank may not be read": _unreadable("attempts/000/ranks/00001"),
    "run.json may not be read": _unreadable("run.json"),
    "samples nonsense": _samples,
    "hosts is a file": _write("hosts", "x"),
    "reasons": lambda run: [
        _info(f"attempts/000/ranks/{rank:05}/rank.json", end_reason="killed", end_unix_ns=-1, disabled_reason="\x1b[2J" * 9)(run)
        for rank in range(4)
    ],
}

"""Runs damaged by full disks, killed jobs, broken clocks and other programs, each derived from a good run."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from tests.step_files import Rows, add_damaged, change, damage, load, save_foreign, steps_file, tear

from rankscope.runs.paths import rank_dir
from rankscope.runs.step_columns import TIME_COLUMNS

Line = dict[str, Any]
Spoil = Callable[[Path], object]


RANKS: Final = range(4)


def of_rank(run: Path, rank: int, stream: str) -> Path:
    """Return the JSON Lines file of a stream of a rank in the first attempt."""
    (file,) = rank_dir(run, 0, rank).glob(f"{stream}*.jsonl")
    return file


def change_lines(file: Path, change: Callable[[int, Line], Line | str | None]) -> None:
    """Rewrite records one by one; ``None`` drops a record, a string replaces its line."""
    changes = [change(number, json.loads(line)) for number, line in enumerate(file.read_text().splitlines())]
    text = [item if isinstance(item, str) else json.dumps(item) for item in changes if item is not None]
    file.write_text("".join(f"{line}\n" for line in text))


def change_info(file: Path, **fields: Any) -> None:
    """Change fields of a ``run.json``, ``attempt.json`` or ``rank.json``."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def _each(stream: str, change: Callable[[int, Line], Line | str | None], ranks: range = RANKS) -> Spoil:
    def spoil(run: Path) -> None:
        for rank in ranks:
            change_lines(of_rank(run, rank, stream), change)

    return spoil


def _set(stream: str, ranks: range = RANKS, **fields: Any) -> Spoil:
    return _each(stream, lambda _, line: {**line, **fields}, ranks)


def _rows(edit: Callable[[Rows, int], Rows | None], ranks: range = RANKS) -> Spoil:
    """Return a change of step records with valid checksums; ``edit`` gets the rows of a rank, and the rank."""

    def spoil(run: Path) -> None:
        for rank in ranks:
            change(steps_file(run, rank), lambda rows, rank=rank: edit(rows, rank))  # type: ignore[misc]

    return spoil


def _columns(**values: Any) -> Spoil:
    """Return a change that sets columns of all step records to fixed values."""

    def edit(rows: Rows, _rank: int) -> None:
        for name, value in values.items():
            rows[name] = value

    return _rows(edit)


def _every_seventh_wall(value: float) -> Spoil:
    return _rows(lambda rows, _: np.put(rows["wall_us"], range(0, len(rows), 7), value))


def _damage(how: Callable[[Path], object], ranks: range = RANKS) -> Spoil:
    """Return a change that damages the bytes of the files of step records."""

    def spoil(run: Path) -> None:
        for rank in ranks:
            how(steps_file(run, rank))

    return spoil


def _zero_pages(file: Path) -> None:
    """Zero whole pages, some of them before the end, as after a power loss."""
    data = bytearray(file.read_bytes())
    data[4096:8192] = bytes(4096)
    file.write_bytes(data + bytes(12_288))


def _flip_header(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[30] ^= 0x04
    file.write_bytes(data)


def _huge(file: Path) -> None:
    """Extend a file by a hole to 200 MiB, as after damage to its size."""
    with file.open("r+b") as data:
        data.truncate(200 * 2**20)


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
    """Bind a socket at a path, by its relative name because socket paths must be short."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(path.name)
    finally:
        os.chdir(here)


def _torn(run: Path) -> None:
    for file in (steps_file(run, 1), of_rank(run, 1, "windows"), of_rank(run, 1, "collectives")):
        tear(file, by=37)
    add_damaged(steps_file(run, 2), 3)
    with (rank_dir(run, 0, 2) / "events-000000.jsonl").open("ab") as end:
        end.write(b'\n{"step": 1, "start\xff\xfe\x00garbage\n\n[]\nnull\n{"step": {}}\n')


def _ranks_only(keep: tuple[int, ...]) -> Spoil:
    def spoil(run: Path) -> None:
        for rank in range(4):
            if rank not in keep:
                shutil.rmtree(rank_dir(run, 0, rank))

    return spoil


def _jumping(rows: Rows, _rank: int) -> None:
    number = np.arange(len(rows))
    rows["start_unix_ns"] += (-1) ** number * number * 10**15


def _far_apart(rows: Rows, _rank: int) -> None:
    number = np.arange(len(rows))
    rows["step"] = np.where(number < 30, number, 10**14 + number * 10**9)


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
        for stream in ("events", "windows"):
            with (rank_dir(run, 0, rank) / f"{stream}-000000.jsonl").open("a") as file:
                file.write("[" * 50_000 + "\n")


def _events(*events: Line) -> Spoil:
    """Return a change that writes these events for every rank."""

    def spoil(run: Path) -> None:
        for rank in RANKS:
            lines = "".join(f"{json.dumps(event)}\n" for event in events)
            (rank_dir(run, 0, rank) / "events-000000.jsonl").write_text(lines)

    return spoil


def _second_attempt(run: Path) -> None:
    """Add a second attempt in which no rank has started yet."""
    folder = run / "attempts" / "001"
    folder.mkdir()
    first = json.loads((run / "attempts" / "000" / "attempt.json").read_text())
    (folder / "attempt.json").write_text(json.dumps({**first, "attempt": 1, "start_unix_ns": first["start_unix_ns"] + 10**12}))


def _all_zero(_: int, line: Line) -> Line:
    return {key: 0.0 if key.endswith("_us") and isinstance(value, float) else value for key, value in line.items()}


def _samples(run: Path) -> None:
    """Write GPU samples with a jumping clock, missing uuids, and values out of any range."""
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
    "steps torn": _damage(tear),
    "steps torn in the header": _damage(lambda file: file.write_bytes(file.read_bytes()[:300])),
    "steps empty": _damage(lambda file: file.write_bytes(b"")),
    "steps flipped": _damage(lambda file: damage(file, *range(0, 32, 3))),
    "steps flipped in the header": _damage(_flip_header, range(2)),
    "steps all flipped": _damage(lambda file: damage(file, *range(32))),
    "steps with zero pages": _damage(_zero_pages),
    "steps are zeros": _damage(lambda file: file.write_bytes(bytes(20_000)), range(2)),
    "steps of a few hundred megabytes": _damage(_huge, range(1)),
    "steps are text": _damage(lambda file: file.write_text('{"step": 1}\n' * 999), range(2)),
    "steps of a later version": _damage(lambda file: save_foreign(file, load(file), joules="<f8", who="<i8")),
    "steps of an earlier version": _damage(lambda file: save_foreign(file, load(file), without=("flops", "samples", "tokens"))),
    "steps of other things": _damage(lambda file: np.save(file, np.arange(99.0)), range(2)),
    "steps of objects": _damage(lambda file: np.save(file, np.array([{}, "x"], dtype=object), allow_pickle=True), range(2)),
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
    "one step": _rows(lambda rows, _: rows[21:22]),
    "half a run.json": _write("run.json", '{"schema": "rankscope.run/2", "run_id": "half'),
    "empty run.json": _write("run.json", ""),
    "run.json is a list": _write("run.json", "[1, 2]"),
    "run.json nested": _write("run.json", "[" * 100_000),
    "run.json binary": _write("run.json", b"\xff\xfe\x00\x01"),
    "newer": _info("run.json", schema="rankscope.run/3"),
    "of a version before the first release": _info("run.json", schema="rankscope.run/1"),
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
    "phases endless": _columns(data_us=1e17, forward_us=-1e17, wall_us=1e17),
    "phases beyond": _columns(data_us=3e38, forward_us=-3e38),
    "phases not a number": _columns(**dict.fromkeys(TIME_COLUMNS, np.nan)),
    "phases infinite": _columns(
        data_us=np.inf, forward_us=-np.inf, blocked_backward_us=np.inf, device_forward_us=np.inf, flags=15
    ),
    "sections hostile": _events(
        *({"step": step, "end_unix_ns": 1, "sections_us": {"<b>": 1e306, "": -1.0, "a" * 5000: 0.0}} for step in range(32)),
        *({"step": step, "end_unix_ns": -(2**62), "tags": ["<script>"] * 50} for step in (2**62, -1, *range(32), 3)),
    ),
    "events of no step": _events(*({"step": 10**15 + number, "end_unix_ns": 2**62, "tags": ["eval"]} for number in range(999))),
    "steps gaps": _rows(_far_apart),
    "steps gaps of one": _rows(_far_apart, range(1)),
    "steps huge": _rows(lambda rows, _: np.copyto(rows["step"], rows["step"] + 2**62)),
    "steps at the end": _columns(step=2**63 - 1),
    "steps negative": _rows(lambda rows, _: np.copyto(rows["step"], rows["step"] - 40)),
    "steps twice, backwards": _rows(lambda rows, _: np.concatenate([rows[::-1], rows[::-1]])),
    "steps not shared": _rows(lambda rows, rank: np.copyto(rows["step"], rows["step"] * 4 + rank)),
    "NaN": _every_seventh_wall(np.nan),
    "Infinity": _every_seventh_wall(np.inf),
    "-Infinity": _every_seventh_wall(-np.inf),
    "1e300": _every_seventh_wall(1e300),
    "1e308": _columns(wall_us=1e308, cpu_us=3e38, data_us=3e38, forward_us=3e38, backward_us=3e38),
    "negative": _columns(wall_us=-5.0, cpu_us=-1e9, data_us=-1e9, blocked_backward_us=-3.0),
    "all zero": _columns(**dict.fromkeys(("wall_us", "cpu_us", *TIME_COLUMNS), 0.0)),
    "huge counts": _columns(samples=2**62, tokens=2**62, flops=1e308, allocated_bytes=2**62, input_elements=2**62),
    "negative counts": _columns(samples=-5, tokens=-5, flops=-1.0, allocated_bytes=-9, input_elements=-9, voluntary_switches=-3),
    "unknown flags": _columns(flags=2**32 - 2),
    "no flags": _columns(flags=0),
    "clocks jump": _rows(_jumping),
    "clock before 1970": _columns(start_unix_ns=-(2**63)),
    "clock at the end": _columns(start_unix_ns=2**63 - 1),
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
    "streams are folders": _instead("attempts/000/ranks/00001/*-0*", Path.mkdir),
    "streams are pipes": _instead("attempts/000/ranks/00001/*-0*", os.mkfifo),
    "streams are sockets": _instead("attempts/000/ranks/00001/*-0*", _socket),
    "rank.json is a pipe": _instead("attempts/000/ranks/00001/rank.json", os.mkfifo),
    "attempt.json is a folder": _instead("attempts/000/attempt.json", Path.mkdir),
    "links to nowhere": _instead("attempts/000/ranks/00001/*-0*", lambda path: path.symlink_to("nowhere")),
    "links in a circle": _instead("attempts/000/ranks/00001/*-0*", lambda path: path.symlink_to(path.name)),
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

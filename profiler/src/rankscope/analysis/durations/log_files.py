"""Files of NCCL Inspector: the logs among files, folders and patterns, compressed or not."""

from __future__ import annotations

import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from rankscope.base.errors import InputError
from rankscope.base.regular_files import open_regular

ENABLE: Final = "set NCCL_INSPECTOR_ENABLE=1 and NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500 when the job starts"
_SUFFIXES: Final = (".log", ".jsonl", ".log.gz", ".jsonl.gz")
_NAMED: Final = re.compile(r".+-pid\d+\.log(?:\.gz)?")
"""File names of the plugin."""
BEGIN: Final = re.compile(rb'\{\s*"header"\s*:')
"""Begin of a record: damage before it costs no more than the record that is damaged."""
_SHOWN: Final = 3
"""Maximum number of other files that are named in warnings."""


def find_logs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the logs that files, folders and patterns name, and warnings. Raises ``InputError`` where there are none."""
    logs: dict[Path, None] = {}
    others: list[Path] = []
    for file in local_files(paths):
        if is_log(file):
            logs[file] = None
        elif file in paths or file.name.endswith(_SUFFIXES):
            others.append(file)
    if not logs:
        if any(_is_prometheus(file) for file in local_files(paths)):
            raise InputError(
                paths[0], "metrics of NCCL Inspector, which hold no single collective; set NCCL_INSPECTOR_PROM_DUMP=0"
            )
        raise InputError((*others, *paths)[0], f"not a log of NCCL Inspector; {ENABLE}")
    warnings = [f"left out: {file}: not a log of NCCL Inspector" for file in others[:_SHOWN]]
    if len(others) > _SHOWN:
        warnings.append(f"{len(others) - _SHOWN} other files left out, which are no logs of NCCL Inspector")
    return sorted(logs), warnings


def local_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that files, folders and patterns name, without hidden ones."""
    files: list[Path] = []
    for path in paths:
        names = [path] if path.exists() else map(Path, glob.iglob(os.fspath(path), recursive=True))  # noqa: PTH207
        for name in names:
            files += sorted(name.iterdir()) if name.is_dir() else [name]
    return [file for file in files if file.is_file() and not file.name.startswith(".")]


def is_log(file: Path) -> bool:
    """Return whether a file is a log of NCCL Inspector, by its name or its first bytes."""
    if _NAMED.fullmatch(file.name):
        return True
    try:
        with open_log(file) as (opened, _):
            return BEGIN.match(opened.read(256).lstrip(b" \t\r\n[")) is not None
    except (OSError, EOFError, zlib.error):
        return False


def holds(files: Sequence[Path]) -> bool:
    """Return whether there are logs of NCCL Inspector, or its metrics, among files."""
    return any((file.name.endswith(_SUFFIXES) or len(files) == 1) and is_log(file) for file in files) or any(
        map(_is_prometheus, files)
    )


def _is_prometheus(file: Path) -> bool:
    if file.suffix != ".prom":
        return False
    try:
        with open_regular(file) as opened:
            return b"nccl_" in opened.read(4096)
    except OSError:
        return False


@contextmanager
def open_log(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a log, compressed or not; yield the file and its size, which is 0 for a compressed one."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if packed:
            with gzip.open(file, "rb") as unpacked:
                yield unpacked, 0  # type: ignore[misc]  # a GzipFile reads as any binary file
        else:
            yield file, size

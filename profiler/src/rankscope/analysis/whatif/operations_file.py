"""Files of traced operations: Parquet in the sample format (docs/whatif.md), with the job's layout in a separate small file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from rankscope.analysis.whatif.traced_operations import CODES
from rankscope.base.errors import InputError
from rankscope.base.regular_files import open_regular

INTEGERS: Final = ("dp_rank", "stage", "rank", "step", "seq_id")
TIMES: Final = ("start_ts", "duration")
OPTIONAL: Final = ("mc", "gmc")

MAX_OPERATIONS: Final = 20_000_000
"""Maximum rows that are read: the analysis of these fits into a few gigabytes."""

_MAX_COLUMN_BYTES: Final = 2**30
_MAX_FOOTER_BYTES: Final = 64 * 2**20
_MAX_META_BYTES: Final = 64 * 2**10


@dataclass(frozen=True, slots=True)
class JobMetadata:
    """Facts about the job from the metadata; ``None``: not given."""

    name: str | None = None
    world_size: int | None = None


def read_columns(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read the columns for ``operations.arrange``. Raises ``InputError`` for any other file."""
    with _translated(path), open_regular(path) as file:
        _check_ends(path, file)
        table = pq.ParquetFile(
            file, thrift_string_size_limit=_MAX_FOOTER_BYTES, thrift_container_size_limit=2**24, pre_buffer=False
        )
        _check(path, table.metadata, table.schema_arrow)
        wanted = [*INTEGERS, "optype", *TIMES, *(name for name in OPTIONAL if name in table.schema_arrow.names)]
        rows = table.read(columns=wanted, use_threads=False)
        rows.validate(full=True)
        columns = {name: _numbers(path, name, rows.column(name)) for name in wanted if name != "optype"}
        return columns | {"kind": _kinds(path, rows.column("optype"))}


def read_layout(path: Path) -> JobMetadata | None:
    """Read ``meta-NAME.yaml`` next to ``trace-NAME.parquet``; ``None`` without such a file. Raises ``InputError``.

    Its lines are ``name: value``; only ``trial_name`` and ``world_size`` are used.
    """
    meta = path.with_name(re.sub(r"^trace-", "meta-", path.stem) + ".yaml")
    if meta == path.with_suffix(".yaml") or not meta.exists():
        return None
    try:
        with open_regular(meta) as file:
            text = file.read(_MAX_META_BYTES).decode()
    except OSError as error:
        raise InputError(meta, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise InputError(meta, "not text in UTF-8") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, colon, value = line.partition(":")
            if not colon:
                raise InputError(meta, "not of the form `name: value`", place=f"line {number}")
            settings[name.strip()] = value.strip().strip("'\"")
    size = settings.get("world_size")
    if size is not None and (re.fullmatch(r"[0-9]{1,9}", size) is None or int(size) == 0):
        raise InputError(meta, f"world_size is {size!r}, not a number of GPUs")
    return JobMetadata(name=settings.get("trial_name"), world_size=None if size is None else int(size))


def _check_ends(path: Path, file: Any) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read(8)
    file.seek(0)
    if size < 12 or end[4:] != b"PAR1" or file.read(4) != b"PAR1":
        raise InputError(path, "the file is empty" if not size else "no Parquet file, or not all of one")
    file.seek(0)


def _check(path: Path, metadata: Any, schema: pa.Schema) -> None:
    missing = [name for name in (*INTEGERS, "optype", *TIMES) if name not in schema.names]
    if missing:
        raise InputError(path, f"not traced operations: there is no column {', '.join(missing)}")
    if metadata.num_rows > MAX_OPERATIONS:
        raise InputError(path, f"{metadata.num_rows:,} operations; at most {MAX_OPERATIONS:,} are read, cut it by steps")
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            if not 0 <= group.column(at).total_uncompressed_size <= _MAX_COLUMN_BYTES:
                raise InputError(path, f"row group {number} claims to be impossibly large")


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> NDArray[np.generic]:
    needs_integers, kind = name not in TIMES, column.type
    if not (pa.types.is_integer(kind) or (not needs_integers and pa.types.is_floating(kind))):
        raise InputError(path, f"column {name} is {kind}, not {'whole numbers' if needs_integers else 'numbers'}")
    if column.null_count:
        row = column.is_null().to_numpy().argmax()
        raise InputError(path, f"{name} is missing", place=f"row {row}")
    numbers: NDArray[np.generic] = column.to_numpy()
    return numbers


def _kinds(path: Path, column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the row in ``TYPES`` of each operation. Raises ``InputError``."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
        value_type = column.type.value_type
    else:
        value_type = column.type
    if not (pa.types.is_string(value_type) or pa.types.is_large_string(value_type)):
        raise InputError(path, f"column optype is {column.type}, not names")
    if column.null_count:
        raise InputError(path, "optype is missing", place=f"row {column.is_null().to_numpy().argmax()}")
    kinds = np.empty(len(column), dtype=np.int64)
    at = 0
    for chunk in column.chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        # A dictionary may have names that no row uses.
        codes = np.array([CODES.get(name, -1) for name in names], dtype=np.int64)
        indices = encoded.indices.to_numpy()
        kinds[at : at + len(chunk)] = codes[indices]
        unknown = np.flatnonzero(codes[indices] < 0)
        if unknown.size:
            name = names[indices[unknown[0]]]
            raise InputError(
                path, f"unknown operation {name!r:.80}; there are {', '.join(CODES)}", place=f"row {at + unknown[0]}"
            )
        at += len(chunk)
    return kinds


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or (str(error).splitlines() or ["it cannot be read"])[0]
        raise InputError(path, reason) from error
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise InputError(path, f"damaged: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    except MemoryError as error:
        raise InputError(path, "damaged: it claims more memory than there is") from error

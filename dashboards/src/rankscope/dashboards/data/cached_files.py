"""Files of derived data."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.base.atomic_files import replace_file
from rankscope.base.errors import InputError

T = TypeVar("T")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write the arrays as the ``npz`` file ``path``, replacing it. Raises ``OSError``."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    replace_file(path, buffer.getvalue(), sync=False)


def read_arrays(path: Path, content: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of the ``npz`` file ``path``; ``content`` names it in the error. Raises ``InputError``."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(path, f"{content} cannot be read: {error}") from error


def read_json(path: Path, kind: type[T], content: str) -> T:
    """Decode the JSON file ``path``; ``content`` names it in the error ("the cached analysis"). Raises ``InputError``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError) as error:  # not only DecodeError: invalid UTF-8 raises another ValueError
        raise InputError(path, f"{content} cannot be read: {error}") from error

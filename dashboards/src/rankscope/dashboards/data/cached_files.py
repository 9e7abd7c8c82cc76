"""Reading of the files of derived data."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.base.errors import InputError

T = TypeVar("T")


def read_arrays(path: Path, what: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of the ``npz`` file ``path``; ``what`` names it in the error. Raises ``InputError``."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(path, f"{what} cannot be read: {error}") from error


def read_json(path: Path, kind: type[T], what: str) -> T:
    """Decode the JSON file ``path``; ``what`` names it in the error ("the cached analysis"). Raises ``InputError``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError) as error:  # not only DecodeError: invalid UTF-8 raises another ValueError
        raise InputError(path, f"{what} cannot be read: {error}") from error

"""What several campaigns need: a library that disturbs processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SHIM = Path(__file__).with_name("shim.c")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]) -> Path:
    """Path of the library of ``shim.c``, for LD_PRELOAD."""
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([require_program("gcc"), "-shared", "-fPIC", "-O1", "-o", library, SHIM], check=True)
    return library

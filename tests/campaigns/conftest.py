"""What several campaigns need: a library that disturbs processes, and small file systems."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHIM = Path(__file__).with_name("shim.c")


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]) -> Path:
    """Path of the library of ``shim.c``, for LD_PRELOAD."""
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([require_program("gcc"), "-shared", "-fPIC", "-O1", "-o", library, SHIM], check=True)
    return library


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    """Yield a folder on a file system of this size; where this user may not mount one, an ordinary folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "none", str(folder)]
    subprocess.run(mount, capture_output=True, check=False)
    yield folder
    # A test may have mounted it again, read-only.
    while os.path.ismount(folder):
        subprocess.run(["umount", "-l", folder], check=True)

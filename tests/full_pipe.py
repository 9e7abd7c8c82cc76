"""A pipe whose reader does not read."""

from __future__ import annotations

import os
from typing import Final

SMALLEST_PIPE: Final = 4096
"""Smallest size of a pipe, in bytes."""


def fill_pipe(fd: int) -> None:
    """Fill the pipe, through a separate file description so that the other writers still block."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        for size in (SMALLEST_PIPE, 1):
            try:
                while True:
                    os.write(own, b"x" * size)
            except BlockingIOError:
                continue
    finally:
        os.close(own)

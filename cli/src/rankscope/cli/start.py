"""Where the command begins: nothing is imported here that takes time, so that Ctrl-C is understood from the first moment on."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Import the front door, and pass through it."""
    try:
        from rankscope.cli.main import main as enter

        enter()
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")  # below the ^C of a terminal
        sys.exit(130)

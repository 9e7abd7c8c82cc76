"""Start of the command: imports only fast modules at first, so that Ctrl-C is handled from the start."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Import and run the command line."""
    try:
        from rankscope.cli.main import main as enter

        enter()
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")  # below the ^C of a terminal
        sys.exit(130)

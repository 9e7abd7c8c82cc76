"""When a run that writes nothing new is silent: limits of the analysis, the watcher and the list of runs."""

from __future__ import annotations

from typing import Final

SILENT_SECONDS: Final = 120.0
"""Longer than the caches of file servers show old sizes, typically a minute."""
SILENT_STEPS: Final = 10.0
"""The same in typical step times; the longer limit applies."""

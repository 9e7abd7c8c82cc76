"""Exit statuses of the daemon, both of which need a restart, and the reason of its own defects."""

from __future__ import annotations

from typing import Final

EXIT_STALE_DRIVER: Final = 5
"""The driver's library that this process sees no longer matches the loaded driver: only a restart helps."""

EXIT_FLEET_LOST: Final = 6
"""GPUs can no longer be queried: the nursery died, and a process with threads cannot safely fork another one."""

DEFECT: Final = "exporter_defect"
"""Reason of a metric or a file that could not be read by an error in the exporter itself."""

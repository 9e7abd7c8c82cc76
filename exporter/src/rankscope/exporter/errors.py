"""Errors a person can act on: one line on stderr and the exit status.

``ExporterCheckError``    the request failed at this moment (exit status 1)
``ExporterInputError``    an address, a folder or a file cannot be used (exit status 3)
``ExporterMissingError``  an extra is not installed, or another package is in its place (exit status 4)

The daemon exits by itself with status 5 or 6, the constants below: both need a restart.
"""

from __future__ import annotations

from typing import Final

import click

EXIT_STALE_DRIVER: Final = 5
"""The driver's library that this process sees no longer matches the loaded driver: only a restart helps."""

EXIT_FLEET_LOST: Final = 6
"""GPUs can no longer be queried: the nursery died, and a process with threads cannot safely fork another one."""

DEFECT: Final = "exporter_defect"
"""Reason of a metric or a file that could not be read by an error in the exporter itself."""


class ExporterCheckError(click.ClickException):
    """A request that failed now and may succeed later."""

    exit_code = 1


class ExporterInputError(click.ClickException):
    """An address, folder or file that cannot be used."""

    exit_code = 3


class ExporterMissingError(click.ClickException):
    """A library the exporter needs is missing; the message ends with how to install it."""

    exit_code = 4

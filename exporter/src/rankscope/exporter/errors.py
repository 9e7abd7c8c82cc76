"""Errors a person can act on: one line on stderr and the exit status.

``ExporterCheckError``    what was asked could not be done at this moment (exit status 1)
``ExporterInputError``    something given cannot be used: an address, a folder, a file (exit status 3)
``ExporterMissingError``  an extra is not installed, or another package is in its place (exit status 4)

The daemon ends by itself with status 5 or 6, the constants below: both want a restart.
"""

from __future__ import annotations

from typing import Final

import click

EXIT_STALE_DRIVER: Final = 5
"""The driver's library in this process's view is no longer the driver's: only a restart helps."""

EXIT_FLEET_LOST: Final = 6
"""GPUs can no longer be asked: the process that starts all others died, and one with threads cannot safely fork another."""


class ExporterCheckError(click.ClickException):
    """Asking again later may work."""

    exit_code = 1


class ExporterInputError(click.ClickException):
    """An address, folder or file that cannot be used."""

    exit_code = 3


class ExporterMissingError(click.ClickException):
    """A library the exporter needs is missing; the message ends with how to install it."""

    exit_code = 4

"""Errors a person can act on: one line on stderr and the exit status.

``ExporterInputError``    something given cannot be used: an address, a folder (exit status 3)
``ExporterMissingError``  an extra is not installed, or another package is in its place (exit status 4)
"""

from __future__ import annotations

import click


class ExporterInputError(click.ClickException):
    """An address or folder that cannot be used."""

    exit_code = 3


class ExporterMissingError(click.ClickException):
    """A library the exporter needs is missing; the message ends with how to install it."""

    exit_code = 4

"""Options of several commands. Needs no extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def prometheus_access(command: _Command) -> _Command:
    """Add ``--prometheus-token-file`` and ``--prometheus-ca``: credentials and certificate authority of a Prometheus."""
    file = click.Path(path_type=Path, dir_okay=False)
    text = "One line: a bearer token, or USER:PASSWORD.  [default: $RANKSCOPE_PROMETHEUS_TOKEN]"
    ca = click.option("--prometheus-ca", type=file, help="Certificate of the authority of an https address.")
    return click.option("--prometheus-token-file", type=file, help=text)(ca(command))


def targets_option(command: _Command) -> _Command:
    """Add ``--config``: the file with the operator's targets."""
    file = click.Path(path_type=Path, dir_okay=False)
    return click.option("--config", type=file, metavar="FILE", help="Targets to send to, in TOML: see docs/webhooks.md.")(command)

"""Thresholds of the watcher as options of ``watch`` and ``replay``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rankscope.base.options import Duration
from rankscope.runs.silence import SILENT_SECONDS, SILENT_STEPS

if TYPE_CHECKING:
    from rankscope.alerts.watch.conditions.budgets import Budgets

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option(
        "--least-firing",
        type=Duration(),
        metavar="DURATION",
        default="1m",
        show_default=True,
        help="Shortest time for which an alert fires.",
    ),
    click.option(
        "--silent-after",
        type=Duration(),
        metavar="DURATION",
        default=f"{SILENT_SECONDS:.0f}s",
        show_default=True,
        help="Time without a step after which a rank is silent, or the run stalled.",
    ),
    click.option(
        "--silent-steps",
        type=click.FloatRange(2),
        default=SILENT_STEPS,
        show_default=True,
        help="The same in median step times; the longer limit applies.",
    ),
    click.option(
        "--budget",
        multiple=True,
        metavar="NAME=SHARE",
        help="Share of the step: communication=30%, input=25%, host=35%; of the past step time: slower=10%. Repeatable.",
    ),
)
"""Options shared by ``watch`` and ``replay``."""


def judging_options(command: _Command) -> _Command:
    """Add ``--least-firing``, ``--silent-after``, ``--silent-steps`` and ``--budget`` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def budgets(texts: tuple[str, ...]) -> Budgets:
    """Parse the values of ``--budget``. Raises ``click.BadParameter``."""
    from rankscope.alerts.watch.conditions.budgets import budgets_of

    try:
        return budgets_of(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--budget") from error

"""How the watcher judges a run: options of ``watch``, and of ``replay``, which asks what it would have said."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rankscope.base.options import Duration

if TYPE_CHECKING:
    from rankscope.alerts.watch.budgets import Budgets

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option(
        "--least-firing",
        type=Duration(),
        metavar="DURATION",
        default="1m",
        show_default=True,
        help="An alert fires at least so long.",
    ),
    click.option(
        "--silent-after",
        type=Duration(),
        metavar="DURATION",
        default="2m",
        show_default=True,
        help="Time without a step after which a rank is silent, or the run stalled.",
    ),
    click.option(
        "--silent-steps",
        type=click.FloatRange(2),
        default=10.0,
        show_default=True,
        help="And at least so many times what a step takes as a rule.",
    ),
    click.option(
        "--budget",
        multiple=True,
        metavar="NAME=SHARE",
        help="Of the step: communication=30%, input=25%, host=35%; of the run's own past: slower=10%. Repeatable.",
    ),
)
"""Options shared by ``watch`` and ``replay``."""


def judging_options(command: _Command) -> _Command:
    """Add ``--least-firing``, ``--silent-after``, ``--silent-steps`` and ``--budget`` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def budgets(told: tuple[str, ...]) -> Budgets:
    """Parse the values of ``--budget``. Raises ``click.BadParameter``."""
    from rankscope.alerts.watch.budgets import budgets_of

    try:
        return budgets_of(told)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--budget") from error

"""Rows of the table of advice: their type, and functions that make them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankscope.analysis.collectives.figures import Figures
from rankscope.analysis.remedies import Remedy
from rankscope.analysis.result.analysis import Kind
from rankscope.analysis.result.cause import Cause


class FigureCondition(msgspec.Struct, frozen=True):
    """Condition that a figure is known and at least, or below, the limit."""

    figure: str
    comparison: Literal[">=", "<"]
    limit: float

    def holds(self, figures: Figures) -> bool:
        """Return whether the condition holds; an unknown figure meets no condition."""
        figure = figures.get(self.figure)
        return figure is not None and (figure.value >= self.limit if self.comparison == ">=" else figure.value < self.limit)


class FigureBound(msgspec.Struct, frozen=True):
    """Bound on a gain or cost, as a share of the step: factor · figure."""

    figure: str
    factor: float = 1.0

    def of(self, figures: Figures) -> float:
        """Return the bound as a share of the step, at most 1."""
        return min(1.0, self.factor * figures[self.figure].value)

    @property
    def formula(self) -> str:
        """Formula of the bound, as text for people."""
        return self.figure if self.factor == 1 else f"{self.factor:.3g} * {self.figure}"


class AdviceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of the table: actions, and the verdict or the figures for which they are given.

    Actions are templates, most useful first. An action is left out if the value of one of its placeholders is not known:

    - ``{run}``: run directory; ``{record}``: command that records a run, where there is none yet
    - ``{ranks}``: the named ranks; ``{rank}``: the worst of them; ``{host}``: its host
    - ``{without}``: its host, if the job has others; ``{node}``: the same, if the name is safe in a command
    - ``{nodes}``, ``{node_list}``: the same, separated by spaces or commas
    - ``{stalls_at}``: line of code at which the worst rank stalls; ``{unseen}``: empty, if that is not known
    - ``{steps}``: number of steps to profile; ``{recorded}``: number of recorded steps
    - ``{enough}``: number of steps to record, or "more steps"; ``{until}``: the same as a clause, or empty

    For hosts at fault as a whole, ``{ranks}`` names the hosts with their ranks; ``{host}``, ``{without}`` and the names for
    commands are those of all these hosts.
    """

    actions: tuple[str, ...]
    kind: Kind | None = None
    """Verdict whose next actions these are; ``None``: they are given for figures alone."""
    cause: Cause | None = None
    """Cause that the verdict must have; ``None``: any."""
    reason: str | None = None
    """``explained_by`` that the verdict must have, or another reason for its next actions; ``None``: any."""
    whole_host: bool = False
    """True for a row that is only for hosts at fault as a whole; it replaces those for ranks with the same first figure."""
    name: str = ""
    """Name as a recommendation; empty: the row is no recommendation."""
    when: tuple[FigureCondition, ...] = ()
    """Conditions on figures under which the row is a recommendation."""
    gain: float | None = None
    """Largest part of the first condition's figure that the actions can remove; ``None``: they save no time by themselves."""
    cost: FigureBound | None = None
    falls: str = ""
    """Quantity that must fall if the actions helped."""

    @property
    def bound(self) -> FigureBound | None:
        """Bound on the gain."""
        return None if self.gain is None else FigureBound(self.when[0].figure, self.gain)


def at_least(figure: str, limit: float) -> FigureCondition:
    """Return the condition that ``figure`` is at least ``limit``."""
    return FigureCondition(figure, ">=", limit)


def below(figure: str, limit: float) -> FigureCondition:
    """Return the condition that ``figure`` is below ``limit``."""
    return FigureCondition(figure, "<", limit)


def for_ranks(remedy: Remedy, *, cause: Cause | None = None, reason: str | None = None) -> AdviceRow:
    """Return the row of a remedy for named ranks: for verdicts with a cause or a reason."""
    return AdviceRow(
        kind="straggler",
        cause=cause,
        reason=reason,
        actions=remedy.actions,
        whole_host=remedy.whole_host,
        name=remedy.name,
        when=(at_least(f"straggler.{remedy.figure or cause or reason}", remedy.at_least),),
        gain=1.0,
        falls="waiting for later ranks",
    )


def for_figures(
    name: str,
    when: tuple[FigureCondition, ...],
    falls: str,
    *actions: str,
    gain: float | None = 1.0,
    cost: FigureBound | None = None,
    kind: Kind | None = None,
    cause: Cause | None = None,
    reason: str | None = None,
) -> AdviceRow:
    """Return the row of a recommendation for the figures in ``when``, and for verdicts of ``kind``, if given."""
    return AdviceRow(
        name=name, when=when, falls=falls, actions=actions, gain=gain, cost=cost, kind=kind, cause=cause, reason=reason
    )


def for_verdict(
    kind: Kind, *actions: str, cause: Cause | None = None, reason: str | None = None, whole_host: bool = False
) -> AdviceRow:
    """Return the row of next actions that are no recommendation."""
    return AdviceRow(kind=kind, cause=cause, reason=reason, actions=actions, whole_host=whole_host)


ROTATING: Final = (
    "Look for what the ranks share, or what comes and goes on their hosts: storage, logging, scheduled jobs, neighbours"
)
"""Advice for a slowdown that moves between ranks: no rank or host is at fault by itself."""

SHOW: Final = "rankscope dashboard {run}"
"""Last action of all verdicts but those for which data is missing."""

RECORD: Final = "rankscope run -- torchrun ... train.py"

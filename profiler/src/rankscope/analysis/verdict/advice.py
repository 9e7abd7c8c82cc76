"""Selection from the table of advice: next actions for a verdict, and recommendations from figures."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Final

from rankscope.analysis.collectives.figures import Figure, Figures
from rankscope.analysis.costs.cost_figures import derived
from rankscope.analysis.costs.waterfall import Costs
from rankscope.analysis.inference.reasons.remedy_table import FIGURES
from rankscope.analysis.inference.reasons.signals import HOST_OR_DEVICE
from rankscope.analysis.result.analysis import Evidence, Kind, Verdict
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import Advice, AdviceEvidence
from rankscope.analysis.result.text import counted, first_of, joined, sentences, units_text
from rankscope.analysis.verdict.advice_rows import RECORD, SHOW, AdviceRow
from rankscope.analysis.verdict.advice_table import TABLE
from rankscope.runs.durations import DURATION_SOURCES
from rankscope.runs.records import Phase

_NODE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252})?")
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class AdviceSubject:
    """Ranks and run that advice is about."""

    run: str | None = None
    """Run directory; ``None``: traces."""
    ranks: Sequence[int] = ()
    """Named ranks, worst first."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Host of each rank of the job, as far as known. Leaving out a host is advised only if there are others, and if all named
    ranks are on it."""
    whole_hosts: Sequence[str] = ()
    """Hosts at fault as a whole, worst first; advice is then about them, not about their ranks."""
    stalls_at: str | None = None
    """Line of code at which the worst rank stalls, for people; ``None``: unknown."""

    def values(self) -> dict[str, object]:
        """Return the values of the placeholders of actions."""
        rank = self.ranks[0] if self.ranks else None
        host = None if rank is None else self.hosts.get(rank)
        hosts = {self.hosts.get(named) for named in self.ranks}
        at_fault = list(self.whole_hosts) or ([host] if host is not None and len(hosts) == 1 else [])
        if self.whole_hosts:
            host = joined(self.whole_hosts, _SHOWN)
        others = bool(at_fault) and not set(self.hosts.values()) <= set(at_fault)
        safe = others and all(map(_NODE.fullmatch, at_fault))
        values: dict[str, object | None] = {
            "run": None if self.run is None else shlex.quote(self.run),
            "record": RECORD if self.run is None else None,
            "ranks": self._ranks() if self.ranks else None,
            "rank": rank,
            "host": host,
            "without": host if others else None,
            "stalls_at": self.stalls_at,
            # Without the line, it is still to be found.
            "unseen": "" if self.stalls_at is None else None,
            "node": at_fault[0] if safe and len(at_fault) == 1 else None,
            "nodes": " ".join(at_fault) if safe else None,
            "node_list": ",".join(at_fault) if safe else None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _ranks(self) -> str:
        if self.whole_hosts:
            return units_text(self.ranks, self.hosts, self.whole_hosts)
        if len(self.ranks) > 1:
            return f"ranks {first_of(sorted(self.ranks), _SHOWN)}"
        host = self.hosts.get(self.ranks[0])
        return f"rank {self.ranks[0]}" + ("" if host is None else f" on host {host}")


_OF_HOST_OR_DEVICE: Final[frozenset[Cause | None]] = frozenset({"host", "compute", "unknown"})
_OF_ALL_STEPS: Final = ("steps", *DURATION_SOURCES)
_OF_HOST: Final[frozenset[Phase | None]] = frozenset({"data", "between_steps"})


def reason_of(verdict: Verdict, evidence: Sequence[Evidence], *, accelerated: bool, recorded: bool) -> str | None:
    """Return ``explained_by`` of the verdict, or another reason of the table of advice.

    That is ``processor`` where a rank computes longer in a job without accelerators, and ``device_unseen`` where nothing tells
    the named rank's host from its device.

    The rank's host waits for its device inside the step, so profiled steps tell which of them is late, or a host that
    sleeps. ``evidence``: that of the finding on the rank. ``recorded``: the job was recorded, so steps of it may be profiled.
    """
    is_told_apart = not accelerated or verdict.stalls_at is not None or any(row.name in HOST_OR_DEVICE for row in evidence)
    of_one = verdict.kind == "straggler" and verdict.pattern != "rotating"
    of_either = verdict.cause in _OF_HOST_OR_DEVICE and verdict.phase not in _OF_HOST
    unseen = of_one and recorded and verdict.evidence_source in _OF_ALL_STEPS and of_either and not is_told_apart
    processor = verdict.kind == "straggler" and verdict.cause == "compute" and not accelerated
    return verdict.explained_by or ("device_unseen" if unseen else "processor" if processor else None)


def next_actions(
    kind: Kind,
    subject: AdviceSubject,
    *,
    cause: Cause | None = None,
    reason: str | None = None,
    steps: int | None = None,
    recorded: int = 0,
    needed: int | None = None,
    command: str | None = None,
) -> list[str]:
    """Return the actions for a verdict, most useful first: those of the first row of the table that matches.

    ``reason``: ``explained_by`` of the verdict, or another reason of the table. ``steps``: number of steps to profile.
    ``recorded``: number of recorded steps.
    ``needed``: number of steps, about, that a run needs for a verdict; ``None``: not known. ``command``: see ``insufficient``.
    """
    values = subject.values() | {
        "recorded": counted(recorded, "step"),
        "enough": "more steps" if needed is None else f"about {needed} steps",
        "until": "" if needed is None else f" until about {needed} steps are recorded",
        **({} if steps is None else {"steps": steps}),
        **({} if command is None else {"command": command}),
    }
    row = next(
        (
            row
            for row in TABLE
            if row.kind == kind
            and row.cause in (None, cause)
            and row.reason in (None, reason)
            and (subject.whole_hosts or not row.whole_host)
        ),
        None,
    )
    actions = [] if row is None else _filled(row, values)
    return actions if kind == "insufficient_data" or subject.run is None else [*actions, SHOW.format(**values)]


def recommend(
    figures: Figures,
    subject: AdviceSubject,
    *,
    step_us: float | None,
    reason: str | None = None,
    saves: tuple[float, float] | None = None,
) -> list[Advice]:
    """Return the recommendations whose conditions all hold, largest bound on the gain first.

    ``reason``: result of ``reason_of``, which decides on the remedy for a named rank. ``saves``: that of the verdict, whose
    upper end bounds what this remedy gains.
    """
    all_figures = derived(figures)
    replaced = {row.when[0].figure for row in TABLE if row.whole_host and row.when} if subject.whole_hosts else set()
    recommendations = [
        _advice(row, actions, all_figures, step_us, subject.run, saves if row.kind == "straggler" else None)
        for row in TABLE
        if row.name
        and all(condition.holds(all_figures) for condition in row.when)
        and (row.kind != "straggler" or row.reason in (None, reason))
        and row.whole_host == (row.when[0].figure in replaced)
        and (actions := _filled(row, subject.values()))
    ]
    return sorted(
        recommendations, key=lambda advice: -1.0 if advice.gain_share_at_most is None else advice.gain_share_at_most, reverse=True
    )


def _filled(row: AdviceRow, values: Mapping[str, object]) -> list[str]:
    """Return the actions whose placeholders all have a value."""
    needs = [(action, {name for _, name, _, _ in Formatter().parse(action) if name is not None}) for action in row.actions]
    return [
        filled[:1].upper() + filled[1:]
        for action, names in needs
        if names <= values.keys() and (filled := action.format(**values))
    ]


def _advice(  # noqa: PLR0917
    row: AdviceRow,
    actions: Sequence[str],
    figures: Figures,
    step_us: float | None,
    run: str | None,
    saves: tuple[float, float] | None,
) -> Advice:
    gain = None if row.bound is None else row.bound.of(figures)
    if gain is not None and saves is not None:
        gain = max(gain, saves[1])  # the slowdown is within the interval, and no bound
    command = "rankscope analyze NEW_TRACES" if run is None else f"rankscope compare {shlex.quote(run)} NEW_RUN"
    stages = sorted({stage for condition in row.when if (stage := figures[condition.figure].stage) is not None})
    where = f" (most of it is on pipeline stage {', '.join(map(str, stages))})" if stages else ""
    return Advice(
        name=row.name,
        evidence=[
            AdviceEvidence(
                name=condition.figure,
                value=figures[condition.figure].value,
                unit=figures[condition.figure].unit,
                source=figures[condition.figure].source,
                stage=figures[condition.figure].stage,
                limit=f"{condition.comparison} {condition.limit:g}",
            )
            for condition in row.when
        ],
        action=sentences(actions) + where,
        gain_share_at_most=gain,
        gain_us_at_most=None if gain is None or step_us is None else gain * step_us,
        gain_formula=None if row.bound is None else row.bound.formula,
        cost_share_at_most=None if row.cost is None else row.cost.of(figures),
        check=f"{command}: {row.falls} must fall",
    )


def figures_of_verdict(verdict: Verdict, costs: Costs | None, reason: str | None) -> dict[str, Figure]:
    """Return ``straggler.CAUSE``: the time lost to the named ranks, as a share of the step of ``costs``.

    ``reason``: ``explained_by`` of the verdict, or another result of ``reason_of``. A reason with another remedy than its cause
    gives the name.
    """
    if verdict.kind != "straggler" or verdict.slowdown is None or verdict.slowdown <= 1:
        return {}
    if verdict.pattern == "rotating":
        return {}  # remedies are for ranks and hosts, of which none is at fault by itself
    extent_in_steps = 1.0
    if costs is not None and costs.extent_us is not None and costs.step_us > 0:
        extent_in_steps = costs.extent_us / costs.step_us
    lost = Figure(min(1.0, (1 - 1 / verdict.slowdown) * extent_in_steps), source=verdict.evidence_source)
    why = FIGURES.get(reason or "", verdict.cause)
    return {f"straggler.{why or 'unknown'}": lost}

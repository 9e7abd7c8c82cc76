"""List of changes and events of a run in order of steps. Each line links to its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from rankscope.analysis.inference.change_points import LEAST_SHARE, moved_with
from rankscope.analysis.result.analysis import Finding
from rankscope.analysis.result.text import units_text
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.data.hosts import known_hosts
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.trend import Trend
from rankscope.dashboards.model.line import PageLink, Piece, Span
from rankscope.dashboards.model.page import Block, Items, Text
from rankscope.dashboards.model.state import PageState, run_path
from rankscope.dashboards.words.units import duration

MOST_LINES: Final = 16
_LOOKED_AT: Final = 64
"""Number of steps on either side of a change that are compared to find the ranks whose own time changed."""
_AROUND: Final = 40
"""Number of steps on either side that the link of a change shows."""


@dataclass(frozen=True, slots=True)
class RunChange:
    """A change or event, and its steps."""

    first: int
    """Number of the first step."""
    last: int
    when: str
    text: str


def changes(run: RunData, state: PageState) -> list[Block]:
    """Return the list of changes, or a line for an empty list."""
    trend = run.trend
    if not len(trend.steps):
        return [Text("No step has been recorded yet.", "help")]
    run_changes = sorted(
        [*_of_step_time(run, trend), *_of_findings(run, trend), *_of_attempts(run, trend), *_of_gpus(run)],
        key=lambda change: change.first,
    )
    if not run_changes:
        sentence = f"No lasting change of the step time by {LEAST_SHARE:.0%} or more."
        return [Text(sentence, "help")]
    lines = [_line(run, state, run_change) for run_change in run_changes[:MOST_LINES]]
    more = len(run_changes) - MOST_LINES
    return [Items(lines, "moments", ordered=True), *([Text(f"… and {more:,} more", "help")] if more > 0 else [])]


def _line(run: RunData, state: PageState, run_change: RunChange) -> list[Piece]:
    shown = replace(state, steps=(run_change.first, run_change.last))
    return [
        PageLink(run_change.when, run_path(run.summary.run_id) + shown.search, style="moment-link"),
        Span(run_change.text, style="what"),
    ]


def _of_step_time(run: RunData, trend: Trend) -> Iterator[RunChange]:
    edges = [0, *(change.at for change in trend.changes), len(trend.steps)]
    for change, (low, at), (_, high) in zip(trend.changes, pairwise(edges), list(pairwise(edges))[1:], strict=False):
        first, last = max(low, at - _LOOKED_AT), min(high, at + _LOOKED_AT)
        own = run.steps.part("own_us", first, last).values
        quiet = ~trend.profiled[first:last]
        before, after = own[:, : at - first][:, quiet[: at - first]], own[:, at - first :][:, quiet[at - first :]]
        moved_ranks = np.asarray(run.steps.ranks)[moved_with(before, after, change.after - change.before)]
        whose_text = _whose(moved_ranks.tolist(), own, known_hosts(run.analysis))
        share = f" ({100 * (change.after / change.before - 1):+.0f}%)" if change.before else ""
        yield RunChange(
            int(trend.steps[max(0, at - _AROUND)]),
            int(trend.steps[min(len(trend.steps) - 1, at + _AROUND)]),
            f"From step {trend.steps[at]:,}",
            f"the step takes {duration(change.after)} instead of {duration(change.before)}{share}: {whose_text}",
        )


def _whose(moved_ranks: list[int], own: np.ndarray[tuple[int, ...], np.dtype[np.float32]], hosts: Mapping[int, str]) -> str:
    rank_count = int(np.isfinite(own).any(axis=1).sum())
    if not rank_count:
        return "which rank's own time changed is not known"
    if not moved_ranks:
        return "no rank's own time changed by half as much, so most of it is in waiting or communication"
    if rank_count > 1 and len(moved_ranks) == rank_count:
        return "own time changed on all ranks alike"
    if len(moved_ranks) > rank_count / 2:
        return f"own time changed on {len(moved_ranks):,} of {rank_count:,} ranks"
    return f"own time changed on {units_text(moved_ranks, hosts, _whole_hosts(moved_ranks, hosts))}"


def _whole_hosts(moved_ranks: list[int], hosts: Mapping[int, str]) -> list[str]:
    """Return the hosts with several ranks that are all among those that moved."""
    ranks_of_hosts, on = Counter(hosts.values()), Counter(hosts[rank] for rank in moved_ranks if rank in hosts)
    return [host for host, count in on.items() if count == ranks_of_hosts[host] > 1]


def _of_findings(run: RunData, trend: Trend) -> Iterator[RunChange]:
    """Yield the findings that cover only a part of the run."""
    begin, end = int(trend.steps[0]), int(trend.steps[-1])
    for finding in run.analysis.findings:
        # Almost all findings leave out the first steps, which are warm-up.
        if finding.steps is not None and (finding.steps[0] > begin + _AROUND or finding.steps[1] - 1 < end):
            first, last = finding.steps[0], max(finding.steps[0], finding.steps[1] - 1)
            yield RunChange(first, last, f"Steps {first:,} to {last:,}", _finding_sentence(finding))


def _finding_sentence(finding: Finding) -> str:
    cause = "" if finding.cause is None else f" [{CAUSES[finding.cause].label}]"
    why = "" if finding.explained_by is None else f" Explained by {finding.explained_by.replace('_', ' ')}."
    return f"{finding.summary}{'' if finding.rank is not None else cause}{why}"


def _of_attempts(run: RunData, trend: Trend) -> Iterator[RunChange]:
    if run.summary.attempts > 1:
        first = int(trend.steps[0])
        yield RunChange(
            first,
            int(trend.steps[min(len(trend.steps) - 1, _AROUND)]),
            f"Step {first:,}",
            f"attempt {run.summary.attempts} begins; the steps of the attempts before it are not shown here",
        )


def _of_gpus(run: RunData) -> Iterator[RunChange]:
    """Yield the first event of each kind on each GPU, so that an intermittent event does not crowd out all others."""
    shown: set[tuple[str, str]] = set()
    for event in run.events.events:
        if event.step is not None and (event.gpu_uuid, event.kind) not in shown:
            shown.add((event.gpu_uuid, event.kind))
            owner = f"host {event.host}" if event.rank is None else f"rank {event.rank} on host {event.host}"
            simulated = " (simulated)" if event.simulated else ""
            until = event.until_step if event.until_step is not None else event.step
            yield RunChange(
                max(0, event.step - _AROUND),
                until + _AROUND,
                f"Step {event.step:,}",
                f"GPU of {owner}: {event.detail}{simulated}",
            )

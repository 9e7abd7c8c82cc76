"""Waterfall and advice of an analysis, from its costs and figures."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rankscope.analysis.collectives.figures import Figure, Figures
from rankscope.analysis.collectives.matched import Matched
from rankscope.analysis.costs.figures import (
    figures_of_costs,
    figures_of_kernels,
    figures_of_overlap,
    figures_of_recompute,
    figures_of_stages,
    figures_of_verdict,
)
from rankscope.analysis.costs.waterfall import Costs, waterfall
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.verdict.advice import Subject, reason_of, recommend
from rankscope.analysis.verdict.builders import never_balanced_while_waiting
from rankscope.analysis.verdict.stalled_verdict import place
from rankscope.runs.records import KernelRecord


def assessed(analysis: Analysis, costs: Costs | None, figures: Figures) -> Analysis:
    """Return the analysis with its waterfall, and the advice that the waterfall and ``figures`` support."""
    found = None if costs is None else waterfall(costs)
    run = analysis.source.path if analysis.source.kind == "run" else None
    waiting = None if found is None else found.share("straggler_wait")
    verdict = never_balanced_while_waiting(analysis.verdict, waiting, "step" if found is None else found.unit, run)
    machines = _machines(analysis)
    evidence = next((one.evidence for one in analysis.findings if one.kind == "straggler"), [])
    reason = reason_of(verdict, evidence, accelerated="accelerated" in machines, recorded=analysis.source.kind == "run")
    figures = {
        **figures,
        **figures_of_costs(costs),
        **figures_of_stages(costs),
        **figures_of_verdict(verdict, costs, reason),
        **machines,
    }
    subject = Subject(
        run=run,
        ranks=sorted(verdict.ranks, key=lambda rank: rank != verdict.rank),
        hosts={row.rank: row.host for row in analysis.ranks if row.host is not None},
        whole_hosts=verdict.hosts,
        stalls_at=None if verdict.stalls_at is None else place(verdict.stalls_at),
    )
    advice = recommend(figures, subject, step_us=None if found is None else found.step_us, reason=reason)
    return msgspec.structs.replace(analysis, verdict=verdict, waterfall=found, advice=advice)


def assessed_windows(analysis: Analysis, costs: Costs | None, matched: Matched, kernels: Sequence[KernelRecord] = ()) -> Analysis:
    """Return the analysis with the waterfall and advice of profiled windows alone."""
    return assessed(analysis, costs, figures_of_windows(analysis, matched, kernels))


def figures_of_windows(analysis: Analysis, matched: Matched, kernels: Sequence[KernelRecord]) -> Figures:
    """Return the figures of collectives and kernels in profiled windows."""
    source = matched.source
    return {
        **figures_of_overlap(analysis.ranks, source),
        **figures_of_recompute(analysis.ranks, source),
        **matched.figures,
        **figures_of_kernels(kernels, source),
    }


def _machines(analysis: Analysis) -> Figures:
    hosts = {row.host for row in analysis.ranks if row.host is not None}
    found = {"hosts": Figure(float(len(hosts)), "hosts")} if hosts else {}
    if any(row.device_kind not in (None, "cpu") for row in analysis.ranks):
        found["accelerated"] = Figure(1.0, "boolean")
    return found

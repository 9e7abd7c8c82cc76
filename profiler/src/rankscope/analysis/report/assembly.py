"""Assembly of the result: source, ranks, collectives, waits, verdict, waterfall and advice. Every source takes this way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rankscope.analysis.collectives.matched import MatchedCollectives
from rankscope.analysis.collectives.traffic.bandwidth import bandwidths, directed_rows
from rankscope.analysis.collectives.traffic.links import Fabric
from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.costs.cost_figures import (
    figures_of_costs,
    figures_of_kernels,
    figures_of_memory,
    figures_of_pipeline,
    figures_of_ranks,
    figures_of_stages,
    figures_of_throughput,
)
from rankscope.analysis.costs.ledger import ledger_of_blame, ledger_of_steps
from rankscope.analysis.costs.waterfall import Costs, waterfall
from rankscope.analysis.evidence.compared import StepOwnTimes, imposed_wait
from rankscope.analysis.result.analysis import Analysis, CollectiveMatching, ImposedWait, RankResult, RareSteps, Source
from rankscope.analysis.result.costs import Ledger, LedgerSource, Memory, PipelineResult, Throughput
from rankscope.analysis.verdict.advice import AdviceSubject, figures_of_verdict, reason_of, recommend
from rankscope.analysis.verdict.builders import Setting, withhold_balanced
from rankscope.analysis.verdict.job_verdict import VerdictAndFindings
from rankscope.analysis.verdict.stalled_verdict import place
from rankscope.runs.records import KernelRecord

NO_COLLECTIVES: Final = CollectiveMatching(matched=0, unmatched=0, excluded={}, method=None, clock_residual_us=None)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Waits of the ranks for each other, by the ranks that impose them."""

    imposed: list[ImposedWait] = field(default_factory=list)
    source: LedgerSource | None = None
    ledger: Ledger | None = None


def attribution_of_blame(blame: Blame, source: LedgerSource) -> Attribution:
    """Return the waits at matched collectives; empty without any."""
    if not blame.steps:
        return Attribution()
    rows = [
        ImposedWait(
            rank=rank, imposed_us=blame.imposed_us[rank], imposed_exposed_us=blame.exposed_us[rank], share=blame.share(rank)
        )
        for rank in blame.ranks
    ]
    return Attribution(_largest_first(rows), source, ledger_of_blame(blame, source))


def attribution_of_steps(compared: Sequence[StepOwnTimes]) -> Attribution:
    """Return the waits by own times; empty where none are compared. They do not show how much of a wait compute hides."""
    imposed: dict[int, float] = {}
    for judged in compared:
        imposed.update(imposed_wait(judged))
    total = sum(imposed.values())
    # The training thread does nothing else during blocked time, so all of it is exposed.
    rows = [
        ImposedWait(rank=rank, imposed_us=value, imposed_exposed_us=value, share=value / total if total > 0 else None)
        for rank, value in imposed.items()
    ]
    return Attribution(_largest_first(rows), "steps" if rows else None, ledger_of_steps(compared))


def _largest_first(rows: list[ImposedWait]) -> list[ImposedWait]:
    return sorted(rows, key=lambda row: (-row.imposed_us, row.rank))


def matching_result(matched: MatchedCollectives, fabric: Fabric | None, *, explained: float | None = None) -> CollectiveMatching:
    """Return the result of the matching: counts, clocks, bandwidths and directed waits.

    ``fabric``: links of the ranks; ``None`` where records have no times of transfers. ``explained``: share of the communication
    that is matched, where known.
    """
    matching, clocks, waits = matched.matching, matched.clocks, matched.waits
    return CollectiveMatching(
        matched=len(matching.matches),
        unmatched=matching.unmatched,
        excluded=matching.excluded | waits.excluded,
        method=matching.method,
        clock_residual_us=None if clocks.residual_ns is None else clocks.residual_ns / 1000,
        unmatched_by=matching.unmatched_by,
        explained_share=explained,
        by_op=[] if fabric is None else bandwidths(matched.samples, fabric),
        waits=directed_rows(waits),
    )


def assemble(
    source: Source,
    ranks: list[RankResult],
    answer: VerdictAndFindings,
    setting: Setting,
    *,
    matched: MatchedCollectives,
    collectives: CollectiveMatching,
    attribution: Attribution,
    costs: Costs | None,
    kernels: Sequence[KernelRecord] = (),
    pipeline: PipelineResult | None = None,
    rare_steps: RareSteps | None = None,
    throughput: Throughput | None = None,
    memory: Memory | None = None,
) -> Analysis:
    """Return the result, with the waterfall of the step and the advice that its figures support.

    ``costs``: those of the step with all ranks. ``kernels``: of some ranks.
    """
    step_parts = None if costs is None else waterfall(costs)
    verdict, findings = answer
    verdict = withhold_balanced(verdict, None if step_parts is None else step_parts.share("straggler_wait"), setting)
    is_run = source.kind == "run"
    of_ranks = figures_of_ranks(ranks, matched.source)
    evidence = next((finding.evidence for finding in findings if finding.kind == "straggler"), [])
    reason = reason_of(verdict, evidence, accelerated="accelerated" in of_ranks, recorded=is_run)
    figures = {
        **of_ranks,
        **matched.figures,
        **figures_of_kernels(kernels, matched.source),
        **figures_of_pipeline(pipeline),
        **figures_of_memory(memory),
        **figures_of_throughput(throughput),
        **figures_of_costs(costs),
        **figures_of_stages(costs),
        **figures_of_verdict(verdict, costs, reason),
    }
    subject = AdviceSubject(
        run=source.path if is_run else None,
        ranks=sorted(verdict.ranks, key=lambda rank: rank != verdict.rank),
        hosts={row.rank: row.host for row in ranks if row.host is not None},
        whole_hosts=verdict.hosts,
        stalls_at=None if verdict.stalls_at is None else place(verdict.stalls_at),
    )
    return Analysis(
        source=source,
        ranks=ranks,
        collectives=collectives,
        imposed_wait=attribution.imposed,
        imposed_wait_source=attribution.source,
        ledger=attribution.ledger,
        verdict=verdict,
        findings=findings,
        rare_steps=rare_steps,
        pipeline=pipeline,
        waterfall=step_parts,
        throughput=throughput,
        memory=memory,
        advice=recommend(
            figures, subject, step_us=None if step_parts is None else step_parts.step_us, reason=reason, saves=verdict.saves
        ),
    )

"""Analysis of Kineto traces, one per rank."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from rankscope.analysis.assess import assessed_windows, breakdowns_of
from rankscope.analysis.bandwidth import bandwidths, directed_rows, samples
from rankscope.analysis.blame import Blame
from rankscope.analysis.bottleneck import shares_of
from rankscope.analysis.cause import Signals, cause_of
from rankscope.analysis.fabric import Fabric
from rankscope.analysis.late import ENOUGH_STEPS, device_signals, find_late, too_few
from rankscope.analysis.ledger import ledger_of_blame
from rankscope.analysis.links import ToldLink
from rankscope.analysis.locations import Location, common_folder
from rankscope.analysis.matched import Matched, match_ranks
from rankscope.analysis.matching import Matching
from rankscope.analysis.own_time import Slow
from rankscope.analysis.rank_traces import RankTrace, find_traces, read_ranks
from rankscope.analysis.ranks import rank_result
from rankscope.analysis.result import Analysis, CollectiveMatching, Evidence, Finding, ImposedWait, Source, Verdict
from rankscope.analysis.slow_links import with_slow_links
from rankscope.analysis.transfers import communication_parts
from rankscope.analysis.verdict import Named, Setting, among, insufficient, limits, nobody, straggler
from rankscope.analysis.waterfall import Costs
from rankscope.analysis.window_costs import costs_of_windows
from rankscope.analysis.wording import counted
from rankscope.analysis.workers import Engine


def analyze_traces(
    paths: Sequence[Location],
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "USD",
    links: Sequence[ToldLink] = (),
    communication_pattern: re.Pattern[str] | None = None,
    detail: bool = False,
    engine: Engine,
) -> Analysis:
    """Analyse traces of one or many ranks; see ``engine.analyze``."""
    files, named = find_traces(paths)
    traces, warnings = read_ranks(files, named, communication_pattern, detail=detail, engine=engine)
    if communication_pattern is not None and not any(trace.pattern_found for trace in traces):
        warnings.append(f"the communication pattern {communication_pattern.pattern!r} is in no kernel's name")
    # A collective that a torn trace lacks would look as if that rank had no part in it, and another had come last: so its rank is
    # taken for missing.
    whole = {trace.rank: trace.reduction.collectives for trace in traces if not trace.torn}
    fabric = _fabric(traces, links)
    matched = match_ranks(
        whole,
        ranks=[trace.rank for trace in traces],
        hosts={trace.rank: trace.host for trace in traces if trace.host},
        machines=fabric.hosts,
        world_size=max(len(traces), _world_size(traces) or 0),
    )
    matching, blame = matched.matching, matched.blame
    collectives = matching_result(matched, fabric)
    windows = {trace.rank: trace.reduction.breakdowns[0] for trace in traces}
    parts = communication_parts(
        matching.matches, {rank: (window.communication_us, window.overlap_us) for rank, window in windows.items()}
    )
    costs = _costs(traces, blame if matching.matches else None)
    verdict, findings = _verdict(traces, blame, matching, costs, price=price_per_gpu_hour, currency=currency)
    verdict, findings = with_slow_links(
        verdict, findings, collectives.by_op, {trace.rank: trace.reduction.breakdowns for trace in traces}
    )
    steps = sorted({number for trace in traces for number in trace.steps})
    world_size = _world_size(traces)
    analysis = Analysis(
        source=Source(
            kind="traces",
            path=os.fspath(paths[0]) if len(paths) == 1 else common_folder(files),
            ranks=len(traces),
            world_size=world_size,
            steps=max(1, len(steps)),
            coverage=_coverage(traces, files, steps),
            simulated=False,
            warnings=warnings,
        ),
        ranks=[
            rank_result(
                trace.rank,
                breakdowns=trace.reduction.breakdowns,
                blame=blame,
                steps=max(1, len(trace.steps)),
                host=trace.host,
                device_kind=trace.device_kind,
                communication_parts=parts.get(trace.rank),
                detail=trace.detail,
                clock=matched.clocks.found.get(trace.rank),
            )
            for trace in traces
        ],
        collectives=collectives,
        imposed_wait=imposed_result(blame) if matching.matches else [],
        imposed_wait_source="traces" if matching.matches else None,
        ledger=ledger_of_blame(blame, "traces"),
        verdict=verdict,
        findings=findings,
    )
    return assessed_windows(analysis, costs, [trace.reduction for trace in traces], "traces")


def _costs(traces: Sequence[RankTrace], blame: Blame | None, *, without: Collection[int] = ()) -> Costs | None:
    """Of all ranks, or of the others ``without`` some."""
    those = [trace for trace in traces if trace.rank not in without]
    return costs_of_windows(
        breakdowns_of([trace.reduction for trace in those]),
        blame,
        world_size=_world_size(traces),
        source="traces",
        unit="window",
        input_us=_input_us(those),
        without=without,
    )


def _input_us(traces: Sequence[RankTrace]) -> float | None:
    """Mean idle time of the devices while their hosts were in the data loader; ``None`` where not all traces show a loader."""
    known = [trace.input_us for trace in traces if trace.input_us is not None]
    return float(np.mean(known)) if known and len(known) == len(traces) else None


def _fabric(traces: Sequence[RankTrace], links: Sequence[ToldLink]) -> Fabric:
    seen = {trace.host: len(trace.gpu_names) for trace in traces if trace.host}
    ranks = Counter(trace.host for trace in traces)
    return Fabric(
        # With more ranks than GPUs, several machines have that name.
        hosts={trace.rank: trace.host for trace in traces if trace.host and not 0 < seen[trace.host] < ranks[trace.host]},
        # Which of the host's GPUs was the rank's need not be known where all are of one kind.
        gpu_names={trace.rank: trace.gpu_names[0] for trace in traces if len(set(trace.gpu_names)) == 1},
        gpus_on_host=seen,
        told=links,
    )


def matching_result(matched: Matched, fabric: Fabric) -> CollectiveMatching:
    """The result's account of the matching, and of what the matched collectives show."""
    matching, clocks, waits = matched.matching, matched.clocks, matched.waits
    return CollectiveMatching(
        matched=len(matching.matches),
        unmatched=matching.unmatched,
        excluded=matching.excluded | waits.excluded,
        method=matching.method,
        clock_residual_us=None if clocks.residual_ns is None else clocks.residual_ns / 1000,
        unmatched_by=matching.unmatched_by,
        by_op=bandwidths(samples(matching, waits), fabric),
        waits=directed_rows(waits.waits),
    )


def imposed_result(blame: Blame) -> list[ImposedWait]:
    """Imposed wait of every rank, most first."""
    rows = [
        ImposedWait(
            rank=rank, imposed_us=blame.imposed_us[rank], imposed_exposed_us=blame.exposed_us[rank], share=blame.share(rank)
        )
        for rank in blame.ranks
    ]
    return sorted(rows, key=lambda row: (-row.imposed_us, row.rank))


def late_named(slow: Slow, blame: Blame, window_us: float, signals: Signals, *, steps: int = 1) -> Named:
    """What there is to say of a rank that was late in windows, of ``window_us`` and ``steps`` steps each: per step."""
    victims = max(1, len(blame.ranks) - len(slow.ranks))
    imposed, exposed = (sum(each[rank] for rank in slow.ranks) for each in (blame.imposed_us, blame.exposed_us))
    total = sum(blame.imposed_us.values())
    share = imposed / total if total > 0 else None
    evidence = [
        Evidence(name="imposed_wait", value=imposed, unit="us", detail="summed over the victims"),
        Evidence(name="imposed_wait_exposed", value=exposed, unit="us", detail="the part that no compute hid"),
        Evidence(
            name="saved",
            value=slow.gain_us / steps,
            unit="us",
            detail=f"per {'window' if steps == 1 else 'step'}, had it come with the last of the others",
        ),
        Evidence(
            name="last",
            value=slow.last_share,
            unit="ratio",
            detail=f"of the {'collectives' if len(blame.steps) < 2 else 'steps'} in which anybody clearly was",
        ),
    ]
    if share is not None:
        evidence.append(Evidence(name="imposed_wait_share", value=share, unit="ratio", detail="of all imposed wait"))
    if slow.p_value is not None:
        evidence.append(Evidence(name="p_value", value=slow.p_value, unit="probability", detail="permutation test"))
    return Named(
        ranks=slow.ranks,
        pattern=slow.pattern,
        cause=cause_of(signals),
        phase=signals.phase,
        gain_us=slow.gain_us / steps,
        wait_us=exposed / victims / steps,
        step_us=window_us / steps,
        confidence=round(min(0.99, slow.stability * (1 - (slow.p_value or 0.0))), 3),
        group=_where(blame, slow.ranks[0]),
        note="" if len(blame.steps) >= ENOUGH_STEPS else _FEW.format(steps=counted(max(1, len(blame.steps)), "step")),
        evidence=evidence,
    )


_FEW: Final = "Seen in {steps}: whether it lasts, more steps tell."


def _where(blame: Blame, rank: int) -> str | None:
    """The process group in which others waited most for a rank; ``None`` where there is one only."""
    waits = {group: sum(row[1] for (origin, _), row in rows.items() if origin == rank) for group, rows in blame.rows.items()}
    return max(waits, key=lambda group: waits[group])[0] if len(waits) > 1 else None


def _world_size(traces: Sequence[RankTrace]) -> int | None:
    return max((trace.world_size for trace in traces if trace.world_size is not None), default=None)


def _coverage(traces: Sequence[RankTrace], files: Sequence[Location], steps: Sequence[int]) -> float:
    expected = max(_world_size(traces) or len(files), len(traces))
    # How much of a torn trace is gone nobody knows; what it has is not all there is, so its last step counts half.
    seen = sum(max(1, len(trace.steps)) - (0.5 if trace.torn else 0) for trace in traces)
    return seen / (expected * max(1, len(steps)))


def _verdict(
    traces: Sequence[RankTrace], blame: Blame, matching: Matching, costs: Costs | None, *, price: float | None, currency: str
) -> tuple[Verdict, list[Finding]]:
    breakdowns = [row for trace in traces for row in trace.reduction.breakdowns]
    world_size = _world_size(traces)
    numbers = sorted({number for trace in traces for number in trace.steps})
    setting = Setting(
        source="traces",
        world_size=world_size or len(traces),
        steps=(numbers[0], numbers[-1] + 1) if numbers else None,
        step_count=1,
        unit="window",
        accelerated=any(trace.device_kind != "cpu" for trace in traces),
        hosts={trace.rank: trace.host for trace in traces if trace.host},
        price_per_gpu_hour=price,
        currency=currency,
    )
    reductions = {trace.rank: trace.reduction for trace in traces}
    shares = shares_of(costs)
    if (world_size or 1) == 1 and len(traces) == 1:
        return nobody(shares, setting, confidence=None, why="There is one rank, so nobody can make others wait")
    if len(traces) == 1:
        missing = f"the trace of 1 rank of {world_size} cannot show who waits for whom; give the traces of all ranks"
        return insufficient(missing), limits(shares, setting, lead="On this rank ")
    if not matching.matches:
        if world_size and len(traces) < world_size:
            missing = f"the traces of {len(traces)} ranks of {world_size} cannot show who was last; give the traces of all ranks"
        elif torn := [trace.rank for trace in traces if trace.torn]:
            missing = f"the trace of rank {torn[0]} is cut off, and that rank may have been last; give whole traces of all ranks"
        else:
            missing = "no collective could be matched across the ranks"
        return insufficient(missing), limits(shares, setting, lead="On the ranks at hand ")
    window = float(np.mean([row.window_us for row in breakdowns]))
    late = find_late(blame, window)
    suspect = None if late else too_few(blame, window)
    if suspect is not None:
        missing = f"rank {suspect} was last, but at so few collectives that it may be chance; trace more steps"
        return insufficient(missing), limits(shares, setting, lead="")
    if late is None:
        whom = among(len(traces), setting.world_size, "traces")
        return nobody(shares, setting, confidence=None, why=f"No rank makes the others wait beyond chance{whom}")
    signals = device_signals(late.ranks[0], late.gain_us, {one: reduction.breakdowns for one, reduction in reductions.items()})
    verdict, finding = straggler(late_named(late, blame, window, signals), setting)
    besides = _costs(traces, blame, without=late.ranks)
    return verdict, [finding, *limits(shares_of(besides), setting, lead="Besides that, ")]

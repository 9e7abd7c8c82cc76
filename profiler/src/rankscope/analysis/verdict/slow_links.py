"""Finding for transfers far below the rate that their link should reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from rankscope.analysis.inference.judging.slow_ranks import MINIMUM_EFFECT
from rankscope.analysis.result.analysis import Evidence, Finding, Verdict
from rankscope.analysis.result.collectives import CollectiveBandwidth
from rankscope.analysis.verdict.advice import AdviceSubject, next_actions
from rankscope.runs.records import StepBreakdown

FAR_BELOW: Final = 0.4
"""Share of a link's bare rate below which transfers are too slow. A healthy link reaches 70 to 95 % with long transfers.
Protocols, rings over several boards and concurrent compute explain the rest, but not a share this low."""

HEALTHY: Final = 0.8
"""Share of the bare rate that a transfer would reach on a healthy link; the reference for the loss."""


def slow_rows(rows: Sequence[CollectiveBandwidth]) -> list[CollectiveBandwidth]:
    """Return the rows whose transfers are bound by bandwidth and far below their link's rate."""
    return [row for row in rows if row.share is not None and row.share < FAR_BELOW and row.bound_by == "bandwidth"]


def lost_us(row: CollectiveBandwidth) -> float:
    """Return the time that the row's transfers lose to a slow link, summed over instances and ranks."""
    if row.share is None or row.transfer_us is None or row.group_size is None:
        return 0.0
    return row.matched * row.group_size * row.transfer_us * max(0.0, 1 - row.share / HEALTHY)


def with_slow_links(
    verdict: Verdict,
    findings: list[Finding],
    rows: Sequence[CollectiveBandwidth],
    breakdowns: Mapping[int, Sequence[StepBreakdown]],
    *,
    run: str | None = None,
) -> tuple[Verdict, list[Finding]]:
    """Add the finding on slow links, if there is one; it also explains a verdict of ``communication_bound``.

    The loss must reach ``MINIMUM_EFFECT`` of the profiled time, and so must the communication that no compute hides.
    """
    slow = slow_rows(rows)
    windows = [row for of_rank in breakdowns.values() for row in of_rank]
    total = sum(row.window_us for row in windows)
    if not slow or not total:
        return verdict, findings
    exposed = sum(row.exposed_communication_us for row in windows) / total
    share = min(sum(map(lost_us, slow)) / total, exposed)
    if share < MINIMUM_EFFECT:
        return verdict, findings
    worst = max(slow, key=lost_us)
    finding = Finding(
        kind="communication_bound", cause="communication", summary=_sentence(worst, share), evidence=_evidence(slow)
    )
    if verdict.kind == "communication_bound":
        verdict = msgspec.structs.replace(
            verdict,
            cause="communication",
            explained_by="link",
            next=next_actions("communication_bound", AdviceSubject(run), cause="communication", reason="link"),
        )
    return verdict, [*findings, finding]


def _sentence(row: CollectiveBandwidth, share: float) -> str:
    assert row.bus_gb_s is not None
    assert row.expected_gb_s is not None
    moves = f"{row.op} of group {row.group} moves {row.bus_gb_s:.3g} GB/s"
    return f"{moves} over {row.link}, which should give {row.expected_gb_s:.4g}: up to {share:.0%} of the profiled time is lost."


def _evidence(rows: Sequence[CollectiveBandwidth]) -> list[Evidence]:
    evidence: list[Evidence] = []
    for row in rows[:8]:
        where = f"{row.op} of group {row.group}, {row.bytes} bytes, over {row.link}"
        for name, value in (("bus_bandwidth", row.bus_gb_s), ("expected_bandwidth", row.expected_gb_s)):
            assert value is not None, "rows that are slow have both"
            evidence.append(Evidence(name=name, value=value, unit="GB/s", detail=where))
    return evidence

"""Results of actions as annotations of an alert: rank, cause, cost to the other ranks, and the page that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from rankscope.alerts.receive.bounded_child import ChildResult
from rankscope.alerts.receive.verdicts.known_runs import KnownRun
from rankscope.alerts.receive.verdicts.run_verdict import bounded_texts, by_name_only
from rankscope.alerts.watch.conditions.findings import problem_annotations
from rankscope.alerts.watch.liveness.liveness_alerts import PIDS, concrete, is_stack, stacks
from rankscope.analysis.hang.hang_result import HangReport
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.text import reading
from rankscope.base.errors import InputError
from rankscope.base.text import format_duration
from rankscope.runs.links import overview_url, window_url
from rankscope.runs.reader import RunReader

Outcome = Literal["shown", "incomplete", "refused", "unanswered", "impossible"]
"""``incomplete``: some ranks are missing; ``impossible``: no request could be made, or no result could be read."""


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an action."""

    outcome: Outcome
    annotations: dict[str, str]
    """``summary`` is the sentence about the result."""


class _MissingRank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    reason: str


class _CaptureJson(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the JSON of ``rankscope capture`` that are used here."""

    accepted: bool | None = None
    reason: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    missing: list[_MissingRank] = []
    analysis: Analysis | None = None
    dumps: list[Any] = []


def impossible_result(result: str, reason: str) -> ActionResult:
    """Build the result of an action that could not be carried out."""
    return ActionResult(outcome="impossible", annotations=bounded_texts({"summary": f"No {result}: {reason}"}))


def is_simulated(annotations: dict[str, str]) -> bool:
    """Check for simulated GPUs: the watcher's alerts have an annotation, those of Prometheus rules a prefix."""
    return annotations.get("simulated") == "true" or annotations.get("summary", "").startswith("[simulated")


def mark_simulated(result: ActionResult) -> ActionResult:
    """Mark a result as coming from simulated GPUs."""
    return result if is_simulated(result.annotations) else _led(result, "[simulated GPUs] ", simulated="true")


def result_of_run(result: ActionResult, run: KnownRun, *, by_name: bool) -> ActionResult:
    """Add remarks about the run to a result: found by name only, simulated GPUs."""
    if by_name:
        result = _led(result, by_name_only(run.run_id), found_by_name=run.run_id)
    return mark_simulated(result) if run.simulated else result


def _led(result: ActionResult, lead: str, **more: str) -> ActionResult:
    return msgspec.structs.replace(
        result, annotations={**result.annotations, **more, "summary": f"{lead}{result.annotations.get('summary', '')}"}
    )


def merged_steps(before: str, after: str) -> str:
    """Merge ``next`` for a follow-up: stacks of processes first, then the alert's steps, then other new steps."""
    new = after.splitlines()
    return "\n".join(concrete([*filter(is_stack, new), *before.splitlines(), *new]))


def capture_result(child_result: ChildResult, *, dashboard_url: str | None) -> ActionResult:
    """Describe the result of a capture."""
    result = _decoded(child_result)
    if result is None:
        return impossible_result("capture", child_result.error or "the command that requests it failed")
    analysis = result.analysis
    if analysis is None or result.first_step is None:
        outcome: Outcome = "unanswered" if result.accepted is None else "refused"
        return ActionResult(
            outcome=outcome,
            annotations=bounded_texts({"summary": f"The capture was {outcome}: {result.reason}"}),
        )
    verdict = analysis.verdict
    lead = "[simulated GPUs] " if analysis.source.simulated else ""
    steps = f"{result.first_step}-{result.last_step}"
    texts = {
        **problem_annotations(verdict),
        "summary": f"{lead}Captured steps {steps}: {verdict.summary}",
        "simulated": "true" if analysis.source.simulated else "",
        "capture_steps": steps,
        "process_group": verdict.group or "",
        "coverage": "" if analysis.source.coverage is None else f"{analysis.source.coverage:.0%}",
        "next": "\n".join(verdict.next),
        "overlap": _overlap(analysis),
        "imposed_wait": _imposed(analysis),
        "collectives": _collectives(analysis),
        "evidence": "; ".join(" ".join(reading(item)) for finding in analysis.findings[:1] for item in finding.evidence),
        "missing": "; ".join(f"rank {row.rank}: {row.reason}" for row in result.missing[:8]),
    }
    if verdict.hosts:
        texts |= {"verdict_host": ", ".join(verdict.hosts), "verdict_ranks": ",".join(map(str, verdict.ranks))}
    elif verdict.rank is not None:
        row = next((row for row in analysis.ranks if row.rank == verdict.rank), None)
        texts["verdict_rank"] = str(verdict.rank)
        texts |= {"verdict_host": row.host or "", "gpu_uuid": row.gpu_uuid or ""} if row is not None else {}
    if dashboard_url is not None and analysis.source.run_id:
        texts["dashboard_url"] = window_url(
            dashboard_url, analysis.source.run_id, first_step=result.first_step, rank=verdict.rank
        )
    return ActionResult(outcome="incomplete" if result.missing else "shown", annotations=bounded_texts(texts))


def dump_result(dumped: ChildResult, hang: ChildResult | None, *, run: KnownRun, dashboard_url: str | None) -> ActionResult:
    """Describe the result of a dump of the ranks' Flight Recorders."""
    result = _decoded(dumped)
    if result is None or hang is None:
        return impossible_result("dump", dumped.error or "the command that requests it failed")
    missing = "; ".join(f"rank {row.rank}: {row.reason}" for row in result.missing[:8])
    if not result.dumps:
        texts = {"summary": f"No rank wrote a dump: {missing}", "missing": missing}
        return ActionResult(outcome="unanswered", annotations=bounded_texts(texts))
    try:
        report = msgspec.json.decode(hang.output, type=HangReport)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return impossible_result("verdict about the dumps", hang.error or "they cannot be read")
    texts = {
        "summary": f"Flight Recorders: {report.summary}",
        "missing": missing,
        "verdict_rank": ", ".join(map(str, report.culprits[:8])),
        "verdict_host": ", ".join(culprit.host for culprit in report.evidence[:8] if culprit.host),
        "collectives": "" if report.collective is None else report.collective.op,
        "process_group": "" if report.group is None else report.group.name,
        "next": "\n".join(concrete([*_stacks(run.path, report.culprits), *report.next])),
    }
    if dashboard_url is not None:
        texts["dashboard_url"] = overview_url(dashboard_url, run.run_id, rank=report.culprits[0] if report.culprits else None)
    return ActionResult(outcome="incomplete" if result.missing else "shown", annotations=bounded_texts(texts))


def _stacks(run: Path, ranks: Sequence[int]) -> list[str]:
    try:
        reader = RunReader(run)
        attempts = reader.attempts()
        infos = [reader.rank(attempts[-1], rank) for rank in ranks[:PIDS]] if attempts else []
    except InputError:
        return []
    return stacks(info for info in infos if info is not None)


def _decoded(child_result: ChildResult) -> _CaptureJson | None:
    try:
        return msgspec.json.decode(child_result.output, type=_CaptureJson)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _overlap(analysis: Analysis) -> str:
    """``rank 3 hides 12% of its communication, the others 64%``."""
    ratios = {row.rank: row.overlap_ratio for row in analysis.ranks if row.overlap_ratio is not None}
    others = [ratio for rank, ratio in ratios.items() if rank != analysis.verdict.rank]
    parts = []
    if analysis.verdict.rank in ratios:
        parts.append(f"rank {analysis.verdict.rank} hides {ratios[analysis.verdict.rank]:.0%} of its communication")
    if others:
        mean = f"{sum(others) / len(others):.0%}"
        parts.append(f"the others {mean}" if parts else f"the ranks hide {mean} of their communication")
    return ", ".join(parts)


def _imposed(analysis: Analysis) -> str:
    if not analysis.imposed_wait:
        return ""
    worst = analysis.imposed_wait[0]
    share = "" if worst.share is None else f", {worst.share:.0%} of all waiting"
    steps = max(1, analysis.source.steps)
    return f"the others waited {format_duration(worst.imposed_us / steps)} per step for rank {worst.rank}{share}"


def _collectives(analysis: Analysis) -> str:
    """Name up to four operations, the longest first."""
    ops = dict.fromkeys(row.op for row in analysis.collectives.by_op)
    return ", ".join(list(ops)[:4])

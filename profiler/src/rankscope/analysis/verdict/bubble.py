"""Finding about a pipeline's bubble: its parts, and what to try."""

from __future__ import annotations

from typing import Final

import msgspec

from rankscope.analysis.result.analysis import Evidence, Finding, Verdict
from rankscope.analysis.result.costs import PipelineResult
from rankscope.analysis.verdict.advice import AdviceSubject, next_actions

_PARTS: Final = (
    ("schedule", "ideal_us", "is what the schedule costs with equal stages"),
    ("stage_imbalance", "imbalance_us", "is because stages differ"),
    ("transfers_and_stalls", "rest_us", "is neither: transfers, stalls, slow ranks, other collectives"),
)
"""Parts of a bubble: name, field of ``PipelineResult`` with the amount, and wording."""


def bubble_explained(
    verdict: Verdict, findings: list[Finding], pipeline: PipelineResult | None, run: str
) -> tuple[Verdict, list[Finding]]:
    """Return the verdict and findings, those about a bubble with the parts of the bubble added; ``run``: the run directory."""
    if pipeline is None:
        return verdict, findings
    parts = bubble_sentences(pipeline)
    findings = [
        msgspec.structs.replace(
            finding, summary=f"{finding.summary} {parts}".strip(), evidence=[*finding.evidence, *_evidence(pipeline)]
        )
        if finding.kind == "pipeline_bubble"
        else finding
        for finding in findings
    ]
    if verdict.kind != "pipeline_bubble":
        slowest = _slowest(pipeline)
        if not slowest or verdict.kind == "straggler":
            return verdict, findings
        return msgspec.structs.replace(verdict, stage=pipeline.slowest_stage, summary=f"{verdict.summary} {slowest}"), findings
    why = reason(pipeline)
    return (
        msgspec.structs.replace(
            verdict,
            stage=pipeline.slowest_stage,
            explained_by=why,
            summary=f"{verdict.summary} {parts}".strip(),
            next=next_actions("pipeline_bubble", AdviceSubject(run), reason=why),
        ),
        findings,
    )


def reason(pipeline: PipelineResult) -> str | None:
    """Return the name of the largest part of the bubble; ``None`` where the schedule is not known."""
    parts = [(amount, name) for name, field, _ in _PARTS if (amount := getattr(pipeline, field)) is not None]
    return max(parts)[1] if parts else None


def bubble_sentences(pipeline: PipelineResult) -> str:
    """Return sentences about the parts of the bubble and the slowest stage."""
    sentences = []
    parts = [
        f"{amount / pipeline.step_us:.0%} {words}"
        for _, field, words in _PARTS
        if (amount := getattr(pipeline, field)) is not None and amount >= 0.005 * pipeline.step_us
    ]
    if parts:
        sentences.append(f"Of the step, {'; '.join(parts)}.")
    return " ".join([*sentences, _slowest(pipeline)]).strip()


def _slowest(pipeline: PipelineResult) -> str:
    """Return a sentence about the slowest stage; empty where no stage stands out."""
    if pipeline.slowest_stage is None or pipeline.slowest_excess is None:
        return ""
    return f"Stage {pipeline.slowest_stage} is busy {pipeline.slowest_excess:.0%} longer than the others."


def _evidence(pipeline: PipelineResult) -> list[Evidence]:
    rows = [
        ("bubble.ideal_share", pipeline.ideal_bubble, "ratio", "(p - 1) / (v m + p - 1)"),
        *((f"bubble.{name}", getattr(pipeline, field), "us", "per step") for name, field, _ in _PARTS),
        *((f"stage_busy.{stage.stage}", stage.busy_us, "us", "per step") for stage in pipeline.stages),
    ]
    return [Evidence(name=name, value=value, unit=unit, detail=detail) for name, value, unit, detail in rows if value is not None]

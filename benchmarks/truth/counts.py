"""Evaluation of the cases of ``truth.py``: figures, budgets and confusion matrices from the rows of its results."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.common.result import budget

LOSS = 0.15
QUIET = ("none", "neighbour")
"""Cases in which nothing is planted."""

# Fault to the cause and the phase of a right verdict; ``None``: any phase.
EXPECTED: dict[str, tuple[str, str | None]] = {
    "loader": ("input", "data"),
    "forward": ("host", "forward"),
    "backward_early": ("host", "backward"),
    "backward_late": ("host", "backward"),
    "optimizer": ("host", "optimizer"),
    "between": ("host", "between_steps"),
    "gc": ("gc", None),
    "checkpoint": ("checkpoint", None),
    "intermittent": ("host", "forward"),
    "two": ("host", "forward"),
    "core": ("compute", None),
    "work": ("imbalance", None),
    "enlarged": ("imbalance", None),
}
OUTCOMES = ("right", "right rank", "other rank", "nobody", "too little")


def outcome(row: dict[str, Any], arm: str) -> str:
    """Return the outcome of the case."""
    verdict = row[arm]
    if "insufficient" in verdict["kind"] or verdict["kind"] in ("no_data", "warmup"):
        return "too little"
    if row["fault"] == "network":
        return (
            "right" if verdict["kind"] == "communication_bound" else "other rank" if verdict["kind"] == "straggler" else "nobody"
        )
    if verdict["kind"] != "straggler":
        return "nobody" if row["slow"] or row["fault"] == "rotating" else "right"
    if row["fault"] == "rotating":
        return "right" if verdict.get("pattern") == "rotating" else "other rank"
    if not row["slow"] or sorted(verdict["ranks"]) != row["slow"]:
        return "other rank"
    cause, phase = EXPECTED[row["fault"]]
    # TraceML reports phases and no causes.
    right = (arm == "traceml" or verdict["cause"] == cause) and phase in (None, verdict["phase"])
    return "right" if right else "right rank"


def loss_error(row: dict[str, Any]) -> float | None:
    """Return the relative error of the reported loss; ``None`` if a loss is unknown, or the verdict is not right."""
    verdict = row["windows"]
    if (
        not row["required"]
        or row.get("noise")  # pauses of other ranks hide a part of it
        or not row["planted_us"]
        or verdict["saved_us"] is None
        or not outcome(row, "windows").startswith("right")
    ):
        return None
    return float(verdict["saved_us"] / row["planted_us"] - 1)


def share(rows: Sequence[dict[str, Any]], arm: str, *wanted: str) -> float | None:
    """Return the share of rows with one of the outcomes; ``None`` without rows."""
    return sum(outcome(row, arm) in wanted for row in rows) / len(rows) if rows else None


def summary(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return figures and budgets."""
    noisy = [row for row in rows if row.get("noise")]
    planted = [row for row in rows if row["required"] and not row.get("noise")]
    quiet = [row for row in rows if row["fault"] in QUIET and row["layout"] != "pp" and not row.get("noise")]
    errors = sorted(abs(error) for row in rows if (error := loss_error(row)) is not None)
    figures: dict[str, Any] = {"cases": len(rows), "planted": len(planted), "nothing_planted": len(quiet)}
    for arm in ("windows", "records", "traceml"):
        with_arm, calm = ([row for row in part if arm in row] for part in (planted, quiet))
        figures[arm] = {
            "planted": len(with_arm),
            "right_rank": share(with_arm, arm, "right", "right rank"),
            "right_rank_cause_and_phase": share(with_arm, arm, "right"),
            "rank_or_too_little": share(with_arm, arm, "right", "right rank", "too little"),
            "false_accusations": share(calm, arm, "other rank"),
            "nothing_planted": len(calm),
        }
    figures["loss"] = {
        "cases": len(errors),
        "within_15_percent": sum(error <= LOSS for error in errors) / len(errors) if errors else None,
        "median_error": statistics.median(errors) if errors else None,
    }
    slow, calm = [row for row in noisy if row["slow"]], [row for row in noisy if not row["slow"]]
    figures["noise"] = {
        arm: {
            "planted": len(slow),
            "right_rank_cause_and_phase": share(slow, arm, "right"),
            "other_rank": share(slow, arm, "other rank"),
            "nothing_planted": len(calm),
            "nobody_named": share(calm, arm, "right", "too little"),
        }
        for arm in ("windows", "records")
    }
    figures["confusion"] = {arm: confusion(rows, arm) for arm in ("windows", "records", "traceml")}
    limits = (
        ("right rank, with windows", figures["windows"]["right_rank"], 0.98, True),
        ("right rank, cause and phase, with windows", figures["windows"]["right_rank_cause_and_phase"], 0.90, True),
        ("false accusations, with windows", figures["windows"]["false_accusations"], 0.02, False),
        ("false accusations, records alone", figures["records"]["false_accusations"], 0.02, False),
        ("right rank or not enough data, records alone", figures["records"]["rank_or_too_little"], 0.95, True),
        ("right rank, cause and phase, among long pauses", figures["noise"]["records"]["right_rank_cause_and_phase"], 0.95, True),
        ("nobody named without a fault, among long pauses", figures["noise"]["records"]["nobody_named"], 0.98, True),
        ("median error of the loss", figures["loss"]["median_error"], LOSS, False),
    )
    return figures, [
        budget(name, value, limit, at_least=at_least)
        for name, value, limit, at_least in limits
        if value is not None  # there are no such cases among ``rows``
    ]


def confusion(rows: Sequence[dict[str, Any]], arm: str) -> dict[str, dict[str, int]]:
    """Return the number of each outcome by fault, size and layout."""
    table: dict[str, Counter[str]] = {}
    for row in rows:
        if arm in row:
            size = (f" {row['size']:.0%}" if row["size"] else "") + (" among pauses" if row.get("noise") else "")
            table.setdefault(f"{row['fault']}{size}, {row['layout']} {row['ranks']}", Counter())[outcome(row, arm)] += 1
    return {name: {column: table[name][column] for column in OUTCOMES} for name in sorted(table)}


def markdown(figures: dict[str, Any], budgets: list[dict[str, Any]]) -> str:
    """Format the budgets and the confusion matrices as tables."""
    lines = ["| budget | measured | limit | met |", "|---|---|---|---|"]
    lines += [f"| {row['name']} | {row['value']:.3f} | {row['limit']} | {'yes' if row['ok'] else 'no'} |" for row in budgets]
    for arm, table in figures["confusion"].items():
        lines += ["", f"### {arm}", "", f"| planted | {' | '.join(OUTCOMES)} |", "|---" * (len(OUTCOMES) + 1) + "|"]
        lines += [f"| {name} | {' | '.join(str(row[column] or '') for column in OUTCOMES)} |" for name, row in table.items()]
    return "\n".join(lines) + "\n"

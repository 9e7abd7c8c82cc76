"""Small components shared by several pages."""

from __future__ import annotations

from typing import Any, get_args

from dash import html

from rankscope.analysis.result.costs import LedgerSource
from rankscope.analysis.verdict.builders import EvidenceSource
from rankscope.dashboards.pages.pieces import first_of, run_link, unbroken
from rankscope.dashboards.pages.wording import EVIDENCE
from rankscope.dashboards.views.blame import _IMPOSED_IN


def whole(parts: list[Any]) -> list[str]:
    """Return the texts that must not be broken over lines."""
    return [part.children for part in parts if isinstance(part, html.Span)]


def test_options_of_a_command_are_not_broken_over_lines() -> None:
    says = "rankscope capture RUN --keep-trace, or rankscope run --keep-traces N, keeps them - of 3-4 ranks, -1 is none."
    parts = unbroken(says)
    assert whole(parts) == ["--keep-trace", "--keep-traces"]
    assert "".join(part if isinstance(part, str) else part.children for part in parts) == says


def test_a_long_name_is_cut_off_in_a_link_and_said_in_full_beside_it() -> None:
    short: Any = run_link("run 1", "bert")
    long: Any = run_link("run-2", "w" * 300)
    assert (short.children, short.href, short.title) == ("bert", "/run/run%201", None)
    assert len(long.children) == 80
    assert long.title == "w" * 300


def test_of_many_the_first_are_named_and_the_others_counted() -> None:
    assert "".join(map(str, first_of(["a", "b"], 3))) == "a, b"
    assert "".join(map(str, first_of(["a", "b", "c", "d"], 2))) == "a, b and 2 more"


def test_all_evidence_of_a_verdict_has_a_name() -> None:
    assert set(EVIDENCE) == set(get_args(EvidenceSource))
    assert set(_IMPOSED_IN) == {*get_args(LedgerSource), None}

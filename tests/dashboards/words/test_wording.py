"""Every value of the analysis that the pages show has words, and each cause a label and a look of its own."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.analysis.causes import CAUSES as ROWS
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import LedgerSource, PartName
from rankscope.analysis.verdict.builders import EvidenceSource
from rankscope.analysis.whatif.cause_parts import CAUSE_PARTS
from rankscope.dashboards.charts.causes import CAUSES
from rankscope.dashboards.delays.data import CHARGED
from rankscope.dashboards.delays.view import _IMPOSED_IN
from rankscope.dashboards.model.line import Span, code_pieces, pieces
from rankscope.dashboards.overview.figures import STYLES
from rankscope.dashboards.overview.verdict import _facts
from rankscope.dashboards.words.units import duration, in_unit, shown_unit, time_unit
from rankscope.dashboards.words.wording import EVIDENCE, slowdown
from rankscope.runs.durations import DurationSource


def test_every_evidence_source_has_a_label() -> None:
    assert set(EVIDENCE) == set(get_args(EvidenceSource))
    assert set(_IMPOSED_IN) == {*get_args(LedgerSource), None} - set(get_args(DurationSource))


def test_duration_is_formatted_in_the_unit_of_the_axis() -> None:
    axis = time_unit(3_130_000)

    assert [in_unit(us, axis) for us in (3_130_000, 672, 0, 1e-3)] == ["3,130 ms", "0.672 ms", "0 ms", "0 ms"]


def test_slowdown_is_formatted_the_same_in_every_output(analysis: Analysis) -> None:
    result = "2.41x"
    verdict = msgspec.structs.replace(analysis.verdict, slowdown=2.4087)
    finding = msgspec.structs.replace(analysis.findings[0], slowdown=2.4087)
    answer = msgspec.structs.replace(analysis, verdict=verdict, findings=[finding])
    fact = next(fact for fact in _facts(answer) if fact.name == "Slowdown")
    (alert, *_) = candidates(answer)

    assert slowdown(answer.verdict.slowdown) == fact.value == alert.alert.annotations["slowdown"] == result
    assert f"slowdown {result}" in render_text(answer)


def test_code_and_options_in_text_become_separate_spans() -> None:
    output = pieces("spent at `time.sleep` without --verdict")

    assert [(item.text, item.kind) for item in output if isinstance(item, Span)] == [
        ("spent at ", "span"),
        ("time.sleep", "code"),
        (" without ", "span"),
        ("--verdict", "option"),
    ]


def test_options_in_code_are_pieces_that_do_not_break() -> None:
    texts = ("--exporter-url URL", "rankscope run --no-hardware", "/runs/a--b")

    assert [[(part.text, part.kind) for part in code_pieces(text)] for text in texts] == [
        [("--exporter-url", "option"), (" URL", "span")],
        [("rankscope run ", "span"), ("--no-hardware", "option")],
        [("/runs/a--b", "span")],
    ]


def test_every_cause_has_advice_label_and_style() -> None:
    named = set(get_args(Cause))
    assert {row.cause for row in ROWS} == named
    assert named | {part.cause for part in CAUSE_PARTS} | set(CHARGED) == set(CAUSES)


def test_labels_and_styles_of_causes_are_unique() -> None:
    assert len({shown.label for shown in CAUSES.values()}) == len(CAUSES)
    assert len({(shown.color, shown.hatch) for shown in CAUSES.values()}) == len(CAUSES)


def test_cause_has_the_style_of_its_step_part() -> None:
    parts: dict[str, PartName] = {
        "input": "input",
        "host": "host",
        "compute": "compute",
        "communication": "exposed_communication",
    }
    for cause, part in parts.items():
        assert (CAUSES[cause].color, CAUSES[cause].hatch) == (STYLES[part].color, STYLES[part].hatch), cause


def test_every_cause_except_unknown_has_remedies() -> None:
    assert {row.cause for row in ROWS if row.remedies} == set(get_args(Cause)) - {"unknown"}


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.5, "0.5 µs"), (788.4, "788 µs"), (7_000, "7 ms"), (360_407, "360 ms"), (2.5 * 3_600e6, "2.5 h"), (61e6, "1.02 min")],
)
def test_durations_are_formatted_in_readable_units(us: float, text: str) -> None:
    assert duration(us) == text


@given(st.floats(1, 1e15))
def test_axis_unit_keeps_values_small(longest_us: float) -> None:
    size, _unit = time_unit(longest_us)
    assert longest_us / size < 10_001 or size == 3_600e6


@pytest.mark.parametrize(
    ("unit", "value", "shown"),
    [
        ("us", 12_000.0, (12.0, "ms")),
        ("hertz", 1.98e9, (1980.0, "MHz")),
        ("ratio", 0.25, (25.0, "%")),
        ("celsius", 81.0, (81.0, "°C")),
        ("watts", 700.0, (700.0, "W")),
        ("bytes", 80 * 2.0**30, (80.0, "GiB")),
        ("tokens", 5.0, (5.0, "tokens")),
    ],
)
def test_values_are_shown_in_a_readable_unit(unit: str, value: float, shown: tuple[float, str]) -> None:
    size, name = shown_unit(unit, value)
    assert value / size == pytest.approx(shown[0])
    assert name == shown[1]

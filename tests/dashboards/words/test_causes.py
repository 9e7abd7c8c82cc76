"""Causes on the pages: each that the analysis can name has a label and a look of its own."""

from __future__ import annotations

from typing import get_args

from rankscope.analysis.causes import CAUSES as ROWS
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import PartName
from rankscope.analysis.whatif.causes import CAUSE_PARTS
from rankscope.dashboards.overview.figures import LOOKS
from rankscope.dashboards.stragglers.data import CHARGED
from rankscope.dashboards.words.causes import CAUSES


def test_every_cause_has_a_row_a_label_and_a_look() -> None:
    named = set(get_args(Cause))
    assert {row.cause for row in ROWS} == named
    assert named | {part.cause for part in CAUSE_PARTS} | set(CHARGED) == set(CAUSES)


def test_no_two_causes_look_alike() -> None:
    assert len({shown.label for shown in CAUSES.values()}) == len(CAUSES)
    assert len({(shown.color, shown.hatch) for shown in CAUSES.values()}) == len(CAUSES)


def test_a_cause_has_the_colour_of_its_part_of_the_step() -> None:
    parts: dict[str, PartName] = {
        "input": "input",
        "host": "host",
        "compute": "compute",
        "communication": "exposed_communication",
    }
    for cause, part in parts.items():
        assert (CAUSES[cause].color, CAUSES[cause].hatch) == (LOOKS[part].color, LOOKS[part].hatch), cause


def test_every_cause_has_something_to_do_or_is_unknown() -> None:
    assert {row.cause for row in ROWS if row.remedies} == set(get_args(Cause)) - {"unknown"}

"""The registry of views: the properties that callbacks rely on."""

from __future__ import annotations

import pytest

from rankscope.dashboards.views.registry import VIEWS


@pytest.mark.parametrize("pieces", ["figures", "parts", "grids"])
def test_no_two_views_have_a_piece_of_the_same_name(pieces: str) -> None:
    names = [name for view in VIEWS for name in getattr(view, pieces)]
    assert len(names) == len(set(names))


def test_what_can_be_clicked_or_zoomed_is_a_figure_of_the_view() -> None:
    for view in VIEWS:
        assert {*view.picks, *view.zooms} <= set(view.figures)

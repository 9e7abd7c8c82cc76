"""All views of a run, in the order of their links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from rankscope.dashboards.alerts import view as alerts
from rankscope.dashboards.hardware import view as hardware
from rankscope.dashboards.overlap import view as overlap
from rankscope.dashboards.overview import view as overview
from rankscope.dashboards.ranks import view as ranks
from rankscope.dashboards.stragglers import view as blame
from rankscope.dashboards.timeline import view as timeline
from rankscope.dashboards.views.view import View
from rankscope.dashboards.whatif import view as whatif

VIEWS: Final[tuple[View, ...]] = (
    overview.VIEW,
    ranks.VIEW,
    overlap.VIEW,
    blame.VIEW,
    timeline.VIEW,
    whatif.VIEW,
    hardware.VIEW,
    alerts.VIEW,
)

T = TypeVar("T")


def _all(of: Callable[[View], Mapping[str, T]]) -> dict[str, T]:
    return {name: made for view in VIEWS for name, made in of(view).items()}


FIGURES: Final = _all(lambda view: view.figures)
PARTS: Final = _all(lambda view: view.parts)
GRIDS: Final = _all(lambda view: view.grids)
PICKS: Final = _all(lambda view: view.picks)
ZOOMS: Final = _all(lambda view: view.zooms)
ROW_PICKS: Final = _all(lambda view: view.row_picks)


def view_of(slug: str) -> View | None:
    """Return the view whose address ends with ``slug``; ``None`` if there is none."""
    return next((view for view in VIEWS if view.slug == slug), None)

"""All pages: the views of a run and the pages of the site, in the order of their links. To add one, add a folder and a row."""

from __future__ import annotations

from typing import Final

from rankscope.dashboards.alerts import all_alerts
from rankscope.dashboards.alerts import view as alerts
from rankscope.dashboards.compare import view as compare
from rankscope.dashboards.delays import view as delays
from rankscope.dashboards.hardware import view as hardware
from rankscope.dashboards.lost_hours import view as lost_hours
from rankscope.dashboards.model.view import SitePage, View
from rankscope.dashboards.overlap import view as overlap
from rankscope.dashboards.overview import view as overview
from rankscope.dashboards.ranks import view as ranks
from rankscope.dashboards.runs import view as runs
from rankscope.dashboards.timeline import view as timeline
from rankscope.dashboards.whatif import view as whatif

VIEWS: Final[tuple[View, ...]] = (
    overview.VIEW,
    ranks.VIEW,
    overlap.VIEW,
    delays.VIEW,
    timeline.VIEW,
    whatif.VIEW,
    hardware.VIEW,
    alerts.VIEW,
)

SITE: Final[tuple[SitePage, ...]] = (runs.PAGE, compare.PAGE, all_alerts.PAGE, lost_hours.PAGE)


def view_of(slug: str) -> View | None:
    """Return the view whose address ends with ``slug``; ``None`` if there is none."""
    return next((view for view in VIEWS if view.slug == slug), None)


def site_page(pathname: object) -> SitePage | None:
    """Return the page at a path; ``None`` if there is none."""
    path = "/" if pathname in (None, "") else pathname
    return next((page for page in SITE if page.path == path), None)

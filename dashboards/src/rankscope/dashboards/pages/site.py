"""Pages that do not belong to one run, by their path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dash import dcc, html
from dash.development.base_component import Component

from rankscope.dashboards.alerts.all_alerts import alerts_page
from rankscope.dashboards.compare.view import compare_page
from rankscope.dashboards.data.source import RunSource
from rankscope.dashboards.lost_hours.view import ledger_page
from rankscope.dashboards.pages.aria import aria
from rankscope.dashboards.runs.view import runs_page
from rankscope.dashboards.web.config import DashboardConfig


@dataclass(frozen=True, slots=True)
class SitePage:
    """Page of the site. ``make`` gets the query part of the address; it may raise ``RankscopeError``."""

    path: str
    title: str
    make: Callable[[RunSource, str | None, DashboardConfig], Component]
    subject: str = ""
    """Name of the result that is being computed while the page is not ready, for pages that take long."""
    in_navigation: bool = True


SITE: Final = (
    SitePage("/", "Runs", runs_page),
    SitePage("/compare", "Compare", compare_page, subject="The comparison", in_navigation=False),
    SitePage("/alerts", "Alerts", alerts_page),
    SitePage("/ledger", "Ledger", ledger_page),
)


def site_page(pathname: object) -> SitePage | None:
    """Return the page at a path; ``None`` if there is none."""
    path = "/" if pathname in (None, "") else pathname
    return next((page for page in SITE if page.path == path), None)


def site_links(pathname: object) -> list[Component]:
    """Return the navigation in the head of every page."""
    here = site_page(pathname)
    return [
        html.Span(
            dcc.Link(page.title, href=page.path, className="site-link current" if page is here else "site-link"),
            **aria(current="page" if page is here else "false"),
        )
        for page in SITE
        if page.in_navigation
    ]

"""Pages by feature: the views of a run, and the pages that do not belong to one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rankscope.dashboards.model.page import Block

if TYPE_CHECKING:
    from rankscope.dashboards.data.run_data import RunData
    from rankscope.dashboards.data.source import RunSource
    from rankscope.dashboards.model.state import PageState
    from rankscope.dashboards.web.config import DashboardConfig


@dataclass(frozen=True, slots=True)
class Help:
    """Help of a view: its content, its formula, and its use, in one or two sentences each."""

    shows: str
    formula: str
    do: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page of a run. Its blocks may raise ``RankscopeError``, and ``NotReadyError`` while they are being computed."""

    slug: str
    """Last part of the address; ``""`` for the first view."""
    label: str
    help: Help
    blocks: Callable[[RunData, PageState], Sequence[Block]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePage:
    """Page that does not belong to one run. ``blocks`` gets the query part of the address, and raises as those of a view."""

    path: str
    title: str
    blocks: Callable[[RunSource, str | None, DashboardConfig], Sequence[Block]]
    version: Callable[[RunSource, str | None], str] | None = None
    """Version of the content: when it changes, an open page is brought up to date. ``None``: it stays as it is."""
    rows: Callable[[RunSource, Sequence[str]], list[dict[str, Any]]] | None = None
    """Rows of the page's list by their ids, as they are now."""
    work: Callable[[RunSource, str | None], None] | None = None
    """Start in the background what a ``Button`` starts; the version changes with its progress."""
    subject: str = ""
    """Name of the result that is being computed while the page is not ready, for pages that take long."""
    in_navigation: bool = True
    wide: bool = False
    """True for a page that takes the whole width of the window."""

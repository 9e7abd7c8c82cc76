"""Deep links from alerts and terminals to the page that shows the evidence."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def overview_url(base: str, run_id: str, *, rank: int | None = None) -> str:
    """URL of the overview page of a run in the dashboard at ``base`` (``http://host:port``), with a rank picked out if given."""
    query = f"?{urlencode({'rank': rank})}" if rank is not None else ""
    return f"{base.rstrip('/')}/run/{quote(run_id, safe='')}{query}"

"""Deep links from alerts and terminals to the page that shows the evidence."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def overview_url(base: str, run_id: str, *, rank: int | None = None) -> str:
    """Return the URL of a run's overview page in the dashboard at ``base`` (``http://host:port``), with ``rank`` selected."""
    query = f"?{urlencode({'rank': rank})}" if rank is not None else ""
    return f"{base.rstrip('/')}/run/{quote(run_id, safe='')}{query}"


def window_url(base: str, run_id: str, *, first_step: int, rank: int | None = None) -> str:
    """Return the URL of the captured window that begins with ``first_step``, on the timeline of its run."""
    query = urlencode({"window": first_step} if rank is None else {"rank": rank, "window": first_step})
    return f"{base.rstrip('/')}/run/{quote(run_id, safe='')}/timeline?{query}"

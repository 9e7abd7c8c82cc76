"""Settings by the operator of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.dashboards.web.token import Token
from rankscope.dashboards.web.trusted_proxy import TrustedProxy


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """Settings of one app."""

    poll_interval_s: float = 3.0
    """Interval at which the page of a live run polls for new data. Finished runs are not polled."""
    token: Token | None = None
    """Token that grants access to the pages and to capture requests. Without one, captures cannot be requested."""
    proxy: TrustedProxy | None = None
    """Proxy that authenticates users, who may then view the pages."""
    allowed_hosts: tuple[str, ...] = ()
    """Accepted host names besides loopback ones, so that no other site can read runs by DNS rebinding. ``.NAME`` includes all
    names that end with it."""
    perfetto_url: str | None = None
    """Perfetto in which browsers open windows, such as ``https://ui.perfetto.dev``. ``None``: windows can only be saved."""
    title: str = "rankscope"

    @property
    def open_pages(self) -> bool:
        """True if anyone who reaches the port may view the pages: only without token and proxy, so only on loopback."""
        return self.token is None and self.proxy is None

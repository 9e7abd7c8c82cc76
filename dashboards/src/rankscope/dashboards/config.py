"""What the operator of the dashboard decides."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.dashboards.data.idle import IdleGpus
from rankscope.dashboards.token import Token
from rankscope.dashboards.trusted_proxy import TrustedProxy


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """Settings of one app."""

    poll_interval_s: float = 3.0
    """How often the page of a live run asks whether there is anything new. Finished runs are not polled."""
    token: Token | None = None
    """Whoever has it sees the pages and may ask for captures. Without one nobody may ask."""
    proxy: TrustedProxy | None = None
    """A proxy that says who is there; they see the pages."""
    allowed_hosts: tuple[str, ...] = ()
    """Names under which it answers, besides loopback ones: a page elsewhere cannot read runs by DNS rebinding. ``.NAME``: also
    what ends with it."""
    idle_gpus: IdleGpus | None = None
    """Asks who holds GPUs that nobody uses; ``None``: nobody can be asked."""
    title: str = "rankscope"

    @property
    def open_pages(self) -> bool:
        """Whether everybody who can reach the port sees the pages: only where nothing says who is there, so on loopback."""
        return self.token is None and self.proxy is None

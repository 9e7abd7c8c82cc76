"""What the operator of the dashboard decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """Settings of one app."""

    poll_interval_s: float = 3.0
    """How often the page of a live run asks whether there is anything new. Finished runs are not polled."""
    allow_any_host: bool = False
    """Answer under any host name. Off, only loopback names are answered: a page elsewhere cannot read runs by DNS rebinding."""
    title: str = "rankscope"

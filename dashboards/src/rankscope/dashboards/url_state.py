"""The state of a page is its address: what is selected survives reloading, sharing and the back button."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlencode

DEFAULT_METRIC: Final = "own_us"
STATE_VERSION: Final = 1
"""Written as ``v`` once there is a second version; an address without ``v`` is of version 1."""

_METRIC: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_RANK: Final = re.compile(r"[0-9]{1,7}", re.ASCII)


@dataclass(frozen=True, slots=True)
class OverviewState:
    """What is selected on a run's page."""

    rank: int | None = None
    """The rank picked out in every view."""
    metric: str = DEFAULT_METRIC
    """The heat map's metric, a name from ``rankscope.analysis.steps.METRICS``."""

    @property
    def search(self) -> str:
        """Query part of the address, ``""`` or starting with ``?``; what is at its default is left out."""
        parts: dict[str, str] = {}
        if self.rank is not None:
            parts["rank"] = str(self.rank)
        if self.metric != DEFAULT_METRIC:
            parts["metric"] = self.metric
        return f"?{urlencode(parts)}" if parts else ""

    @classmethod
    def parse(cls, search: str | None) -> OverviewState:
        """State from a query part. What is missing, malformed or of a newer version gets its default: links never break."""
        try:
            given = parse_qs((search or "").removeprefix("?"), max_num_fields=32)
        except ValueError:
            return cls()
        if given.get("v", [str(STATE_VERSION)])[-1] != str(STATE_VERSION):
            return cls()
        rank = given.get("rank", [""])[-1]
        metric = given.get("metric", [""])[-1]
        return cls(
            rank=int(rank) if _RANK.fullmatch(rank) else None,
            metric=metric if _METRIC.fullmatch(metric) else DEFAULT_METRIC,
        )


def run_path(run_id: str) -> str:
    """Path of a run's page; ``rankscope.runs.links.overview_url`` is the same with a host in front."""
    return f"/run/{quote(run_id, safe='')}"


def run_id_of(pathname: str | None) -> str | None:
    """The run id in the path of a run's page; ``None`` when it is another page."""
    parts = (pathname or "/").strip("/").split("/")
    if len(parts) == 2 and parts[0] == "run" and parts[1]:
        return unquote(parts[1])
    return None

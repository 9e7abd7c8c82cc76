"""A real Prometheus over a past that a test has made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rankscope.alerts.own_prometheus import OwnPrometheus, Programs


@contextmanager
def remembering(folder: Path, openmetrics: str, *, program: Callable[[str], str], rules: str | None = None) -> Iterator[str]:
    """Its address. ``openmetrics``: samples with times in seconds, of 2001 or later; ``rules``: a rule file."""
    own = OwnPrometheus(Programs(program("prometheus"), program("promtool")), folder, lookback_s=300.0)
    own.remember(lambda file: file.write(openmetrics))
    with own.running(rules=rules) as client:
        yield client.name

"""Clients of an app."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.dashboards.live.dash_client import Caller

from rankscope.dashboards.app import create_app


@pytest.fixture
def call(memory_runs: Any) -> Caller:
    """Client of the app over ``memory_runs``."""
    return Caller(create_app(memory_runs))


@pytest.fixture
def caller(memory_runs: Any) -> Callable[[], Caller]:
    """Function that returns a client of a new app, which has cached nothing."""
    return lambda: Caller(create_app(memory_runs))

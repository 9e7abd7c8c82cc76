"""Fixtures for the tests of alerts."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """State folder of the test instead of the user's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

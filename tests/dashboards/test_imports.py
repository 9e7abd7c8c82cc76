"""Modules that importing the dashboards loads, and modules that it must not load."""

from __future__ import annotations

import subprocess
import sys


def loaded_after(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(completed.stdout.split())


def test_the_app_and_its_server_never_load_torch() -> None:
    loaded = loaded_after("import rankscope.dashboards.app, rankscope.dashboards.web.server, rankscope.dashboards.store.disk")
    assert "dash" in loaded
    assert "torch" not in loaded


def test_the_command_is_imported_without_its_extra() -> None:
    loaded = loaded_after("import rankscope.dashboards.commands")
    assert loaded.isdisjoint({"dash", "plotly", "flask", "numpy", "gunicorn"})

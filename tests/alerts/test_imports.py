"""Alerting runs on small machines: it must not load what training needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each starts real processes


def test_nothing_here_loads_torch_or_a_dashboard() -> None:
    code = (
        "import pkgutil, importlib, sys, rankscope.alerts\n"
        "for module in pkgutil.iter_modules(rankscope.alerts.__path__, 'rankscope.alerts.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(sorted({'torch', 'dash', 'rankscope.profiler', 'rankscope.dashboards', 'rankscope.cli'} & set(sys.modules)))\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip() == "[]"


def test_the_commands_load_nothing_heavy_until_they_are_used() -> None:
    code = "import sys, rankscope.alerts.commands; print(sorted({'httpx', 'uvicorn', 'sqlite3', 'numpy'} & set(sys.modules)))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.stdout.strip() == "[]", completed.stderr

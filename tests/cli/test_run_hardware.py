"""Settings that ``rankscope run`` passes to its ranks about the node's exporter, traces and stacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.profiler.settings import EXPORTER_URL, STACKS_SECONDS, RecorderSettings, from_environment

JOB = """
from rankscope.profiler.settings import from_environment
settings = from_environment()
print(settings.exporter_url, settings.otlp_every, settings.stacks_seconds)
"""
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], f"{EXPORTER_URL} None {STACKS_SECONDS}"),
        (["--exporter-url", "https://me:pw@node7:443/m", "--otlp-every", "50"], f"https://me:pw@node7:443/m 50 {STACKS_SECONDS}"),
        (["--exporter-url", ""], f"None None {STACKS_SECONDS}"),
        (["--no-hardware", "--exporter-url", "http://h/", "--no-stacks"], "None None None"),
    ],
)
def test_the_ranks_are_told_where_the_exporter_is(cli: Cli, tmp_path: Path, options: list[str], told: str) -> None:
    result = cli("run", "--run-dir", tmp_path / "run", "--no-verdict", *options, "--", sys.executable, "-c", JOB)
    assert (result.returncode, result.stdout.strip()) == (0, told)
    assert "pw" not in result.stderr


@pytest.mark.slow
def test_an_address_that_is_none_is_a_usage_error_that_does_not_quote_it(cli: Cli, tmp_path: Path) -> None:
    result = cli("run", "--run-dir", tmp_path / "run", "--exporter-url", "ftp://me:pw@h/", "--", "true")
    assert result.returncode == 2
    assert "http://" in result.stderr
    assert "pw" not in result.stderr


def test_nobody_to_ask_survives_the_way_through_the_environment() -> None:
    settings = RecorderSettings(
        run_dir="/r", run_id="r", name="", start_unix_ns=1, exporter_url=None, otlp_every=3, stacks_seconds=None
    )
    assert from_environment(settings.environment()) == settings

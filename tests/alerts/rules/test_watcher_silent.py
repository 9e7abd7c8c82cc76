"""A real Prometheus reports a watcher that was killed, but not one that ended with its run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import wait_until

from rankscope.alerts.rules.rule_file import rules_text

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rankscope.rules.yaml]
scrape_configs: [{{job_name: watchers, static_configs: [{{targets: {targets}}}]}}]
"""


@pytest.fixture
def ports(free_port: Callable[[], int]) -> tuple[int, int, int]:
    return free_port(), free_port(), free_port()


@pytest.fixture
def ask(tmp_path: Path, ports: tuple[int, int, int], require_program: Callable[[str], str]) -> Iterator[Callable[[str], Any]]:
    """Function that queries the API of a Prometheus, ``ask("alerts")``; it scrapes two watchers, with short alert delays."""
    program = require_program("prometheus")
    shipped = rules_text()
    quick = shipped.replace("last1d > 300", "last1d > 3").replace("for: 5m", "for: 1s")
    assert quick != shipped
    (tmp_path / "rankscope.rules.yaml").write_text(quick)
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(targets=[f"127.0.0.1:{port}" for port in ports[:2]]))
    command = [program, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{ports[2]}"], stdout=file, stderr=file) as process,
    ):

        def answer(what: str) -> Any:
            assert process.poll() is None, log.read_text()
            try:
                return httpx.get(f"http://127.0.0.1:{ports[2]}/api/v1/{what}", trust_env=False).json()["data"]
            except (httpx.TransportError, ValueError):
                return {}

        try:
            yield answer
        finally:
            process.kill()


@pytest.mark.slow
def test_a_watcher_whose_run_is_over_is_not_missed_and_one_that_was_killed_is(
    make_run: Callable[..., Any],
    tmp_path: Path,
    ports: tuple[int, int, int],
    ask: Callable[[str], Any],
) -> None:
    runs = [make_run(name, slow=None) for name in ("over", "alone")]

    def watching(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rankscope", "alerts", "watch", runs[number].path, "--interval", "200ms"]
        return subprocess.Popen([*command, "--state", tmp_path / f"{number}.json", "--listen", f"127.0.0.1:{ports[number]}"])

    def recorded() -> set[str]:
        result = ask("query?query=instance:rankscope_watcher_evaluated_timestamp_seconds:last1d").get("result", [])
        return {item["metric"]["instance"] for item in result}

    def silent() -> set[str]:
        ones = [item["labels"] for item in ask("alerts").get("alerts", []) if item["state"] == "firing"]
        return {labels["instance"] for labels in ones if labels["alertname"] == "WatcherSilent"}

    ended, killed = (f"127.0.0.1:{port}" for port in ports[:2])
    with watching(0) as first, watching(1) as second:
        try:
            wait_until(lambda: recorded() == {ended, killed})
            # When the first watcher ends with its run, and the second one is killed
            runs[0].end()
            assert first.wait(300) == 0
            second.kill()
            # Then only the second one is reported, although neither address answers
            wait_until(lambda: silent() == {killed})
            assert recorded() == {killed}
            assert {item["value"][1] for item in ask("query?query=up")["result"]} == {"0"}
        finally:
            first.kill()
            second.kill()

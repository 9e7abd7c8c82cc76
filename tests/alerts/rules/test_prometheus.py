"""A real Prometheus evaluates the shipped rules: on ranks of a real exporter, and on watchers that end or are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.monitoring_servers import ask, prometheus_server
from tests.waiting import wait_until
from tests.watched_job import AT_ONCE, WatchProcess

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.base.atomic_files import replace_file

SLOW, SILENT = 2, 3
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rankscope.rules.yaml]
scrape_configs: [{{job_name: rankscope, static_configs: [{{targets: {targets}}}]}}]
"""


class Ranks:
    """Four ranks that take ten steps per second, with an own time of 40 ms each, 90 ms for the slow rank.

    On an event of the test, one rank falls silent, or all ranks hang.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.silent = threading.Event()
        self.hung = threading.Event()
        self._last_step_s = time.time()
        self.stopped = threading.Event()
        self._began = time.monotonic() - 100
        self._write()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.stopped.wait(0.25):
            self._write()

    def _write(self) -> None:
        if not self.hung.is_set():
            self._last_step_s = time.time()
        for rank in range(4):
            if not (rank == SILENT and self.silent.is_set()):
                replace_file(self.folder / f"r1-{rank}.prom", self._page(rank).encode(), sync=False)

    def _page(self, rank: int) -> str:
        at = f'run="llama",rank="{rank}",slot="0"'
        steps = (time.monotonic() - self._began) * 10
        values = {
            "rank_steps_total": steps,
            "rank_blocked_seconds_total": steps * (0.01 if rank == SLOW else 0.06),
        }
        lines = [f"# TYPE {name} counter\n{name}{{{at}}} {value}" for name, value in values.items()]
        gauges = {"rank_last_step_timestamp_seconds": self._last_step_s, "rank_recorder_disabled": 0}
        lines += [f"# TYPE {name} gauge\n{name}{{{at}}} {value}" for name, value in gauges.items()]
        name, count = "rank_step_duration_seconds", int(steps)
        lines.append(f'# TYPE {name} histogram\n{name}_bucket{{{at},le="+Inf"}} {count}')
        lines.append(f"{name}_sum{{{at}}} {steps * 0.1}\n{name}_count{{{at}}} {count}")
        identity = f'run_id="r1",host="n{rank // 2}",local_rank="{rank % 2}",world_size="4",gpu_uuid="",attempt="0"'
        lines.append(f"# TYPE rank_info gauge\nrank_info{{{at},{identity}}} 1")
        return "\n".join(lines) + "\n"

    def stop(self) -> None:
        self.stopped.set()
        self._thread.join()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    folder = tmp_path / "spool"
    folder.mkdir()
    ranks = Ranks(folder)
    yield ranks
    ranks.stop()


@pytest.fixture
def prometheus(tmp_path: Path, ranks: Ranks, free_port: Callable[[], int]) -> Iterator[Callable[[str], Any]]:
    """Function that queries the API of a Prometheus with the shipped rules and shorter times: ``prometheus("alerts")``."""
    quick = (
        rules_text().replace("[5m]", "[8s]").replace("for: 5m", "for: 2s").replace("for: 1m", "for: 1s").replace("> 600", "> 3")
    )
    assert quick != rules_text()
    (tmp_path / "rankscope.rules.yaml").write_text(quick)
    exporter = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "rankscope", "exporter", "--listen", exporter, "--interval", "500ms", "--simulate", "2"]
    with subprocess.Popen([*command, "--spool", str(ranks.folder), "--spool-stale", "4s"]) as process:
        with prometheus_server(tmp_path, CONFIG.format(targets=[exporter])) as url:
            yield partial(ask, url)
        process.terminate()


@pytest.mark.slow
@pytest.mark.full
def test_prometheus_records_the_slow_rank_and_reports_the_silent_rank(ranks: Ranks, prometheus: Callable[[str], Any]) -> None:
    def firing(name: str) -> Any:
        alerts = [alert for alert in prometheus("alerts")["alerts"] if alert["state"] == "firing"]
        return alerts if name in {alert["labels"]["alertname"] for alert in alerts} else []

    # When Prometheus has scraped four ranks for a while, then it has recorded the slow one; only the watcher alerts about it
    excess = "query?query=run_id_rank:rank_own_excess:ratio_rate5m > 0.3"
    [slow] = wait_until(lambda: prometheus(excess)["result"])
    assert slow["metric"]["rank"] == str(SLOW)
    assert {alert["labels"]["alertname"] for alert in prometheus("alerts")["alerts"] if alert["state"] == "firing"} == set()

    # When another rank stops writing, then it is reported as silent, with its host
    ranks.silent.set()
    alerts = wait_until(lambda: firing("RankSilent"))
    assert {"alertname": "RankSilent", "severity": "critical", "run_id": "r1", "rank": "3", "run": "llama", "host": "n1"} in [
        alert["labels"] for alert in alerts
    ]
    assert {alert["labels"]["rank"] for alert in alerts} == {"3"}

    # When the other ranks hang while their processes live, then the run is reported once
    ranks.hung.set()
    alerts = wait_until(lambda: firing("TrainingStalled"))
    assert [alert["labels"] for alert in alerts if alert["labels"]["alertname"] == "TrainingStalled"] == [
        {"alertname": "TrainingStalled", "severity": "critical", "run_id": "r1", "run": "llama"}
    ]

    # The healthy node has no alert, and each of its GPUs has exactly one known state
    collected = [alert["labels"]["alertname"] for alert in prometheus("alerts")["alerts"]]
    assert {name for name in collected if not name.startswith(("Training", "Rank"))} == set()
    states = wait_until(lambda: prometheus("query?query=uuid_state:gpu_state:active")["result"])
    assert len({state["metric"]["uuid"] for state in states}) == len(states) == 2
    assert {state["metric"]["state"] for state in states} <= {"computing", "idle", "allocated_idle"}
    assert {state["metric"]["simulated"] for state in states} == {"true"}

    # And every rule was evaluated without an error
    assert {rule["health"] for group in prometheus("rules")["groups"] for rule in group["rules"]} == {"ok"}


@pytest.mark.full
@pytest.mark.slow
def test_watcher_silent_fires_for_a_killed_but_not_a_finished_watcher(
    make_run: Callable[..., Any], tmp_path: Path, free_port: Callable[[], int]
) -> None:
    quick = rules_text().replace("last1d > 300", "last1d > 3").replace("for: 5m", "for: 1s")
    assert quick != rules_text()
    (tmp_path / "rankscope.rules.yaml").write_text(quick)
    runs = [make_run(name, slow=None) for name in ("over", "alone")]
    ended, killed = (f"127.0.0.1:{free_port()}" for _ in runs)

    def recorded() -> set[str]:
        result = ask(url, "query?query=instance:rankscope_watcher_evaluated_timestamp_seconds:last1d")["result"]
        return {item["metric"]["instance"] for item in result}

    def silent() -> set[str]:
        firing = [alert["labels"] for alert in ask(url, "alerts")["alerts"] if alert["state"] == "firing"]
        return {labels["instance"] for labels in firing if labels["alertname"] == "WatcherSilent"}

    with (
        prometheus_server(tmp_path, CONFIG.format(targets=[ended, killed])) as url,
        WatchProcess(runs[0].path, *AT_ONCE, "--state", tmp_path / "0", "--listen", ended) as first,
        WatchProcess(runs[1].path, *AT_ONCE, "--state", tmp_path / "1", "--listen", killed) as second,
    ):
        wait_until(lambda: recorded() == {ended, killed})
        # When the first watcher ends with its run, and the second one is killed
        runs[0].end()
        assert first.process.wait(300) == 0
        second.process.kill()
        # Then only the second one is reported, although neither address answers
        wait_until(lambda: silent() == {killed})
        assert recorded() == {killed}
        assert {series["value"][1] for series in ask(url, "query?query=up")["result"]} == {"0"}

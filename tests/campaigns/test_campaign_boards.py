"""The board of a run over a real training job: torchrun on CPUs, a planted slow rank, the recorder, the exporter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from tests.dashboards.grafana.board_site import Asked, scraping
from tests.dashboards.grafana.grafana_model import Target, all_boards, targets
from tests.exporter import conftest as exporter
from tests.exporter.conftest import RunningExporter
from tests.waiting import wait_until

from rankscope.alerts.rules.rule_file import rules_text

start_exporter = exporter.start_exporter

pytestmark = pytest.mark.campaign

ON_CPUS_ONLY = {
    *("Arithmetic", "Sections of the script", "Tokens over time"),  # the script declares none of them
    *("Device's view of the phases", "Where the device is blocked", "Device memory at its peak", "Device memory of tensors"),
    *("Device memory of the allocator", "Allocator retries"),  # there is no device
    *("GPU power", "SMs active", "Tensor cores active", "SM clock", "Throttled", "NVLink sent", "Margin to slowdown"),
    "GPUs of the run",
    "Ranks whose recorder is off",  # every recorder is on
}
"""Panels without data for this job."""
PATIENCE_S = 300


def test_run_dashboard_has_data_for_a_real_job(
    start_exporter: Callable[..., RunningExporter],
    require_program: Callable[[str], str],
    require_torch: None,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    node = start_exporter("--simulate", "1xH100")
    script = files("rankscope.cli") / "demo" / "train.py"
    windows = ["--window-first", "5", "--window-every", "20", "--window-steps", "2"]
    command = [sys.executable, "-m", "rankscope", "run", "--no-verdict", "--spool-dir", str(tmp_path / "spool"), *windows]
    training = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script)]
    training += ["--fault", "input:2", "--steps", "1000000"]
    jobs = {"gpus": ("/metrics", [f"127.0.0.1:{node.port}"])}
    scraper = scraping(require_program("prometheus"), tmp_path, f"127.0.0.1:{free_port()}", jobs, rules_text())
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    (tmp_path / "spool").mkdir(exist_ok=True)
    with (tmp_path / "job.log").open("wb") as log, scraper as prometheus:
        run_command = [*command, "--run-dir", str(tmp_path / "run"), "--", *training]
        with subprocess.Popen(run_command, stdout=log, stderr=log, env=environment) as job:
            try:
                empty = _never_answered(prometheus, job, tmp_path / "job.log")
                wait_until(
                    lambda: _slowest(prometheus) == ["2"], timeout=PATIENCE_S, poll_s=2, details=lambda: _slowest(prometheus)
                )
            finally:
                job.terminate()
                job.wait(60)
    assert empty == ON_CPUS_ONLY


def _never_answered(prometheus: Asked, job: subprocess.Popen[bytes], log: Path) -> set[str]:
    """Return the titles of panels whose first query never had data, once the others have had it."""
    unanswered = [target for target in targets(all_boards()["rankscope-run"]) if target.letter == "A"]

    def titles() -> set[str]:
        return {target.panel["title"] for target in unanswered}

    def others_answered() -> bool:
        unanswered[:] = [target for target in unanswered if not _answers(prometheus, target)]
        return titles() <= ON_CPUS_ONLY

    details = lambda: f"{titles() - ON_CPUS_ONLY}\n{log.read_text()[-2000:]}"  # noqa: E731
    wait_until(others_answered, timeout=PATIENCE_S, process=job, poll_s=2, details=details)
    return titles()


def _slowest(prometheus: Asked) -> list[str]:
    """Return the rank that the others wait for most; while processes start it may be any rank."""
    return [str(series["metric"]["rank"]) for series in prometheus.instant("topk(1, run_id_rank:rank_own_excess:ratio_rate5m)")]


def _answers(prometheus: Asked, target: Target) -> bool:
    values: dict[str, list[str] | str] = {"cluster": ".*", **dict.fromkeys(("job", "instance", "run_id", "rank"), ".+")}
    return bool(prometheus.instant(target.asked(values)))


def test_dashboard_benchmark_measures_every_query(require_program: Callable[[str], str], tmp_path: Path) -> None:
    require_program("prometheus")
    require_program("gcc")
    command = [sys.executable, "-m", "benchmarks.boards.boards", "--quick", "--hosts", "8", "--hours", "1", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    queries = {uid: len(targets(board)) for uid, board in all_boards().items()}
    assert {uid: figures["queries"] for uid, figures in results["figures"]["boards"].items()} == queries
    assert all(figures["series"] > 0 for figures in results["figures"]["boards"].values())
    assert {budget["name"].split(":")[0] for budget in results["budgets"]} == queries.keys()

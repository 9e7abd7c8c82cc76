"""Every query of every board, asked of a real Prometheus that scrapes the real exporter and loads the shipped rules."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.dashboards.board_site import LOST, RUN_ID, THRESHOLDS, Asked, Ranks, prepared, scraping
from tests.dashboards.grafana_model import Target, all_boards, put_in, targets
from tests.exporter import conftest as exporter
from tests.exporter.conftest import RunningExporter

from rankscope.alerts.rules import rules_text
from rankscope.alerts.thresholds import thresholds

build_fake_nvml = exporter.build_fake_nvml
fake_nvml_library = exporter.fake_nvml_library
start_exporter = exporter.start_exporter

pytestmark = pytest.mark.slow


NOT_HERE = {
    ("rankscope-alerts", "NVSwitch errors", "A"): "SXids come from the kernel log, which is nobody's to write",
    ("rankscope-alerts", "Can Xids be seen at all", "A"): "the test does not let the exporter read this machine's kernel log",
    ("rankscope-cluster", "Collectors that fail", "A"): "all of them work",
    ("rankscope-cluster", "GPUs by state", "B"): "no GPU hangs: that takes minutes to suspect",
    ("rankscope-cluster", "GPUs by state", "H"): "every GPU's state can be told",
}
"""Queries that rightly have no data at this site, and why: a value would be a fault."""


def test_every_query_has_data_or_a_reason(
    start_exporter: Callable[..., RunningExporter],
    fake_nvml_library: Path,
    require_program: Callable[[str], str],
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    # given a node with GPUs of many kinds, a job, ranks that step, an exporter that is dead, and simulated GPUs
    with ExitStack() as stack:
        driver, arguments = prepared(tmp_path, fake_nvml_library)
        (tmp_path / "thresholds.toml").write_text(THRESHOLDS)
        rules = rules_text(settings=thresholds(tmp_path / "thresholds.toml"))
        ranks = Ranks(tmp_path / "spool")
        stack.callback(ranks.stop)
        node = start_exporter(*arguments, env=driver.env)
        simulated = start_exporter("--simulate", "1xH100", "--state-dir", tmp_path / "other", "--no-collector.spool", "--host", "node2", "--control.socket", tmp_path / "2.sock")
        dead = f"127.0.0.1:{free_port()}"
        addresses = [f"127.0.0.1:{node.port}", dead]
        jobs = {"gpus": ("/metrics", [*addresses, f"127.0.0.1:{simulated.port}"]), "dcgm": ("/dcgm/metrics", addresses)}
        asked = stack.enter_context(scraping(require_program("prometheus"), tmp_path, f"127.0.0.1:{free_port()}", jobs, rules))
        node.wait_until(lambda: len(node.values("gpu_up")) == len(driver.gpus))
        while not asked.instant('gpu_xid_errors_total{xid="79"} == 0'):
            time.sleep(0.1)
        # when a GPU is lost and another has errors
        left = _queries()
        driver.xid(0, 31, 79)
        driver.lose(LOST)

        import os
        if os.environ.get("HOLD"):
            open("/tmp/boards_hold","w").write(f"{asked.url} {node.port} {dead} {simulated.port}")
            time.sleep(int(os.environ["HOLD"]))
        # then every query has data, except where there is a reason
        until = time.monotonic() + 60
        while (left := _without_data(asked, left, jobs)) and {target.name for target in left} != NOT_HERE.keys():
            assert time.monotonic() < until, sorted({target.name for target in left} - NOT_HERE.keys())
            time.sleep(0.3)

        # and so it is when all is chosen
        everything = {name: ".*" if name == "cluster" else ".+" for name in ("cluster", "job", "instance", "gpu", "run_id", "rank")}
        empty = {target.name for target in _queries() if not asked.instant(put_in(target.expr, everything))}
        import os
        if os.environ.get("HOLD"):
            from tests.dashboards.grafana_model import panels
            for board in all_boards().values():
              for t in targets(board):
                if t.panel["type"] in ("stat", "table"):
                  val=_values(t.board, jobs)
                  r=asked.instant(put_in(t.expr, val))
                  print(t.name, [x["value"][1] for x in r][:8] if t.panel["type"]=="stat" else [(x["metric"], x["value"][1]) for x in r][:3])


        for q in ('uuid_state:gpu_state:active','gpu_job_info','uuid:gpu_held:bool','uuid:gpu_busy:ratio','uuid:gpu_throttled:ratio'):
            print(q); [print('   ',x["metric"], x["value"][1]) for x in asked.instant(q)]
        assert empty <= NOT_HERE.keys()


def _queries() -> list[Target]:
    return [target for board in all_boards().values() for target in targets(board)]


def _values(board: str, jobs: Mapping[str, tuple[str, list[str]]]) -> dict[str, list[str] | str]:
    """What somebody has chosen: these hosts, this run, all GPUs and ranks."""
    job = "dcgm" if board.endswith("dcgm") else "gpus"
    return {"cluster": ".*", "job": [job, "other"], "instance": jobs[job][1], "gpu": ".+", "run_id": [RUN_ID], "rank": ".+"}


def _without_data(asked: Asked, queries: Sequence[Target], jobs: Mapping[str, tuple[str, list[str]]]) -> list[Target]:
    return [target for target in queries if not asked.instant(put_in(target.expr, _values(target.board, jobs)))]

"""Every query of every board, against a real Prometheus that scrapes the real exporter and loads the shipped rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.dashboards.grafana.board_site import LOST, RUN_ID, THRESHOLDS, Asked, Ranks, node_exporter, prepared, scraping
from tests.dashboards.grafana.grafana_model import Json, Target, all_boards, put_in, targets
from tests.exporter import conftest as exporter
from tests.exporter.conftest import RunningExporter
from tests.exporter.fake_driver import uuid_of
from tests.waiting import wait_until

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.alerts.rules.thresholds import load_thresholds
from rankscope.dashboards.grafana.boards.panels.promql import RULES

fake_nvml_library = exporter.fake_nvml_library
start_exporter = exporter.start_exporter

pytestmark = pytest.mark.slow


NOT_HERE = {
    ("rankscope-alerts", "NVSwitch errors", "A"): "SXids come from the kernel log, which is nobody's to write",
    ("rankscope-alerts", "Can Xids be seen at all", "A"): "the test does not let the exporter read this machine's kernel log",
    ("rankscope-cluster", "Collectors that fail", "A"): "all of them work",
    ("rankscope-cluster", "GPUs by state", "B"): "no GPU hangs: that takes minutes to suspect",
    ("rankscope-cluster", "GPUs by state", "H"): "every GPU's state can be told",
    ("rankscope-cluster", "GPUs by state", "I"): "the recording rules are loaded",
    ("rankscope-run", "Ranks by state", "B"): "the recording rules are loaded",
}
"""Queries that must have no data at this site, with the reason."""

PLANTED = {
    ("rankscope-cluster", "Recording rules"): 1,
    ("rankscope-cluster", "Hosts"): 2,
    ("rankscope-cluster", "Hosts not answering"): 1,
    ("rankscope-cluster", "Collectors failing"): 0,
    ("rankscope-cluster", "Simulated GPUs"): 1,
    ("rankscope-cluster", "GPUs"): 8,
    ("rankscope-cluster", "GPUs not answering"): 1,
    ("rankscope-cluster", "GPUs missing"): 1,
    ("rankscope-cluster", "GPUs throttled"): 1,
    ("rankscope-cluster", "Least margin to slowdown"): 0,
    ("rankscope-cluster", "Allocated, idle"): 1,
    ("rankscope-cluster", "Cost of idle GPUs"): 2.5,
    ("rankscope-collectives", "Communicators"): 2,
    ("rankscope-collectives", "GPUs with NCCL Inspector"): 5,
    ("rankscope-collectives", "Longest wait for one GPU"): 0.0031,
    ("rankscope-run", "Ranks"): 4,
    ("rankscope-run", "Step"): 1,
    ("rankscope-run", "Worst straggler"): 0.59,
    ("rankscope-run", "Input wait"): 0.1,
    ("rankscope-run", "Exposed communication"): 0.1,
    ("rankscope-run", "Overlap"): 0.75,
}
"""Expected values of single-number panels at this site; a lost GPU draws no power."""


@pytest.mark.full
def test_every_query_returns_data_or_is_listed_with_a_reason(
    start_exporter: Callable[..., RunningExporter],
    fake_nvml_library: Path,
    require_program: Callable[[str], str],
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    # given a node with GPUs of many kinds, a job, ranks that make steps, a dead exporter, and simulated GPUs
    with ExitStack() as stack:
        driver, arguments = prepared(tmp_path, fake_nvml_library)
        (tmp_path / "thresholds.toml").write_text(THRESHOLDS)
        rules = rules_text(settings=load_thresholds(tmp_path / "thresholds.toml"))
        ranks = Ranks(tmp_path / "spool")
        stack.callback(ranks.stop)
        node = start_exporter(*arguments, env=driver.env)
        simulated = start_exporter(
            "--simulate",
            "1xH100",
            "--state-dir",
            tmp_path / "other",
            "--no-collector.spool",
            "--host",
            "node2",
            "--control.socket",
            tmp_path / "2.sock",
        )
        dead = f"127.0.0.1:{free_port()}"
        addresses = [f"127.0.0.1:{node.port}", dead]
        jobs = {
            "gpus": ("/metrics", [*addresses, f"127.0.0.1:{simulated.port}"]),
            "node": ("/metrics", [stack.enter_context(node_exporter())]),
        }
        asked = stack.enter_context(scraping(require_program("prometheus"), tmp_path, f"127.0.0.1:{free_port()}", jobs, rules))
        node.wait_until(lambda: len(node.values("gpu_up")) == len(driver.gpus))
        wait_until(lambda: asked.instant(f'gpu_xid_errors_total{{xid="79", uuid="{uuid_of(0)}"}} == 0'), poll_s=0.1)
        # when a GPU is lost and another has errors
        unanswered = _queries()
        driver.xid(0, 31, 79)
        driver.lose(LOST)

        # then every query has data, except where there is a reason
        def all_answered() -> bool:
            unanswered[:] = [target for target in _without_data(asked, unanswered, jobs) if target.name not in NOT_HERE]
            return not unanswered

        wait_until(all_answered, poll_s=0.3, details=lambda: sorted(target.name for target in unanswered))

        # and also with All selected, and the panels show the planted values
        empty = {target.name for target in _queries() if not asked.instant(target.asked(_everything(target.board)))}
        assert empty == NOT_HERE.keys()
        shown = {
            target.name[:2]: target.asked(_values(target.board, jobs)) for target in _queries() if target.name[:2] in PLANTED
        }
        planted = {name: [pytest.approx(value, rel=0.02)] for name, value in PLANTED.items()}

        def wrong() -> dict[tuple[str, str], list[float]]:
            numbers = {name: _numbers(asked.instant(expr)) for name, expr in shown.items()}
            return {name: values for name, values in numbers.items() if values != planted[name]}

        wait_until(lambda: not wrong(), poll_s=0.3, details=wrong)

        (firing,) = [target for target in _queries() if target.name == ("rankscope-alerts", "Firing alerts", "A")]
        lost = {series["metric"].get("gpu_uuid") for series in asked.instant(firing.asked(_values("rankscope-alerts", jobs)))}
        assert uuid_of(LOST) in lost

        # and the errors in the time range are counted, including the first of each code
        xids = _labelled(asked, jobs, "rankscope-alerts", "Xids", "B", by=("host", "index", "xid"))
        assert xids == {("node1", "0", "31"): 1, ("node1", "0", "79"): 1}

        # and a graph names devices without a line, with the reason
        (missing,) = [target for target in _queries() if target.name == ("rankscope-node", "SMs active", "B")]
        collected = {
            (series["metric"]["of"], series["metric"]["why"])
            for series in asked.instant(missing.asked(_values("rankscope-node", jobs)))
        }
        assert collected >= {
            ("node1 GPU 1", "not available (before_hopper)"),
            (f"node1 GPU {LOST}", "collection dead (lost)"),
            (dead, "collection dead (no answer)"),
        }

        # and without the recording rules, graphs and figures say so
        without = {
            title: asked.instant(target.asked(_values(target.board, jobs)).replace(RULES, "cluster:rules:of_no_file"))
            for target in _queries()
            for title in [target.name]
            if title in {("rankscope-cluster", "Recording rules", "A"), ("rankscope-run", "Step time", "D")}
        }
        assert _numbers(without["rankscope-cluster", "Recording rules", "A"]) == [0]
        assert any("no recording rules" in item["metric"]["state"] for item in without["rankscope-run", "Step time", "D"])

        # and InfiniBand is found by the host, and reported as missing without node_exporter's metrics
        up = _labelled(asked, jobs, "rankscope-node", "InfiniBand link up", "A")
        assert up == {("node1", "mlx5_0", "1"): 1, ("node1", "mlx5_1", "1"): 0}
        downs = _labelled(asked, jobs, "rankscope-cluster", "Every host", "H", by=("host",))
        assert downs.keys() == {("node1",)}
        assert downs["node1",] > 0
        absent = _labelled(asked, jobs, "rankscope-node", "InfiniBand sent", "B", by=("of", "why"))
        assert absent.keys() == {
            ("node2", "not available (no InfiniBand of node_exporter)"),
            (dead, "collection dead (no answer)"),
        }

        # and each communicator has its bus bandwidth and the GPU that the others wait for
        bandwidths = _labelled(
            asked, jobs, "rankscope-collectives", "Bus bandwidth", "A", by=("slurm_job_id", "comm_name", "collective")
        )
        of_job = {("7", "DP", "AllReduce"): 80e9, ("7", "DP", "Broadcast"): 160e9}
        assert bandwidths == {**of_job, ("unknown", "TP", "AllReduce"): 50e9}
        name = ("rankscope-collectives", "The GPU that the others wait for")
        later = _labelled(asked, jobs, *name, "A", by=("comm_name", "collective", "host", "gpu"))
        assert later == {("DP", "AllReduce", "node1", "GPU5"): pytest.approx(0.003)}
        absent = _labelled(asked, jobs, "rankscope-collectives", "Bus bandwidth", "B", by=("of", "why"))
        assert absent.keys() == {("node2", "not available (no NCCL Inspector)"), (dead, "collection dead (no answer)")}

        # and variables have options, except cluster, which this site lacks
        for board in all_boards().values():
            for variable in board["templating"]["list"]:
                if variable["type"] == "query":
                    choices = _choices(asked, variable, _values(board["uid"], jobs))
                    assert bool(choices) == (variable["name"] != "cluster"), (board["uid"], variable["name"])
                    if variable["name"] == "gpu":
                        assert all(text.isdigit() and value.startswith("GPU-") for text, value in choices)


def _queries() -> list[Target]:
    return [target for board in all_boards().values() for target in targets(board)]


def _values(board: str, jobs: Mapping[str, tuple[str, list[str]]]) -> dict[str, list[str] | str]:
    """Return a selection of variables: these hosts, this run, all GPUs and ranks."""
    chosen: dict[str, list[str] | str] = {"cluster": ".*", "job": ["gpus", "other"], "instance": jobs["gpus"][1]}
    return chosen | ({"run_id": [RUN_ID], "rank": ".+"} if board == "rankscope-run" else dict.fromkeys(_of_gpus(board), ".+"))


def _labelled(
    asked: Asked, jobs: Mapping[str, tuple[str, list[str]]], *name: str, by: Sequence[str] = ("host", "device", "port")
) -> dict[tuple[str, ...], float]:
    """Return the values of one query by labels."""
    (target,) = [target for target in _queries() if target.name == name]
    series = asked.instant(target.asked(_values(target.board, jobs)))
    return {tuple(sample["metric"][label] for label in by): float(sample["value"][1]) for sample in series}


def _numbers(series: list[dict[str, Any]]) -> list[float]:
    return [float(sample["value"][1]) for sample in series]


def _everything(board: str) -> dict[str, list[str] | str]:
    names = ("run_id", "rank") if board == "rankscope-run" else _of_gpus(board)
    return {"cluster": ".*", **dict.fromkeys(("job", "instance", *names), ".+")}


def _of_gpus(board: str) -> tuple[str, ...]:
    """Return the variables of a GPU board besides those of exporters."""
    return ("gpu", "slurm_job_id", "comm_name", "collective") if board == "rankscope-collectives" else ("gpu",)


def _choices(asked: Asked, variable: Json, values: Mapping[str, list[str] | str]) -> set[tuple[str, str]]:
    """Return text and value of the options of a variable."""
    function, _, inner = put_in(variable["query"]["query"], values).partition("(")
    if function == "label_values":
        series, _, label = inner.removesuffix(")").rpartition(",")
        strs = {str(item["metric"].get(label.strip(), "")) for item in asked.instant(f"group by ({label}) ({series})")}
        return {(item, item) for item in strs if item}
    pattern = re.compile(variable["regex"].strip("/").replace("(?<", "(?P<"))
    lines = (_as_text(item["metric"]) for item in asked.instant(inner.removesuffix(")")))
    return {(match["text"], match["value"]) for line in lines if (match := pattern.search(line))}


def _as_text(metric: Mapping[str, str]) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(metric.items()) if name != "__name__")
    return f"{metric['__name__']}{{{labels}}} 1 1700000000000"


def _without_data(asked: Asked, queries: Sequence[Target], jobs: Mapping[str, tuple[str, list[str]]]) -> list[Target]:
    return [target for target in queries if not asked.instant(target.asked(_values(target.board, jobs)))]

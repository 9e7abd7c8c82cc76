"""Faults of a cluster in network namespaces: which alerts the receiver gets, after how long, and that no other fires.

Prints one row of JSON per fault. The rules are the shipped ones with durations of seconds, from an operator's thresholds file
(``short_thresholds`` in tests/e2e/cluster.py, where the expected names are, too).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.cluster import EXPECTED, Cluster, training_cluster

from rankscope.alerts.alert import unix_ns
from rankscope.runs.reader import RunReader

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.usefixtures("require_torch"), pytest.mark.timeout(1800)]

SLOW_LINK = "8mbit"
"""Rate of the slow link: a step sends 0.4 MB over it and then takes four times as long."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Training cluster without faults and without alerts, after 100 steps."""
    with training_cluster(tmp_path) as cluster:
        cluster.wait_for_steps(100)
        assert cluster.alerts() == []
        yield cluster


@pytest.fixture
def row(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    def show(fault: str, **figures: object) -> None:
        with capsys.disabled():
            print("\n" + json.dumps({"fault": fault, **figures}))

    return show


def test_no_alert_fires_without_a_fault(cluster: Cluster, row: Callable[..., None]) -> None:
    began = time.monotonic()
    cluster.wait_for_steps(1000)
    assert cluster.alerts() == []
    assert cluster.end_training() == [0, 0]
    verdict = cluster.verdict()
    assert (verdict["kind"], verdict["rank"]) == ("host_bound", None)  # the job sleeps in every step
    assert cluster.fired() == EXPECTED["none"]
    row("none", quiet_s=round(time.monotonic() - began, 1))


def test_killed_exporter_fires_an_alert_and_restart_resolves_the_alert(cluster: Cluster, row: Callable[..., None]) -> None:
    node = cluster.nodes[1]
    began = time.time_ns()
    node.kill("exporter")
    seen = cluster.expect("exporter killed", began)
    back = time.time_ns()
    node.start_exporter()
    ended = cluster.expect_end(back)
    cluster.wait_for_steps(50)
    assert {alert["labels"]["host"] for alert in cluster.alerts()} == {node.name}
    assert cluster.fired() == EXPECTED["exporter killed"]
    row("exporter killed", seen_s=seen, ended_s=ended)


def test_prometheus_restart_neither_resolves_nor_repeats_an_alert(cluster: Cluster, row: Callable[..., None]) -> None:
    # Given an alert that fires
    node = cluster.nodes[0]
    node.kill("exporter")
    cluster.expect("Prometheus restarted", time.time_ns())
    # When Prometheus is restarted, and evaluates until the alert fires again
    began = time.time_ns()
    cluster.restart_prometheus()
    cluster.until(lambda: "ExporterAbsent" in cluster.firing_in_prometheus(), "the alert fires again")
    restarted_s = round((time.time_ns() - began) / 1e9, 1)
    cluster.wait_for_steps(50)
    # Then the receiver gets the alert once, and its end when the exporter is back
    assert [alert["status"] for alert in cluster.alerts()] == ["firing"]
    back = time.time_ns()
    node.start_exporter()
    ended = cluster.expect_end(back)
    assert len({(alert["fingerprint"], alert["startsAt"]) for alert in cluster.alerts()}) == 1
    assert cluster.fired() == EXPECTED["Prometheus restarted"]
    row("Prometheus restarted", restarted_s=restarted_s, ended_s=ended)


def test_job_hangs_while_a_host_is_cut_off_and_resumes_when_reconnected(cluster: Cluster, row: Callable[..., None]) -> None:
    node = cluster.nodes[1]
    began = time.time_ns()
    cluster.cut(node)
    seen = cluster.expect("host cut off", began)
    # No rank is the culprit: all entered the collective, which does not end
    hang = cluster.report("hang")
    assert (hang["cause"], hang["culprits"], hang["ranks"]) == ("stuck", [], 4)
    [absent] = cluster.of("ExporterAbsent")
    assert absent["labels"]["host"] == node.name
    [hanging] = cluster.of("TrainingHang")
    assert hanging["annotations"]["cause"] == "stuck"
    assert "culprit" not in hanging["annotations"]
    assert "rankscope" in cluster.get("dashboard", hanging["annotations"]["dashboard_url"].removeprefix(cluster.dashboard_url))
    # When the host is back, the job continues where it was
    back = time.time_ns()
    cluster.join(node)
    ended = cluster.expect_end(back)
    cluster.wait_for_steps(50)
    assert cluster.end_training() == [0, 0]
    assert cluster.fired() == EXPECTED["host cut off"]
    row("host cut off", seen_s=seen, ended_s=ended)


@pytest.mark.parametrize(
    ("fault", "timeout_s"),
    [("host powered off", 12.0), ("host powered off, others wait", 90.0)],
    ids=["the others crash soon", "the others crash while the hang fires"],
)
def test_ranks_of_powered_off_host_are_reported_lost_not_crashed_survivors(
    tmp_path: Path, row: Callable[..., None], fault: str, timeout_s: float
) -> None:
    with training_cluster(tmp_path, timeout_s=timeout_s) as cluster:
        cluster.wait_for_steps(60)
        node = cluster.nodes[1]
        began = time.time_ns()
        cluster.power_off(node)
        if "TrainingHang" in EXPECTED[fault]:
            cluster.until(lambda: "TrainingHang" in cluster.firing(), "the hang fires while the others wait")
        seen = cluster.expect("host powered off", began)
        lost = cluster.of("TrainingRankLost")
        assert sorted((alert["labels"]["rank"], alert["labels"]["host"]) for alert in lost) == [
            ("2", node.name),
            ("3", node.name),
        ]
        assert {alert["annotations"]["consequence"] for alert in lost} == {"0,1"}
        reader = RunReader(cluster.run)
        for alert in lost:
            last = list(reader.steps(0, int(alert["labels"]["rank"])))[-1]
            assert int(alert["annotations"]["last_step"]) == last.step
            # The annotation has a resolution of milliseconds
            assert 0 <= last.start_unix_ns + last.wall_us * 1e3 - unix_ns(alert["annotations"]["last_heard"]) < 2e6
        # The surviving ranks are recorded as crashed only
        assert {rank: info.end_reason for rank, info in reader.infos(0).items()} == {0: "crash", 1: "crash", 2: None, 3: None}
        cluster.until(lambda: "TrainingHang" not in cluster.firing(), "a job that crashed no longer hangs")
        assert cluster.fired() == EXPECTED[fault]
        row(fault, timeout_s=timeout_s, seen_s=seen)


def test_killed_ranks_are_silent_and_surviving_ranks_ended(cluster: Cluster, row: Callable[..., None]) -> None:
    fault, node = "all processes of a host killed", cluster.nodes[1]
    began = time.time_ns()
    node.power_off()
    seen = cluster.expect(fault, began)
    ranks = cluster.until(lambda: len(of := lost_ranks(cluster)) == 4 and of, "all ranks are lost")
    assert ranks == {"0": "ended", "1": "ended", "2": "silent", "3": "silent"}
    assert cluster.fired() == EXPECTED[fault]
    row(fault, seen_s=seen)


def lost_ranks(cluster: Cluster) -> dict[str, str]:
    """Return the cause of the loss of each rank that was reported as lost."""
    return {alert["labels"]["rank"]: alert["annotations"]["cause"] for alert in cluster.of("TrainingRankLost")}


def test_slow_link_is_communication_bound_without_a_culprit_rank(cluster: Cluster, row: Callable[..., None]) -> None:
    node = cluster.nodes[1]
    began = time.time_ns()
    cluster.slow(node, SLOW_LINK)
    seen = cluster.expect("host link slow", began)
    # The analysis includes the steps before the fault: the slow link dominates after a while
    cluster.until(lambda: cluster.verdict()["kind"] == "communication_bound", "the verdict is communication")
    assert cluster.verdict()["rank"] is None
    slowdown = [alert["annotations"]["slowdown"] for alert in cluster.of("TrainingStepRegression")]
    back = time.time_ns()
    cluster.mend(node)
    ended = cluster.expect_end(back)
    assert cluster.end_training() == [0, 0]
    assert cluster.fired() == EXPECTED["host link slow"]
    row("host link slow", rate=SLOW_LINK, slowdown=slowdown[0], seen_s=seen, ended_s=ended)

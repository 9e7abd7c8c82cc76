"""A healthy cluster of two hosts, and an exporter that is killed; the other faults are in the campaign of the cluster.

The rules are the shipped ones with durations of seconds, from an operator's thresholds file (``short_thresholds``).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.e2e.cluster import EXPECTED, EXPORTER_PORT, training_cluster

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.usefixtures("require_torch"), pytest.mark.timeout(900)]


def test_a_killed_exporter_is_the_only_alert_of_a_healthy_cluster(tmp_path: Path) -> None:
    with training_cluster(tmp_path) as cluster:
        # Given two hosts, each with its own name, GPUs and ranks, on which nothing is wrong
        cluster.wait_for_steps(100)
        assert {
            host: cluster.value(f'count(gpu_up{{instance="{node.address}:{EXPORTER_PORT}"}} == 1)')
            for host, node in ((node.name, node) for node in cluster.nodes)
        } == {"node1": 2.0, "node2": 2.0}
        assert [cluster.value(f'count(rank_info{{host="{node.name}"}})') for node in cluster.nodes] == [2.0, 2.0]
        assert cluster.alerts() == []

        # When one exporter is killed, and started again once that is reported
        node = cluster.nodes[1]
        began = time.time_ns()
        node.kill("exporter")
        cluster.expect("exporter killed", began)
        node.start_exporter()
        cluster.expect_end(time.time_ns())

        # Then the alert named the host, the job continued, and nothing else fired
        assert {alert["labels"]["host"] for alert in cluster.alerts()} == {"node2"}
        cluster.wait_for_steps(20)
        assert cluster.end_training() == [0, 0]
        verdict = cluster.verdict()
        assert (verdict["kind"], verdict["rank"]) == ("host_bound", None)  # the job sleeps in every step
        assert cluster.fired() == EXPECTED["exporter killed"]

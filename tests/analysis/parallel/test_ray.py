"""``--engine ray`` on a real cluster of two nodes: the same results as ``--engine local``, and one line per failure."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.ray_nodes import NODES, Cluster, started
from tests.command_line import Cli
from tests.step_files import add_damaged, steps_file
from tests.waiting import wait_until

from rankscope.analysis.parallel.ray_engine import node_task

pytestmark = [pytest.mark.full, pytest.mark.slow]


ENGINE = """
import os, sys
from pathlib import Path
from rankscope.analysis.parallel.ray_engine import RayEngine
from rankscope.base.errors import RankscopeError

def each(function, items, address=None):
    here = [Path(sys.executable)] * len(items)
    return RayEngine(address).map(function, items, files=here, text_bytes=0)
"""


@pytest.fixture(scope="module")
def cluster(require_ray: None) -> Iterator[Cluster]:
    with started() as nodes:
        yield nodes
    assert nodes.processes() == []


def test_ray_output_equals_that_of_local_processes_byte_for_byte(
    cluster: Cluster, cli_process: Cli, example_traces: Path
) -> None:
    # given the traces of four ranks
    analyze = ("analyze", example_traces / "jobs" / "ddp", "--detail", "--format", "json")
    local = cli_process(*analyze)
    # when the tasks of a cluster read them
    ray = cli_process(*analyze, "--engine", "ray", "--address", cluster.address, timeout=200, env=cluster.environ)
    # then not a byte differs, and Ray prints nothing
    assert (ray.returncode, ray.stderr) == (0, "")
    assert ray.stdout == local.stdout


def test_ray_output_for_a_run_equals_that_of_local_processes(cluster: Cluster, cli_process: Cli, synthetic: Any) -> None:
    # given a recorded run with a slow rank and a damaged record
    run: Path = synthetic(ranks=5, steps=40, plan=lambda rank, step: {"us": 40_000, "cpu": True} if rank == 3 else None).write()
    add_damaged(steps_file(run, 2))
    # when local processes read it, and one task at a time on the cluster that the environment names
    local = cli_process("analyze", run)
    ray = cli_process(
        "analyze", run, "--engine", "ray", "--workers", "1", env={**cluster.environ, "RAY_ADDRESS": cluster.address}, timeout=200
    )
    # then the answers are the same, warnings and all
    assert (ray.returncode, ray.stderr) == (0, "")
    assert ray.stdout == local.stdout
    assert "Rank 3 on host n1 makes" in ray.stdout
    assert "1 damaged line skipped" in ray.stdout


def test_connected_program_uses_all_nodes_in_order_and_stays_connected(cluster: Cluster) -> None:
    # given a program that is connected to a cluster, and builtins to run on its nodes, which are pickled by name
    code = """
import ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
where = "__import__('time').sleep(0.5), __import__('ray').get_runtime_context().get_node_id()"
print(len({node for _, node in each(eval, [where] * 4)}))
# when the first takes longest, one kills its worker, and it gives an address
print(list(each(eval, ["__import__('time').sleep(1) or 1", "2", "3", "4"])))
for function, address in [(os._exit, None), (eval, sys.argv[1])]:
    try:
        list(each(function, [1], address))
    except RankscopeError as error:
        print(error)
print(ray.is_initialized())
"""
    environ = {**os.environ, **cluster.environ, "RAY_DEDUP_LOGS_SKIP_REGEX": ".*"}
    command = [sys.executable, "-c", ENGINE + code, cluster.address]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    # then both nodes have worked, the order is kept, and each fault is one line
    assert completed.returncode == 0, completed.stderr
    nodes, order, lost, refused, connected = completed.stdout.splitlines()
    assert (int(nodes), order, connected) == (NODES, "[1, 2, 3, 4]", "True")
    assert re.fullmatch(r"a task on the Ray cluster, with .*python.*, was lost \(WorkerCrashedError\): was it killed.*", lost)
    assert refused == "this program is connected to a Ray cluster already: leave the address out"


def test_ctrl_c_ends_the_tasks_and_leaves_the_cluster_running(cluster: Cluster, tmp_path: Path) -> None:
    # given a long task
    result = tmp_path / "pid"
    say = f"__import__('pathlib').Path({os.fspath(result)!r}).write_text(str(__import__('os').getpid()))"
    task = f"{say}, __import__('time').sleep(600)"
    command = [sys.executable, "-c", f"{ENGINE}list(each(eval, [{task!r}], sys.argv[1]))", cluster.address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **cluster.environ}) as program:
        worker = int(wait_until(lambda: result.exists() and result.read_text(), process=program))
        assert worker in cluster.processes()
        # when its program is interrupted
        program.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in program.communicate(timeout=100)[1]
    # then the task has ended, and the cluster still runs
    wait_until(lambda: worker not in cluster.processes(), poll_s=0.1)
    assert cluster.processes()


def test_node_task_reports_a_missing_rankscope(require_ray: None) -> None:
    # given the payload sent to a node, and an interpreter there that has Ray but not rankscope
    factory = logging.getLogRecordFactory()
    from ray import cloudpickle

    logging.setLogRecordFactory(factory)  # else the factory that Ray sets on import would stay for all later tests
    travels = cloudpickle.dumps(node_task())
    code = """
import importlib.metadata, pickle, sys
from ray import cloudpickle
sys.modules["rankscope"] = None
def version(name): raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
outcome, node, found = cloudpickle.loads(sys.stdin.buffer.read())(("0.1.0", "/", b""), b"", None)
print(outcome, pickle.loads(found))
"""
    completed = subprocess.run([sys.executable, "-c", code], input=travels, capture_output=True, check=False)
    assert completed.stdout == b"version None\n", completed.stderr

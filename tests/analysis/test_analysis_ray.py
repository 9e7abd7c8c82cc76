"""``--engine ray`` on a real cluster of two nodes: the answers of ``--engine local``, and one line for what goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ray_nodes import NODES, Cluster, started

from rankscope.analysis.ray_node import node_task

pytestmark = pytest.mark.slow

Cli = Callable[..., subprocess.CompletedProcess[str]]

ENGINE = """
import os, sys, time
from pathlib import Path
from rankscope.analysis.ray_engine import RayEngine
from rankscope.runs.errors import RankscopeError

def each(function, items, workers=None):
    here = [Path(sys.executable)] * len(items)
    return RayEngine(sys.argv[1], workers).map(function, items, files=here, text_bytes=0)
"""


@pytest.fixture(scope="module")
def cluster(require_ray: None) -> Iterator[Cluster]:
    with started() as nodes:
        yield nodes
    assert nodes.processes() == []


def python(cluster: Cluster, code: str) -> subprocess.CompletedProcess[str]:
    """A program of its own that has ``each``: what ``RayEngine`` makes of items."""
    command = [sys.executable, "-c", ENGINE + code, cluster.address]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_the_answer_is_that_of_local_processes_to_the_byte(cluster: Cluster, cli: Cli, shared_data: Path) -> None:
    # given the traces of eight real ranks
    traces = shared_data / "traces" / "dlrm_8ranks_v100"
    local = cli("analyze", traces, "--detail", "--format", "json")
    # when the tasks of a cluster read them, found by its address or by the environment
    address = cli("analyze", traces, "--detail", "--format", "json", "--engine", "ray", "--address", cluster.address, timeout=200)
    environ = cli("analyze", traces, "--engine", "ray", "--workers", "1", env={"RAY_ADDRESS": cluster.address}, timeout=200)
    # then not a byte differs, and Ray says nothing of its own
    assert (address.returncode, address.stderr) == (0, "")
    assert address.stdout == local.stdout
    assert (environ.stdout, environ.stderr) == (cli("analyze", traces).stdout, "")


def test_a_run_and_broken_traces_too(cluster: Cluster, cli: Cli, synthetic: Any, tmp_path: Path) -> None:
    # given a recorded run with a damaged line, and traces of which one is torn and one is none
    run: Path = synthetic(ranks=5, steps=40, plan=lambda rank, step: {"us": 40_000, "cpu": True} if rank == 3 else None).write()
    with next(run.glob("attempts/000/ranks/00002/steps-*.jsonl")).open("ab") as file:
        file.write(b"not JSON\n")
    # when local processes and a cluster read it
    local, ray = (
        cli("analyze", run, "--format", "json", *more, timeout=200)
        for more in ((), ("--engine", "ray", "--address", cluster.address))
    )
    # then the answers are the same, warnings and all
    assert (ray.returncode, ray.stderr) == (0, "")
    assert ray.stdout == local.stdout
    assert "1 damaged line" in ray.stdout or "skipped" in ray.stdout


def test_tasks_run_on_all_nodes_and_a_killed_one_is_one_line(cluster: Cluster) -> None:
    # given expressions to evaluate, for what a node runs it knows by its name
    done = python(
        cluster,
        """
where = "__import__('time').sleep(0.5), __import__('ray').get_runtime_context().get_node_id()"
print(len({node for _, node in each(eval, [where] * 4)}))
# when the first takes longest, or one kills its worker
print(list(each(eval, ["__import__('time').sleep(1) or 1", "2", "3", "4"])))
try:
    list(each(os._exit, [1]))
except RankscopeError as error:
    print(error)
""",
    )
    # then both nodes have worked, the order is kept, and nothing but our line is said
    nodes, order, lost = done.stdout.splitlines()
    assert (int(nodes), order) == (NODES, "[1, 2, 3, 4]")
    assert re.fullmatch(r"a task on the Ray cluster, with .*python.*, was lost \(WorkerCrashedError\): was it killed.*", lost)
    assert done.stderr == ""


def test_ctrl_c_ends_the_tasks_and_leaves_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    # given a task that goes on for long
    told = tmp_path / "pid"
    say = f"__import__('pathlib').Path({os.fspath(told)!r}).write_text(str(__import__('os').getpid()))"
    task = f"{say}, __import__('time').sleep(600)"
    command = [sys.executable, "-c", f"{ENGINE}list(each(eval, [{task!r}]))", cluster.address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        until = time.monotonic() + 100
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < until
            time.sleep(0.1)
        worker = int(told.read_text())
        assert worker in cluster.processes()
        # when its program is interrupted
        program.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in program.communicate(timeout=100)[1]
    # then the task is gone, and the cluster works on
    while worker in cluster.processes():
        assert time.monotonic() < until
        time.sleep(0.1)
    assert python(cluster, "print(list(each(eval, ['6 * 7'])))").stdout == "[42]\n"


def test_a_program_that_is_connected_stays_so(cluster: Cluster) -> None:
    done = python(
        cluster,
        """
import ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(list(RayEngine().map(eval, ["1"], files=["s3://a"], text_bytes=0)), ray.is_initialized())
try:
    list(each(eval, ["1"]))
except RankscopeError as error:
    print(error)
""",
    )
    assert done.stdout == "[1] True\nthis program is connected to a Ray cluster already: leave the address out\n"


def test_a_node_without_rankscope_can_say_so(require_ray: None) -> None:
    # given what travels to a node, and an interpreter there that has Ray but not rankscope
    from ray import cloudpickle

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
    done = subprocess.run([sys.executable, "-c", code], input=travels, capture_output=True, check=False)
    assert done.stdout == b"version None\n", done.stderr

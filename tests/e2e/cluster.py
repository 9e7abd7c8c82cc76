"""A cluster on one machine: hosts in namespaces of their own, joined by a switch, with the real monitoring beside them.

    switch (bridge in the hub's network namespace)
     |- hub     198.18.0.1    Prometheus, Alertmanager, receiver, dashboard, watcher
     |- node1   198.18.0.11   exporter with the fake driver, torchrun
     `- node2   198.18.0.12   the same

A host is one process that holds a network, UTS, mount and PID namespace, so that it has its own interfaces, host name, /etc/hosts
and processes. Interfaces are made inside these namespaces only; when the holding process ends for any cause, the kernel
kills every process of the host and removes its interfaces. No name is shared with the machine or with another test.
The hosts share the file system, like nodes with a file server on a separate network: a host that is cut off can still
write into the run directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import pytest
from tests.e2e.monitoring import Monitoring
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state
from tests.needs import program
from tests.waiting import wait_until

from rankscope.alerts.rules.thresholds import duration_seconds, load_thresholds
from rankscope.alerts.watcher_alerts import WATCHER_ALERTS
from rankscope.base.process import end_with_parent
from rankscope.cli.demo.services import Services, get, rankscope_command

HUB_ADDRESS: Final = "198.18.0.1"  # RFC 2544: a network for tests of networks
EXPORTER_PORT: Final = 9838
MASTER_PORT: Final = 29500
PORTS: Final = {"prometheus": 9090, "alertmanager": 9093, "watcher": 9098, "receiver": 9099, "dashboard": 8050}
JOB: Final = Path(__file__).parent.parent / "profiler" / "jobs" / "trains_until_stopped.py"
START_S: Final = 240.0
_CLONE_NEWNET: Final = 0x40000000

EXPECTED: Final[dict[str, frozenset[str]]] = {
    "none": frozenset(),
    "exporter killed": frozenset({"ExporterAbsent"}),
    "Prometheus restarted": frozenset({"ExporterAbsent"}),  # restarted while the alert about a killed exporter fires
    "host cut off": frozenset({"ExporterAbsent", "TrainingStalled", "TrainingHang"}),
    "host powered off": frozenset({"ExporterAbsent", "TrainingRankLost"}),  # and the others crash before anything else fires
    "host powered off, others wait": frozenset({"ExporterAbsent", "TrainingStalled", "TrainingHang", "TrainingRankLost"}),
    "all processes of a host killed": frozenset({"ExporterAbsent", "TrainingRankLost"}),
    "host link slow": frozenset({"TrainingCommunicationBound", "TrainingStepRegression"}),
}
"""Fault to the names of all alerts that fire."""
OF_STATES: Final = ("GpuAllocatedIdle", "GpuAllocatedIdleLong")
"""Alerts about states of an hour and more, which keep their durations."""
STALLED_S: Final = 20
WATCHER: Final = (
    "--interval", "1s", "--silent-after", "15s", "--silent-steps", "20", "--least-firing", "5s",
    "--budget", "host=100%", "--budget", "slower=50%",
)  # fmt: skip
"""Short intervals and raised budgets: the job sleeps in every step, and other programs make steps longer."""

_UNSHARE: Final = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# A shell as process 1 reaps what its children leave behind.
_HOLD: Final = """
set -e
hostname "$1"
mount --bind "$2" /etc/hosts
ip link set lo up
if [ "$3" ]; then ip link add switch type bridge; ip addr add "$3/24" dev switch; ip link set switch up; fi
echo ready
while :; do sleep 1; done
"""

T = TypeVar("T")


def short_thresholds() -> str:
    """Return an operator's thresholds file with which the shipped rules fire after seconds: durations over 10 s become 10 s."""
    lines = ["[TrainingStalled]", f"seconds = {STALLED_S}", 'for = "2s"', 'keep_firing_for = "2s"']
    for name, settings in load_thresholds().items():
        if "for" in settings and name not in {"TrainingStalled", *OF_STATES, *WATCHER_ALERTS}:
            lines.append(f"[{name}]")
            for key, most_s in (("for", 10), ("keep_firing_for", 2)):
                known_s = duration_seconds(str(settings[key]))
                assert known_s is not None
                lines.append(f'{key} = "{int(min(known_s, most_s))}s"')
    return "\n".join(lines)


def require_namespaces(folder: Path) -> None:
    """Skip the test, with the reason, where namespaces, veth pairs or bridges are not permitted."""
    for name in ("ip", "tc", "unshare", "nsenter"):
        program(name)
    hosts = folder / "hosts-tried"
    hosts.touch()
    script = _HOLD.replace("while :; do sleep 1; done", "ip link add one type veth peer name two")
    tried = subprocess.run(
        [*_UNSHARE, "sh", "-c", script, "sh", "tried", str(hosts), HUB_ADDRESS], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        pytest.skip(f"namespaces with a bridge and a veth pair are not permitted here: {tried.stderr.strip()}")


class Host(Services):
    """Host of the cluster, and the processes started on it. With ``switch_address`` it has a switch with this address."""

    def __init__(self, name: str, folder: Path, hosts_file: Path, *, switch_address: str = "") -> None:
        super().__init__(folder)
        self.name = name
        self.folder = folder
        folder.mkdir()
        self._holder = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", _HOLD, "sh", name, str(hosts_file), switch_address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509  # as in Services
        )
        try:
            assert self._holder.stdout is not None
            readable, _, _ = select.select([self._holder.stdout], [], [], START_S)
            line = self._holder.stdout.readline() if readable else b""
            assert line == b"ready\n", f"{name} did not start: {line!r}"
            children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
            self.pid = int(children.read_text())
        except BaseException:
            self.power_off()
            raise
        self._network = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_enter_network, initargs=(self.pid,))

    def command(self, *command: str | Path) -> list[str]:
        """Return the command line that runs this on the host."""
        namespaces = ("--net", "--uts", "--mount", "--pid")
        return ["nsenter", "--target", str(self.pid), *namespaces, "--", *map(str, command)]

    def run(self, *command: str | Path) -> None:
        """Run a short command on the host."""
        subprocess.run(self.command(*command), check=True, capture_output=True)

    def start(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        return super().start(name, self.command(*command), env=env)

    def wait_for(self, name: str, url: str, *, timeout: float = START_S) -> None:
        self.within(lambda: super(Host, self).wait_for(name, url, timeout=timeout))

    def within(self, function: Callable[[], T]) -> T:
        """Call a function of this process while its new sockets are those of the host."""
        return self._network.submit(function).result()

    def kill(self, name: str) -> None:
        """Send SIGKILL to a started process and its children."""
        child = self._children.pop(name)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def power_off(self) -> None:
        """Kill every process of the host at once, which resets its connections and removes its interfaces."""
        if self._holder.poll() is None:
            os.killpg(self._holder.pid, signal.SIGKILL)
            self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self.power_off()
            self._network.shutdown()


class Node(Host):
    """Host with GPUs: ``index`` counts from 1."""

    def __init__(self, index: int, folder: Path, hosts_file: Path, *, gpus: int) -> None:
        super().__init__(f"node{index}", folder, hosts_file)
        self.index = index
        self.address = address_of(index)
        states = [h100_state(gpu) for gpu in range(gpus)]
        for gpu, state in enumerate(states):
            state |= {"uuid": f"GPU-{index:x}{gpu:07x}-aaaa-bbbb-cccc-000000000000", "serial": f"1650{index}{gpu}"}
        self.driver = FakeDriver(folder / "driver", build_library(), states)
        self.spool = folder / "spool"
        self.spool.mkdir()

    def plug_in(self, hub: Host) -> None:
        """Connect eth0 with a port of the switch."""
        made = ("ip", "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        subprocess.run(["nsenter", "--target", str(hub.pid), "--net", "--", *made], check=True, capture_output=True)
        hub.run("ip", "link", "set", self.name, "master", "switch", "up")
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def start_exporter(self) -> None:
        options = ("--listen", f":{EXPORTER_PORT}", "--interval", "1", "--spool", self.spool, "--spool-stale", "10s")
        state = ("--state-dir", self.folder / "state", "--control.socket", self.folder / "control.sock")
        self.start("exporter", rankscope_command("exporter", *options, *state), env=self.driver.env)

    def train(self, run: Path, stop: Path, *, nodes: int, ranks: int, width: int, timeout_s: float) -> None:
        """Start this node's part of the job: torchrun under the recorder."""
        shape = ("--nnodes", str(nodes), "--nproc-per-node", str(ranks), "--node-rank", str(self.index - 1))
        master = ("--master-addr", address_of(1), "--master-port", str(MASTER_PORT))
        torchrun = (sys.executable, "-m", "torch.distributed.run", *shape, *master)
        job = (JOB, stop, "--pause", "0.1", "--width", str(width), "--timeout", str(timeout_s))
        recorded = ("--no-verdict", "--run-dir", run, "--spool-dir", self.spool, "--window-every", "40")
        env = {
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "RANKSCOPE_RUN_ID": run.name,
            "RANKSCOPE_ATTEMPT": "0",
        }
        self.start("training", rankscope_command("run", *recorded, "--", *torchrun, *job), env=env)


class Cluster:
    """Two nodes or more, and the hub that monitors them. ``start`` begins everything but the job."""

    def __init__(
        self, folder: Path, *, nodes: int = 2, ranks_per_node: int = 2, width: int = 4096, timeout_s: float = 1800.0
    ) -> None:
        """``timeout_s``: seconds after which a collective of the job fails."""
        self.folder = folder
        self.timeout_s = timeout_s
        self.ranks_per_node = ranks_per_node
        self.width = width
        programs = {name: program(name) for name in ("prometheus", "prometheus-alertmanager")}
        self.runs = folder / "runs"
        self.run = self.runs / "job"
        self.stop_file = folder / "stop"
        self.deliveries = folder / "deliveries.jsonl"
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.stop_file.touch)
        self.runs.mkdir()
        (folder / "targets").mkdir()
        hosts_file = folder / "hosts"
        names = {HUB_ADDRESS: "hub"} | {address_of(index): f"node{index}" for index in range(1, nodes + 1)}
        hosts_file.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for address, name in names.items()))
        try:
            self.hub = self._stack.enter_context(Host("hub", folder / "hub", hosts_file, switch_address=HUB_ADDRESS))
            self.nodes: list[Node] = []
            for index in range(1, nodes + 1):
                node = Node(index, folder / f"node{index}", hosts_file, gpus=ranks_per_node)
                self.nodes.append(self._stack.enter_context(node))
                node.plug_in(self.hub)
        except BaseException:
            self._stack.close()
            raise
        self.monitoring = Monitoring(folder, PORTS, programs)

    @property
    def dashboard_url(self) -> str:
        return self.monitoring.url("dashboard")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start all servers, the receiver first, so that it can accept every alert."""
        monitoring, hub = self.monitoring, self.hub
        monitoring.export_rules(short_thresholds())
        discovery = {"file_sd_configs": [{"files": ["targets/*.json"], "refresh_interval": "1s"}]}
        own = [monitoring.address(name) for name in ("receiver", "watcher")]
        monitoring.configure_prometheus(
            [{"job_name": "rankscope", **discovery}, {"job_name": "hub", "static_configs": [{"targets": own}]}]
        )
        monitoring.configure_alertmanager({})
        out = ("--out", self.deliveries, "--state", self.folder / "receiver")
        monitoring.start_receiver(hub, *out, "--runs", self.runs)
        monitoring.start_alertmanager(hub)
        monitoring.start_prometheus(hub)
        dashboard = ("--listen", monitoring.address("dashboard"), "--prometheus", monitoring.url("prometheus"))
        hub.start("dashboard", rankscope_command("dashboard", self.runs, *dashboard))
        watched = ("--alertmanager", monitoring.url("alertmanager"), "--dashboard-url", monitoring.url("dashboard"))
        own_page = ("--listen", monitoring.address("watcher"), "--state", self.folder / "watcher.json")
        hub.start("watcher", rankscope_command("alerts", "watch", self.runs, *watched, *own_page, *WATCHER))
        for node in self.nodes:
            node.start_exporter()
        monitoring.wait(hub)
        hub.wait_for("dashboard", monitoring.url("dashboard", "/"))
        hub.wait_for("watcher", monitoring.url("watcher", "/-/healthy"))
        for node in self.nodes:
            self.discover(node)

    def discover(self, node: Node) -> None:
        """Have Prometheus find a node, and wait until it scrapes it."""
        target = f"{node.address}:{EXPORTER_PORT}"
        file = self.folder / "targets" / f"{node.name}.json"
        file.with_suffix(".new").write_text(json.dumps([{"targets": [target]}]))
        file.with_suffix(".new").replace(file)
        self.until(lambda: self.value(f'up{{instance="{target}"}}') == 1.0, f"Prometheus scrapes {node.name}")

    def train(self) -> None:
        """Start the job on every node, and wait until every rank makes steps and Prometheus scrapes them."""
        shape = {"nodes": len(self.nodes), "ranks": self.ranks_per_node, "width": self.width}
        for node in self.nodes:
            node.train(self.run, self.stop_file, timeout_s=self.timeout_s, **shape)
        world = len(self.nodes) * self.ranks_per_node
        self.until(lambda: self.value("count(rank_last_step > 20)") == world, "every rank makes steps")

    def end_training(self) -> list[int | None]:
        """Stop the job; return the exit status of each node's part."""
        self.stop_file.touch()
        return [node.wait("training", timeout=START_S) for node in self.nodes]

    def power_off(self, node: Node) -> None:
        """Simulate a power failure of a node: it leaves the network first, so that it resets no connection of the others."""
        self.cut(node)
        node.power_off()

    def cut(self, node: Node) -> None:
        """Switch off the node's port of the switch."""
        self.hub.run("ip", "link", "set", node.name, "down")

    def join(self, node: Node) -> None:
        """Switch the port on again."""
        self.hub.run("ip", "link", "set", node.name, "up")

    def slow(self, node: Node, rate: str) -> None:
        """Limit the node's link to a rate (``tc``), both ways."""
        bucket = ("tbf", "rate", rate, "burst", "32kb", "latency", "400ms")
        self.hub.run("tc", "qdisc", "add", "dev", node.name, "root", *bucket)
        node.run("tc", "qdisc", "add", "dev", "eth0", "root", *bucket)

    def mend(self, node: Node) -> None:
        """Take the limit away."""
        self.hub.run("tc", "qdisc", "del", "dev", node.name, "root")
        node.run("tc", "qdisc", "del", "dev", "eth0", "root")

    def restart_prometheus(self) -> None:
        """Restart the server with SIGTERM, over the same data."""
        process = self.hub._children["prometheus"]
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(START_S) is not None
        self.monitoring.start_prometheus(self.hub)
        self.hub.wait_for("prometheus", self.monitoring.url("prometheus", "/-/ready"))

    def expect(self, fault: str, began_unix_ns: int) -> dict[str, float]:
        """Wait until every alert of a fault fires; return the seconds after which the receiver had each."""
        names = EXPECTED[fault]
        self.until(lambda: names <= self.firing(), f"{', '.join(sorted(names))} after: {fault}")
        seen = {name: self.of(name)[-1]["received_unix_ns"] for name in names}
        return {name: round((at - began_unix_ns) / 1e9, 1) for name, at in sorted(seen.items())}

    def expect_end(self, began_unix_ns: int) -> dict[str, float]:
        """Wait until no alert fires any more; return the seconds after which the receiver got each end."""
        firing = self.firing()
        self.until(lambda: not self.firing(), "all alerts are resolved")
        ended = {name: self.of(name)[-1]["received_unix_ns"] for name in firing}
        return {name: round((at - began_unix_ns) / 1e9, 1) for name, at in sorted(ended.items())}

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the received notifications of one alert, oldest first."""
        return [alert for alert in self.alerts() if alert["labels"]["alertname"] == name]

    def fired(self) -> set[str]:
        """Return the names of all alerts that have fired."""
        return {alert["labels"]["alertname"] for alert in self.alerts()}

    def firing(self) -> set[str]:
        """Return the names of the alerts whose last notification is firing."""
        last = {alert["fingerprint"]: alert for alert in self.alerts()}
        return {alert["labels"]["alertname"] for alert in last.values() if alert["status"] == "firing"}

    def firing_in_prometheus(self) -> set[str]:
        """Return the names of the alerts that fire in Prometheus' alert list, independently of its series."""
        alerts = json.loads(self.get("prometheus", "/api/v1/alerts"))["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def steps(self) -> int:
        """Return the number of steps that every rank has made, from Prometheus."""
        return int(self.value("min(rank_last_step)") or 0)

    def wait_for_steps(self, count: int) -> None:
        """Wait until every rank has made this many steps more."""
        goal = self.steps() + count
        self.until(lambda: self.steps() >= goal, f"step {goal} of every rank")

    def verdict(self) -> dict[str, Any]:
        """Return the verdict of ``rankscope analyze`` about the run so far."""
        verdict: dict[str, Any] = self.report("analyze")["verdict"]
        return verdict

    def report(self, verb: str) -> dict[str, Any]:
        """Return the JSON output of a verb about the run."""
        done = subprocess.run(rankscope_command(verb, self.run, "--format", "json"), check=True, capture_output=True)
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def get(self, name: str, path: str) -> str:
        """Return the body of a page of a server on the hub."""
        return self.hub.within(lambda: get(self.monitoring.url(name, path)))

    def value(self, query: str) -> float | None:
        """Return the value of an instant query with one result, from Prometheus; ``None`` without a result."""
        result = json.loads(self.get("prometheus", f"/api/v1/query?query={quote(query)}"))["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def alerts(self) -> list[dict[str, Any]]:
        """Return every alert that the receiver accepted, oldest first, each with ``received_unix_ns``."""
        if not self.deliveries.exists():
            return []
        lines = [json.loads(line) for line in self.deliveries.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [{**alert, "received_unix_ns": line["received_unix_ns"]} for line in lines for alert in line["payload"]["alerts"]]

    def until(self, condition: Callable[[], T], what: str, *, timeout: float = START_S) -> T:
        """Return the result of ``condition`` once it is true; fail with the last line of every process."""
        answer: T = wait_until(condition, timeout=timeout, poll_s=0.2, details=lambda: f"{what}\n{self.state()}")
        return answer

    def state(self) -> str:
        """Return the report for a failure: alerts so far, and the last line of every process."""
        lines = [f"{host.name} {name}: {host.last_line(name)}" for host in (self.hub, *self.nodes) for name in host._children]
        alerts = [(alert["status"], *sorted(alert["labels"].items())) for alert in self.alerts()]
        return "\n".join([*map(str, alerts), *lines])


@contextlib.contextmanager
def training_cluster(folder: Path, *, timeout_s: float = 1800.0) -> Iterator[Cluster]:
    """Run a cluster with everything started and a job that makes steps; skip where that is not permitted."""
    require_namespaces(folder)
    with Cluster(folder, timeout_s=timeout_s) as cluster:
        cluster.start()
        cluster.train()
        yield cluster


def address_of(index: int) -> str:
    return f"198.18.0.{10 + index}"


def _enter_network(pid: int) -> None:
    """Make this thread's new sockets those of another process's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open("rb") as namespace:
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

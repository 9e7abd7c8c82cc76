"""Ray cluster of several nodes on loopback, for tests: a separate process that ends when its stdin is closed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NODES = 2


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running Ray cluster: ``address`` is HOST:PORT of its head; ``folder`` is in the environment of all its processes."""

    address: str
    folder: str

    @property
    def environ(self) -> dict[str, str]:
        """Environment of its drivers: else Ray connects to the machine's outer address, at which these nodes do not listen."""
        return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

    def processes(self) -> list[int]:
        """Return the ids of all processes of the cluster, without those of its drivers."""
        mark = f"RAY_TMPDIR={self.folder}".encode()
        collected = []
        for entry in Path("/proc").iterdir():
            # A process may exit meanwhile, or belong to another user.
            with suppress(OSError):
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    collected.append(int(entry.name))
        return collected


@contextmanager
def started() -> Iterator[Cluster]:
    """Run two nodes of one CPU each; no process or file of them is left afterwards, even on failure."""
    # Not pytest's own folder: the names of Ray's sockets have to stay short.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    environ = {
        **os.environ,
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        # A busy machine is slow.
        "RAY_gcs_server_request_timeout_seconds": "240",
        "RAY_raylet_start_wait_time_s": "240",
    }
    log = Path(folder) / "log"
    with log.open("wb") as err:
        keeper = subprocess.Popen(
            [sys.executable, __file__], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True
        )
    cluster = Cluster("", folder)
    try:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        address = keeper.stdout.readline().strip()
        assert address, log.read_text()
        cluster = Cluster(address, folder)
        yield cluster
    finally:
        with keeper:
            try:
                keeper.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                keeper.kill()
        for pid in cluster.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def _keep() -> None:
    from ray.cluster_utils import Cluster as Nodes

    loopback = {"num_cpus": 1, "node_ip_address": "127.0.0.1"}
    nodes = Nodes(initialize_head=True, head_node_args={**loopback, "include_dashboard": False})
    for _ in range(NODES - 1):
        nodes.add_node(**loopback)
    print(nodes.address, flush=True)
    sys.stdin.read()
    nodes.shutdown()


if __name__ == "__main__":
    _keep()

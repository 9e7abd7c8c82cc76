"""A site for the boards: a node with GPUs of many kinds, ranks that make steps, a job, and a Prometheus."""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace
from tests.dashboards.grafana.inspector_metrics import collective, p2p
from tests.exporter.fake_driver import FakeDriver, State, a100_state, h100_state, mig_state, uuid_of
from tests.exporter.jobs.job_node import slurm_folder
from tests.local_http import answering, respond
from tests.rank_file import RANK, RUN, STEP, WINDOW, totals_of
from tests.waiting import wait_until

from rankscope.profiler.helper.publishing.metrics_publisher import render, samples
from rankscope.runs.records import PhaseTimes

RUN_ID = "llama-20260101-7"
LOST, HELD, FREE = 3, 4, 6
THRESHOLDS = """
[price]
per_gpu_hour = 2.5
[GpuDown]
for = "0s"
[RecorderDisabled]
for = "0s"
"""
"""Thresholds without delays, so that alerts fire at once."""


def gpus() -> list[State]:
    """Return an H100, an A100 (no GPM), an H100 with MIG, one that will be lost, one held and idle, one hot, one free."""
    hot = {**h100_state(5), "throttle": 0x48, "margin": 0, "field.161@0": "3 ull", "fans": 1, "fan.0": 55}
    nothing = {"utilization": 0, "samples.1": "0,0,0", "gpm.1": 0, "gpm.2": "0", "gpm.5": "0", "gpm.10": 0}
    busy, free = ({**h100_state(index), **nothing} for index in (HELD, FREE))
    for key in ("process.0", "process_util.0"):
        del free[key]
    divided = mig_state(2, [(4, "4g.40gb"), (3, "3g.40gb")])
    return [h100_state(0), a100_state(1), divided, h100_state(LOST), busy, hot, free]


NODE_EXPORTER = """\
# TYPE node_uname_info gauge
node_uname_info{{nodename="node1"}} 1
# TYPE node_infiniband_state_id gauge
node_infiniband_state_id{{device="mlx5_0",port="1"}} 4
node_infiniband_state_id{{device="mlx5_1",port="1"}} 1
# TYPE node_infiniband_rate_bytes_per_second gauge
node_infiniband_rate_bytes_per_second{{device="mlx5_0",port="1"}} 5e+10
# TYPE node_infiniband_port_data_transmitted_bytes_total counter
node_infiniband_port_data_transmitted_bytes_total{{device="mlx5_0",port="1"}} {0}000000
# TYPE node_infiniband_port_data_received_bytes_total counter
node_infiniband_port_data_received_bytes_total{{device="mlx5_0",port="1"}} {0}000000
# TYPE node_infiniband_link_downed_total counter
node_infiniband_link_downed_total{{device="mlx5_0",port="1"}} 0
node_infiniband_link_downed_total{{device="mlx5_1",port="1"}} {0}
# TYPE node_infiniband_link_error_recovery_total counter
node_infiniband_link_error_recovery_total{{device="mlx5_0",port="1"}} {0}
# TYPE node_infiniband_symbol_error_total counter
node_infiniband_symbol_error_total{{device="mlx5_0",port="1"}} {0}
# TYPE node_infiniband_port_errors_received_total counter
node_infiniband_port_errors_received_total{{device="mlx5_0",port="1"}} {0}
# TYPE node_infiniband_port_discards_transmitted_total counter
node_infiniband_port_discards_transmitted_total{{device="mlx5_0",port="1"}} {0}
"""
"""node_exporter's page: an active InfiniBand port, and one whose link is down and whose counters grow per scrape."""


@contextmanager
def node_exporter() -> Iterator[str]:
    """Yield the address of a server of ``NODE_EXPORTER``, whose counters grow by one per scrape, and of ``collectives``."""
    scrapes = itertools.count(1)

    def answer(request: BaseHTTPRequestHandler, _: bytes) -> None:
        page = NODE_EXPORTER.format(next(scrapes)) + collectives()
        respond(request, 200, page.encode(), Content_Type="text/plain; version=0.0.4")

    with answering(answer) as url:
        yield url.removeprefix("http://")


def collectives() -> str:
    """Return NCCL Inspector's series of three GPUs of one communicator; GPU 5 arrives last, so its time is the shortest.

    Two other GPUs have a communicator of one name outside Slurm, and may belong to different jobs.
    """
    series = [
        line
        for gpu, (bandwidth, exec_us) in {0: (80, 5000), 1: (79, 5100), 5: (200, 2000)}.items()
        for line in (
            collective(bandwidth, exec_us, comm="DP", nranks=3, gpu=gpu),
            collective(2 * bandwidth, exec_us / 2, comm="DP", name="Broadcast", nranks=3, gpu=gpu),
            p2p(40, 300, gpu=gpu),
        )
    ]
    series += [collective(50, exec_us, comm="TP", nranks=2, gpu=gpu, job="unknown") for gpu, exec_us in ((2, 100), (4, 9000))]
    return "".join(sorted("".join(series).splitlines(keepends=True)))  # the series of a metric are adjacent


class Ranks:
    """Four ranks on GPUs 0, 1, 5 and none; the third is slow, the last is not observed. A thread keeps updating their files."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        spool.mkdir(parents=True, exist_ok=True)
        self._totals = [totals_of(1) for _ in range(4)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the steps."""
        self._ended.set()
        self._thread.join(20)

    def _write_on(self) -> None:
        number = 1
        while not self._ended.wait(0.3):
            number += 1
            for rank, totals in enumerate(self._totals):
                blocked = PhaseTimes(backward=1e4 if rank == 2 else 6e5)
                totals.add_step(
                    replace(
                        STEP, step=number, start_unix_ns=time.time_ns() - 10**9, blocked_us=blocked, profiled=number % 10 == 0
                    )
                )
                totals.add_window(replace(WINDOW, step=number))
                uuid = {0: uuid_of(0), 1: uuid_of(1), 2: uuid_of(5)}.get(rank)
                info = replace(
                    RANK,
                    rank=rank,
                    local_rank=rank,
                    world_size=4,
                    gpu_uuid=uuid,
                    recorder_cost_us=number * 2_000.0,
                    window_cost_us=number * 1_000.0,
                    windows=number,
                    disabled_reason="over budget" if rank == 3 else None,
                )
                text = render(
                    {"run": "llama", "rank": str(rank), "slot": "0"}, samples(replace(RUN, run_id=RUN_ID), info, totals)
                )
                new = self._spool / f".{rank}.new"
                new.write_text(text)
                new.replace(self._spool / f"rank-{rank}.prom")


def prepared(folder: Path, library: Path) -> tuple[FakeDriver, list[str]]:
    """Return the driver of the node and the arguments of its exporter."""
    driver = FakeDriver(folder / "site-driver", library, gpus())
    uuids = ",".join(uuid_of(index) for index in (0, 1, HELD))
    job = {"CUDA_VISIBLE_DEVICES": uuids, "SLURM_JOB_ACCOUNT": "physics", "SLURM_JOB_PARTITION": "gpu"}
    jobs = slurm_folder(folder / "jobs", job_7=job)
    wanted = ["process", "encoder"]
    arguments = ["--jobs.slurm-dir", str(jobs), "--no-xid.kernel-log", "--expected-gpus", "8"]
    return driver, [*arguments, *(f"--collector.{name}" for name in wanted)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A Prometheus with its HTTP client."""

    url: str
    client: httpx.Client

    def instant(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of an expression at this moment. Raises ``AssertionError`` for an invalid expression."""
        answer = self.client.post(f"{self.url}/api/v1/query", data={"query": expr}).json()
        assert answer["status"] == "success", f"{answer.get('error')}\n{expr}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@contextmanager
def scraping(
    program: str, folder: Path, address: str, jobs: Mapping[str, tuple[str, Sequence[str]]], rules: str
) -> Iterator[Asked]:
    """Run a Prometheus that scrapes every second; ``jobs`` maps names to path and addresses."""
    (folder / "site.rules.yaml").write_text(rules)
    config = folder / "site.yml"
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                "rule_files": ["site.rules.yaml"],
                "scrape_configs": [
                    {"job_name": name, "metrics_path": path, "static_configs": [{"targets": list(addresses)}]}
                    for name, (path, addresses) in jobs.items()
                ],
            }
        )
    )
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'site-tsdb'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            with httpx.Client(timeout=20, trust_env=False) as client:
                wait_until(
                    lambda: _ready(client, address), process=process, details=(folder / "prometheus.log").read_text, poll_s=0.1
                )
                yield Asked(f"http://{address}", client)
        finally:
            process.terminate()
            process.wait(20)


def _ready(client: httpx.Client, address: str) -> bool:
    try:
        return client.get(f"http://{address}/-/ready").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False

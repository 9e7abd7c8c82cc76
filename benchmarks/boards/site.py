"""Series of a large site, copied from pages that the real exporter and the recorder's own code publish on a few nodes.

The exporter runs over the driver library of the tests on a training node, on a node in trouble and on an idle node. Each page is
read twice to measure how counters grow. Every host of the site is a copy of one of the three, with names of its own.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.boards.remote_write import label_bytes
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.dashboards.grafana.board_site import NODE_EXPORTER
from tests.dashboards.grafana.inspector_metrics import collective, p2p
from tests.exporter.fake_driver import FakeDriver, State, build_library, h100_state, uuid_of
from tests.exporter.jobs.job_node import slurm_folder
from tests.rank_file import RANK, RUN, STEP, WINDOW, totals_of

from rankscope.profiler.helper.publishing.metrics_publisher import render, samples
from rankscope.profiler.helper.publishing.totals import Totals
from rankscope.runs.records import PhaseTimes

Page = dict[tuple[str, tuple[tuple[str, str], ...]], tuple[float, str]]
"""Value and type of each series of a page, by its name and labels."""

GPUS = 8
SLOW_RANK = 2
BETWEEN_S = 10.0
"""Seconds between the two readings of a page."""
RUNS = (("llama", 0.5), ("mixtral", 0.25), ("vision", 0.125))
"""Name and share of the hosts of each run; the other hosts are idle, and the last host does not answer."""
KEPT_LONG = re.compile(r"up|gpu_info|gpu_up|gpu_xid_\w+|gpu_metric_absent_info|gpu_down_info")
"""Series that the board of alerts queries over a longer time than the other boards do."""
GROWTH = {
    "rank_last_step_timestamp_seconds": 1.0,
    "gpu_energy_joules_total": 250.0,
}
"""Growth per second of series that the templates do not show: there, time stands still and no energy is used."""
NOISE = 0.02
_WAVERS = re.compile(r".*(_watts|_celsius|_ratio|_bytes_per_second|_used_bytes|_free_bytes)|gpu_clock_hertz|nccl_\w+")


@dataclass(frozen=True, slots=True)
class PageSeries:
    """A series of a page. ``value``: a timestamp counts from the beginning; ``slope``: growth per second; ``wavers``: noisy."""

    name: str
    labels: dict[str, str]
    job: str
    port: int
    value: float
    slope: float
    wavers: bool


@dataclass(frozen=True, slots=True)
class SeriesBlock:
    """Many series: ``label_bytes`` of each, and the components of their values."""

    labels: list[bytes]
    base: np.ndarray
    slope: np.ndarray
    noise: np.ndarray
    long: bool

    def values(self, times_s: np.ndarray, since_s: float, rng: np.random.Generator) -> np.ndarray:
        """Return the values at the given times, (series, times)."""
        grown = self.base[:, None] + self.slope[:, None] * (times_s - since_s)[None, :]
        return grown * (1 + self.noise[:, None] * rng.standard_normal(grown.shape, np.float32))


class _NodeRanks:
    """The ranks of a node, one for each GPU."""

    def __init__(self, spool: Path, *, slow: int | None) -> None:
        self._spool = spool
        self._slow = slow
        self._totals: list[Totals] = [totals_of(1) for _ in range(GPUS)]
        self._steps = 1
        spool.mkdir(parents=True)
        self.go_on(1)

    def go_on(self, steps: int) -> None:
        """Record ``steps`` more steps of one second."""
        for _ in range(steps):
            self._steps += 1
            for rank, totals in enumerate(self._totals):
                blocked = PhaseTimes(backward=1e4 if rank == self._slow else 3e5)
                step = replace(STEP, step=self._steps, start_unix_ns=time.time_ns(), blocked_us=blocked)
                totals.add_step(replace(step, profiled=self._steps % 10 == 0))
                totals.add_window(replace(WINDOW, step=self._steps))
        for rank, totals in enumerate(self._totals):
            info = replace(RANK, rank=rank, local_rank=rank, world_size=GPUS, gpu_uuid=uuid_of(rank), host="node1")
            labels = {"run": "llama", "rank": str(rank), "slot": str(rank)}
            new = self._spool / f".{rank}.new"
            new.write_text(render(labels, samples(RUN, info, totals)))
            new.replace(self._spool / f"rank-{rank}.prom")


def _collectives(slow: int | None) -> str:
    """Return NCCL Inspector's series of a node; the slow rank arrives last, so its execution time is the shortest."""
    calls = (("DP", "AllReduce", "64-65MB", 9000), ("DP", "AllGather", "8-9MB", 2500), ("DP", "ReduceScatter", "8-9MB", 2600))
    lines: list[str] = []
    for rank in range(GPUS):
        late = 0.4 if rank == slow else 1.0
        lines += [
            collective(bandwidth=80 / late, exec_us=late * exec_us, comm=comm, name=name, size=size, gpu=rank)
            for comm, name, size, exec_us in calls
        ]
        lines.append(p2p(40, 300, gpu=rank))
    return "".join(lines)


def _idle(state: State) -> State:
    """Return the state of an idle GPU without processes."""
    nothing = {"utilization": 0, "samples.1": "0,0,0", "gpm.1": 0, "gpm.2": "0", "gpm.5": "0", "gpm.10": 0}
    return {key: value for key, value in (state | nothing).items() if key not in ("process.0", "process_util.0")}


def _page(url: str) -> Page:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sample.labels.items())): (sample.value, family.type)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _lines(before: Page, after: Page, seconds: float, job: str, port: int) -> Iterator[PageSeries]:
    for (name, labels), (value, kind) in after.items():
        was = before.get((name, labels), (value, kind))[0]
        is_counter = kind in ("counter", "histogram") or name.endswith("_total")
        slope = max(0.0, value - was) / seconds if is_counter else 0.0
        wavers = not is_counter and value > 0 and _WAVERS.fullmatch(name) is not None
        is_time = name.endswith("_timestamp_seconds")
        slope = GROWTH.get(name, slope)
        yield PageSeries(name, dict(labels), job, port, 0.0 if is_time else value, slope, wavers)


def _template(library: Path, port: int, kind: str) -> list[PageSeries]:
    """Return every series of a node that is ``training``, ``troubled`` or ``idle``."""
    states = [h100_state(index) for index in range(GPUS)]
    if kind == "idle":
        states = [_idle(state) for state in states]
    if kind == "troubled":
        states[5] |= {"throttle": 0x48, "margin": 0, "field.161@0": "3 ull"}
        states[4] = _idle(states[4])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        driver = FakeDriver(folder / "driver", library, states)
        job = {"CUDA_VISIBLE_DEVICES": ",".join(uuid_of(index) for index in range(GPUS)), "SLURM_JOB_PARTITION": "gpu"}
        slurm = slurm_folder(folder / "jobs", **({} if kind == "idle" else {"job_7": job}))
        slow = SLOW_RANK if kind == "troubled" else None
        ranks = None if kind == "idle" else _NodeRanks(folder / "spool", slow=slow)
        command = [sys.executable, "-m", "rankscope", "exporter", "--listen", f"127.0.0.1:{port}", "--interval", "1s"]
        command += ["--host", "node1", "--no-xid.kernel-log", "--expected-gpus", str(GPUS)]
        command += ["--spool", str(folder / "spool"), "--state-dir", str(folder / "state"), "--jobs.slurm-dir", str(slurm)]
        command += ["--control.socket", str(folder / "control.sock")]
        process = subprocess.Popen(command, env={**os.environ, **driver.env}, stderr=subprocess.DEVNULL)
        try:
            time.sleep(6)  # until it has its first samples
            if kind == "troubled":
                driver.xid(0, 31)
                time.sleep(3)
            url = f"http://127.0.0.1:{port}/metrics"
            first = _page(url)
            if ranks is not None:
                ranks.go_on(int(BETWEEN_S))
            time.sleep(BETWEEN_S)
            second = _page(url)
        finally:
            process.terminate()
            process.wait(20)
    return [
        *_lines(first, second, BETWEEN_S, "gpus", 9838),
        *_node_exporter("" if kind == "idle" else _collectives(slow)),
    ]


def _node_exporter(collectives: str) -> Iterator[PageSeries]:
    for family in text_string_to_metric_families(NODE_EXPORTER.format(1000) + collectives):
        for sample in family.samples:
            slope = 1e9 if "port_data" in sample.name else 0.01 if "symbol_error" in sample.name else 0.0
            yield PageSeries(
                sample.name,
                dict(sample.labels),
                "node",
                9100,
                sample.value,
                slope,
                wavers=_WAVERS.fullmatch(sample.name) is not None,
            )


def _of_host(line: PageSeries, host: int, run: tuple[int, str, int, int] | None) -> dict[str, str]:
    """Return the labels of a line on a host. ``run``: number and name of its run, the first rank on the host, all ranks."""
    labels = {"__name__": line.name, "job": line.job, "instance": f"node{host:03d}:{line.port}"}
    for name, text in line.labels.items():
        value = text.replace("aaaa-bbbb-cccc", f"aaaa-{host:04x}-cccc").replace("node1", f"node{host:03d}")
        if run is not None:
            number, run_name, first, ranks = run
            if name == "run":
                value = run_name
            elif name == "run_id":
                value = f"{run_name}-20260101-7"
            elif name == "nranks" and line.labels.get("comm_name") == "DP":
                value = str(ranks)
            elif name in ("job_id", "slurm_job_id") and text:
                value = str(700 + number)
            elif name == "rank" and text.isdigit():
                value = str(first + int(text))
        labels[name] = value
    return {name: value for name, value in labels.items() if value}


def _runs_of(hosts: int) -> list[tuple[int, str, int, int] | None]:
    """Return, per host, number and name of its run, its first rank and the run's number of ranks; ``None`` for an idle host."""
    runs: list[tuple[int, str, int, int] | None] = []
    for number, (name, share) in enumerate(RUNS):
        of_run = int(share * hosts)
        runs += [(number, name, GPUS * index, GPUS * of_run) for index in range(of_run)]
    return runs + [None] * (hosts - len(runs))


def site(hosts: int, port: int, start_s: int) -> list[SeriesBlock]:
    """Return all series of ``hosts`` hosts of 8 GPUs; the last host is down. ``start_s``: time at which the series begin.

    ``port`` is for the exporter, on this machine's loopback.
    """
    library = build_library()
    templates = {kind: _template(library, port, kind) for kind in ("training", "troubled", "idle")}
    series_by_length: dict[bool, list[tuple[bytes, float, float, float]]] = {True: [], False: []}
    started_runs: set[str] = set()
    for host, run in enumerate(_runs_of(hosts)):
        alive = host < hosts - 1
        for job, listening in (("gpus", 9838), ("node", 9100)):
            labels = {"__name__": "up", "job": job, "instance": f"node{host:03d}:{listening}"}
            series_by_length[True].append((label_bytes(labels), float(alive), 0.0, 0.0))
        if not alive:
            continue
        # One host of each run is in trouble: it has a slow rank, a hot GPU, an allocated but idle GPU, and an Xid.
        kind = "idle" if run is None else "training" if run[1] in started_runs or run[2] == 0 else "troubled"
        if run is not None and kind == "troubled":
            started_runs.add(run[1])
        for line in templates[kind]:
            head = label_bytes(_of_host(line, host, run))
            is_long = KEPT_LONG.fullmatch(line.name) is not None
            value = line.value + (start_s if line.name.endswith("_timestamp_seconds") else 0)
            series_by_length[is_long].append((head, value, line.slope, NOISE if line.wavers else 0.0))
    return [
        SeriesBlock(
            [head for head, *_ in part],
            np.array([value for _, value, _, _ in part]),
            np.array([slope for *_, slope, _ in part]),
            np.array([noise for *_, noise in part]),
            is_long,
        )
        for is_long, all_of in series_by_length.items()
        for part in (all_of[begin : begin + 2000] for begin in range(0, len(all_of), 2000))
    ]


def alerts(
    names: Sequence[tuple[str, str]], hosts: int, end_s: int, past_s: int, step_s: int
) -> list[tuple[bytes, np.ndarray, float]]:
    """Return alerts that have fired for a while until now: ``label_bytes``, times in milliseconds and value of each series.

    ``names``: alerts and their severities; each fires for two hosts, which may coincide.
    """
    rng = random.Random(7)
    alert_series = []
    for number, (name, severity) in enumerate(names):
        for host in {number % hosts, rng.randrange(hosts)}:
            began = end_s - rng.randrange(step_s, past_s)
            times = np.arange(end_s - (end_s - began) // step_s * step_s, end_s + 1, step_s) * 1000
            about = {"alertname": name, "severity": severity, "host": f"node{host:03d}", "instance": f"node{host:03d}:9838"}
            about |= {"index": "0", "gpu_uuid": f"GPU-00000000-aaaa-{host:04x}-cccc-000000000000"}
            alert_series += [
                (label_bytes({"__name__": "ALERTS", "alertstate": "firing", **about}), times, 1.0),
                (label_bytes({"__name__": "ALERTS_FOR_STATE", **about}), times, float(began)),
            ]
    return alert_series

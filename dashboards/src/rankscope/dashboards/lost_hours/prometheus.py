"""GPUs that are allocated but not in use, from a Prometheus that scrapes the exporters of the nodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rankscope.alerts.prometheus import Prometheus
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.data.memo import Memo, adaptive
from rankscope.dashboards.lost_hours.data import IdleGpu

EVERY_S: Final = 300
"""Seconds between the samples from which idle hours are counted."""

_IDLE: Final = "(max by (uuid) (gpu_allocated) == 1) and on (uuid) (max by (uuid) (gpu_in_use) == 0)"
_HOLDER: Final = ("user", "account", "job_id", "namespace_k8s", "pod_k8s")
_HELD: Final = f"max by (uuid, {', '.join(_HOLDER)}) (gpu_job_info) and on (uuid) ({_IDLE})"
_HOURS: Final = f"count_over_time(({_HELD})[1d:{EVERY_S}s])"
Holder = tuple[str, ...]


def idle_gpus(prometheus: Prometheus, *, clock_ns: Callable[[], int] = time.time_ns) -> list[IdleGpu]:
    """Return GPUs that are allocated while no process has them open, sorted by uuid. Their idle hours are those of the last 24 h
    under the same holder, sampled every ``EVERY_S``. Raises ``RankscopeError``, also if Prometheus lacks the metrics.
    """
    now = clock_ns()

    def found(expression: str) -> list[dict[str, str]]:
        return [one.labels for one in prometheus.query(expression, at_unix_ns=now).series]

    for metric in ("gpu_allocated", "gpu_in_use"):
        if not found(f"count({metric})"):
            raise RankscopeError(
                f"{prometheus.name}: has no {metric} now: it scrapes no rankscope exporter that can ask Slurm or a kubelet"
            )
    idle = sorted(labels["uuid"] for labels in found(_IDLE) if labels.get("uuid"))
    if not idle:
        return []
    holders = {labels.get("uuid", ""): _holder(labels) for labels in found(_HELD)}
    hosts = {labels.get("uuid"): labels.get("host") for labels in found("max by (uuid, host) (gpu_info)")}
    wholes = {labels.get("uuid"): labels.get("parent_uuid") for labels in found("max by (uuid, parent_uuid) (gpu_mig_info)")}
    hours = _hours(prometheus, now)
    return [_idle_gpu(uuid, hosts.get(uuid) or hosts.get(wholes.get(uuid)), holders.get(uuid), hours) for uuid in idle]


class IdleNow:
    """``IdleGpus`` of a Prometheus, cached for some seconds for all viewers; its failures are cached, too."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._told = Memo(1)

    def __call__(self) -> list[IdleGpu]:
        """Return the idle GPUs; see ``idle_gpus``."""
        told = self._told.get("", "", self._ask, lifetime_s=adaptive)
        if isinstance(told, str):
            raise RankscopeError(told)
        return told

    def _ask(self) -> list[IdleGpu] | str:
        try:
            return idle_gpus(self._prometheus)
        except RankscopeError as error:
            return str(error)


def _hours(prometheus: Prometheus, now_unix_ns: int) -> dict[tuple[str, Holder], float] | None:
    """Return idle hours by GPU and holder; ``None``: the query failed, such as for taking too long."""
    try:
        series = prometheus.query(_HOURS, at_unix_ns=now_unix_ns).series
    except RankscopeError:
        return None
    return {(one.labels.get("uuid", ""), _holder(one.labels)): float(one.values[-1]) * EVERY_S / 3600 for one in series}


def _holder(labels: dict[str, str]) -> Holder:
    return tuple(labels.get(name, "") for name in _HOLDER)


def _idle_gpu(uuid: str, host: str | None, holder: Holder | None, hours: dict[tuple[str, Holder], float] | None) -> IdleGpu:
    user, account, job_id, namespace, pod = holder or ("",) * len(_HOLDER)
    return IdleGpu(
        uuid=uuid,
        host=host,
        user=user or None,
        account=account or None,
        job_id=job_id or "/".join(part for part in (namespace, pod) if part) or None,
        idle_hours=None if hours is None or holder is None else hours.get((uuid, holder), 0.0),
    )

"""The jobs collector: from what the sources know to the series of each GPU."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from rankscope.base.problems import ProblemLog
from rankscope.exporter.jobs.allocation_source import AllocationSource
from rankscope.exporter.jobs.bounded_calls import BoundedCalls
from rankscope.exporter.jobs.devices import Devices, bare_uuid, device_numbers
from rankscope.exporter.jobs.join import MULTIPLE, Claim, Occupancy, claims_of, join
from rankscope.exporter.jobs.kubelet import DEFAULT_SOCKET, Kubelet
from rankscope.exporter.jobs.names import PodName, PodNames, UserNames
from rankscope.exporter.jobs.party import Allocation, GpuUse, PartyIdentity, SchedulerDevice
from rankscope.exporter.jobs.processes import ProcessTable
from rankscope.exporter.jobs.slurm import DEFAULT_FOLDER, SlurmFolder
from rankscope.exporter.jobs.tenants import Tenant, tenants_of
from rankscope.exporter.source import FleetState, GpuState, Labels, MigDevice, Series
from rankscope.exporter.spool.reading import SpoolSample

logger = logging.getLogger(__name__)

_FORGET_JOBS_S: Final = 60.0
_DRIVER_DEADLINE_S: Final = 0.5
_USERS: Final = frozenset({"user"})
_PODS: Final = frozenset({"namespace_k8s", "pod_k8s", "container_k8s"})


class JobsCollector:
    """Collector of the jobs, pods, users and ranks on each GPU.

    Call ``read`` and ``close`` from one thread; ``job_at`` is thread-safe.

    Without ``slurm_dir`` or ``podresources_socket`` the default path is used, and need not exist. ``ranks`` returns the spool's
    last fresh sample, or None, without blocking. ``show_users`` and ``show_pods`` set to False hide these labels. ``proc`` is the
    mount point of procfs, with the kernel's processes and the driver's device files.

    Raises:
        MissingError: ``podresources_socket`` is given, but gRPC is not installed.
    """

    def __init__(
        self,
        *,
        slurm_dir: Path | None = None,
        podresources_socket: Path | None = None,
        ranks: Callable[[], SpoolSample | None] = lambda: None,
        show_users: bool = True,
        show_pods: bool = True,
        proc: Path = Path("/proc"),
        user_names: UserNames | None = None,
        pod_names: PodNames | None = None,
    ) -> None:
        slurm = SlurmFolder(slurm_dir or DEFAULT_FOLDER, explicit=slurm_dir is not None, proc=proc)
        self._kubelet = Kubelet(podresources_socket or DEFAULT_SOCKET, explicit=podresources_socket is not None)
        self._sources = (AllocationSource("slurm", slurm.read), AllocationSource("kubelet", self._kubelet.read))
        self._ranks = ranks
        self._hidden = (frozenset() if show_users else _USERS) | (frozenset() if show_pods else _PODS)
        self._show_users = show_users
        self._proc = proc
        self._processes = ProcessTable(proc)
        self._names = user_names or UserNames()
        self._pod_names = pod_names or PodNames()
        self._driver_calls = BoundedCalls(_DRIVER_DEADLINE_S)
        self._numbers: dict[str, int] = {}
        self._migs: dict[str, tuple[MigDevice, ...]] = {}
        self._jobs_at: tuple[float, dict[str, str]] = (float("-inf"), {})
        # Reported once per job: the job is missing from the page for this reason.
        self._unidentified = ProblemLog(partial(logger.warning, "%s"))

    def read(self, state: FleetState) -> tuple[Series, ...]:
        """Read the series of all GPUs. If a source fails, only what no other source reports is missing."""
        now_s = time.monotonic()
        answers = [answer for source in self._sources if (answer := source.read(now_s)) is not None]
        allocations = tuple(allocation for answer in answers for allocation in answer)
        # A GPU without a known holder counts as free only if every scheduler of the node answered.
        complete = bool(answers) and all(source.is_valid is not False for source in self._sources)
        uses = self._read_uses(state)
        claims = claims_of(self._ranks())
        devices = self._devices(state)
        node = _Node(state, devices, allocations, uses, claims, complete=complete, hidden=self._hidden)
        self._unidentified.replace(
            {device_key: _unidentified_text(*device_key) for device_key in sorted(node.unidentified, key=str)}
        )
        names = self._names.names(node.uids()) if self._show_users else {}
        jobs_at: dict[str, str] = {}
        series: list[Series] = []
        for uuid, occupancy, tenants, allocated, in_use in node.occupancies(names):
            job_id = dict(occupancy.labels).get("job_id")
            if job_id is not None:
                for device in {uuid, node.parent_of(uuid)}:
                    jobs_at[device] = job_id if jobs_at.get(device, job_id) == job_id else MULTIPLE
            series += self._series(uuid, occupancy, allocated, in_use)
            series += _series_of_tenants(uuid, tenants)
        self._jobs_at = (now_s, jobs_at)
        series += [
            Series("rankscope_exporter_jobs_source_ok", float(source.ok), (("source", source.name),))
            for source in self._sources
            if source.ok is not None
        ]
        return tuple(series)

    def job_at(self, gpu_uuid: str) -> str | None:
        """Return the job id on a GPU or MIG device in the last pass, ``multiple`` for several jobs.

        None if the job is unknown, or the last pass is more than 60 s ago.
        """
        at_s, jobs = self._jobs_at
        return jobs.get(gpu_uuid) if time.monotonic() - at_s <= _FORGET_JOBS_S else None

    def close(self) -> None:
        """Close the connection to the kubelet."""
        self._kubelet.close()

    def _series(self, uuid: str, occupancy: Occupancy, allocated: bool | None, in_use: bool | None) -> Iterator[Series]:
        of_gpu: Labels = (("uuid", uuid),)
        if occupancy.parties:
            shown = tuple((name, value) for name, value in occupancy.labels if name not in self._hidden)
            yield Series("gpu_job_info", 1, (*of_gpu, *shown))
        if allocated is not None:
            yield Series("gpu_allocated", float(allocated), of_gpu)
        if in_use is not None:
            yield Series("gpu_in_use", float(in_use), of_gpu)
        # Without a known party the count is 0 only if no process has the device open; otherwise it is unknown.
        if occupancy.parties or in_use is False:
            yield Series("gpu_jobs", occupancy.parties, of_gpu)

    def _read_uses(self, state: FleetState) -> dict[int, GpuUse]:
        if not self._processes.sees_all():
            return {}
        listed: dict[int, float] = {}
        for sample in (gpu.sample for gpu in state.gpus if gpu.sample is not None):
            listed_s = sample.monotonic_s if sample.processes_s is None else sample.processes_s
            for process in sample.processes or ():
                listed[process.pid] = max(listed_s, listed.get(process.pid, listed_s))
        uses = self._processes.read(listed)
        pods = self._pod_names.names({use.pod_uid for use in uses.values() if use.pod_uid is not None})
        return {pid: _with_pod_name(use, pods) for pid, use in uses.items()}

    def _devices(self, state: FleetState) -> Devices:
        """Return the node's devices. A GPU that does not answer keeps its last known MIG devices, which jobs still hold."""
        migs_of_sampled = {gpu.identity.uuid: gpu.sample.mig_devices for gpu in state.gpus if gpu.sample is not None}
        present = {gpu.identity.uuid for gpu in state.gpus}
        self._migs = {uuid: migs for uuid, migs in {**self._migs, **migs_of_sampled}.items() if uuid in present}
        # In every pass: a driver that is loaded again may number its GPUs differently.
        with contextlib.suppress(TimeoutError):
            listed = self._driver_calls.call(lambda: device_numbers(self._proc))
            # A GPU that the driver lists no more keeps its number, which its job still holds, until another GPU has it.
            taken_numbers = set(listed.values())
            self._numbers = {bus_id: number for bus_id, number in self._numbers.items() if number not in taken_numbers} | listed
        return Devices(state.gpus, self._migs, self._numbers)


def _unidentified_text(party: str, device: SchedulerDevice) -> str:
    device_name = device.uuid or ("without a name" if device.number is None else f"number {device.number}")
    return f"{party} holds a GPU that cannot be identified: {device_name}"


def _with_pod_name(use: GpuUse, pods: dict[str, PodName]) -> GpuUse:
    if use.pod_uid not in pods:
        return use
    namespace, pod = pods[use.pod_uid]
    return msgspec.structs.replace(use, namespace=namespace, pod=pod)


def _series_of_tenants(uuid: str, tenants: list[Tenant]) -> Iterator[Series]:
    for tenant in tenants:
        labels: Labels = (("uuid", uuid), *tenant.labels)
        yield Series("gpu_tenant_info", 1, labels)
        if tenant.memory_bytes is not None:
            yield Series("gpu_tenant_memory_used_bytes", tenant.memory_bytes, labels)
        if tenant.sm_ratio is not None:
            yield Series("gpu_tenant_sm_utilization_ratio", tenant.sm_ratio, labels)


_DeviceOccupancy = tuple[str, Occupancy, list[Tenant], bool | None, bool | None]
"""Uuid, occupancy, tenants, allocated and in use of a device."""


class _Node:
    """Data of one pass, grouped by device."""

    def __init__(
        self,
        state: FleetState,
        devices: Devices,
        allocations: tuple[Allocation, ...],
        uses: dict[int, GpuUse],
        claims: dict[str, list[Claim]],
        *,
        complete: bool,
        hidden: frozenset[str],
    ) -> None:
        self._gpus = state.gpus
        self._migs = devices.migs
        job_of_sluid = {
            allocation.identity.sluid: allocation.identity.job_id
            for allocation in allocations
            if allocation.identity.sluid is not None
        }
        self._uses = {
            pid: msgspec.structs.replace(use, job_id=job_of_sluid[use.sluid]) if use.sluid in job_of_sluid else use
            for pid, use in uses.items()
        }
        self._claims = claims
        self._hidden = hidden
        self._parents = {mig.uuid: uuid for uuid, migs in devices.migs.items() for mig in migs}
        self._jobs = {
            allocation.identity.job_id: allocation.identity
            for allocation in allocations
            if allocation.identity.job_id is not None
        }
        self._holders: dict[str, list[PartyIdentity]] = {}
        self.unidentified: set[tuple[str, SchedulerDevice]] = set()
        for allocation in allocations:
            uuids = {device: devices.uuid_of(device) for device in allocation.devices}
            self.unidentified |= {(allocation.identity.party, device) for device, uuid in uuids.items() if uuid is None}
            for uuid in {uuid for uuid in uuids.values() if uuid is not None}:
                self._holders.setdefault(uuid, []).append(allocation.identity)
        # A held device that cannot be identified may be any device of the node, so no device is known to be free.
        self._complete = complete and not self.unidentified

    def uids(self) -> set[int]:
        claimed = {claim.uid for claims in self._claims.values() for claim in claims}
        return claimed | {use.uid for use in self._uses.values()}

    def parent_of(self, uuid: str) -> str:
        return self._parents.get(uuid, uuid)

    def occupancies(self, names: dict[int, str]) -> Iterator[_DeviceOccupancy]:
        """Yield the occupancy of each device; each uuid once, even if two GPUs report the same."""
        for gpu in {gpu.identity.uuid: gpu for gpu in self._gpus}.values():
            migs = self._migs.get(gpu.identity.uuid, ())
            whole_gpu_holders = self._holders.get(gpu.identity.uuid, [])
            if not migs or whole_gpu_holders:
                yield self._occupancy(gpu, None, whole_gpu_holders, names)
            for mig in migs:
                # The holder of the whole GPU holds its MIG devices, unless they are allocated separately.
                yield self._occupancy(gpu, mig.uuid, self._holders.get(mig.uuid) or whole_gpu_holders, names)

    def _occupancy(self, gpu: GpuState, mig: str | None, holders: list[PartyIdentity], names: dict[int, str]) -> _DeviceOccupancy:
        processes = gpu.sample.processes if gpu.sample is not None else None
        own = None if processes is None else [process for process in processes if mig is None or process.uuid == mig]
        pids = None if own is None else {process.pid for process in own}
        uuid = mig or gpu.identity.uuid
        # Without a holder or a process on the device, a rank that claims it is out of date.
        claims = [] if pids == set() and not holders else self._claims.get(bare_uuid(uuid), [])
        occupancy = join(
            holders,
            [self._uses[pid] for pid in sorted(pids or ()) if pid in self._uses],
            jobs=self._jobs,
            claims=claims,
            names=names,
        )
        # The only party of a device has all of it: series of the device itself say how much that is.
        tenants: list[Tenant] = []
        if occupancy.parties > 1:
            tenants = tenants_of(
                holders, own, self._uses, jobs=self._jobs, names=names, hidden=self._hidden, is_mig=mig is not None
            )
        allocated = True if holders else (False if self._complete else None)
        return uuid, occupancy, tenants, allocated, bool(pids) if pids is not None else None

"""Identity of this process: rank, host, device, versions. Determined once, at the first step."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist

from rankscope.base.launchers import place_in_job
from rankscope.base.process import boot_id
from rankscope.profiler.handover import Handover
from rankscope.profiler.rank.gpu.device import used_gpus
from rankscope.profiler.rank.layout import find_layout, find_pipeline
from rankscope.profiler.rank.wrappers.worker_count import worker_count
from rankscope.profiler.settings import PREFIX, RecorderSettings, as_recorded
from rankscope.profiler.starts import process_start_unix_ns, start_key
from rankscope.profiler.trackers import tracker_urls
from rankscope.runs.records import AttemptInfo, DeviceKind, RankInfo, RunInfo

_TYPICAL_RANKS: Final = 8
_START_KEY: Final = "rankscope/start"

_start_id: str | None = None
"""Id of this start of the job, which all ranks of the default process group share."""


def note_process_group() -> None:
    """Agree with the other ranks on an id of this start, right after the default process group was initialised. Never raises.

    The first rank puts an id into the group's store, which is new for each start. Only the store that an elastic agent lends to
    its workers outlives their restarts (seen in torch 2.13), so it cannot tell one start from the next.
    """
    global _start_id  # noqa: PLW0603  # a process has one default group
    _start_id = None
    with suppress(Exception):  # the MPI backend has no store, and some stores cannot compare
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  # not public
        if not _is_of_agent(store):
            _start_id = store.compare_set(_START_KEY, "", secrets.token_hex(8)).decode()


def _is_of_agent(store: Any) -> bool:
    """Return whether ``store`` is the one that the elastic agent lends to its workers."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    lent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return lent and str(getattr(store, "port", "")) == os.environ.get("MASTER_PORT", "")


def has_other_place(handover: Handover) -> bool:
    """Return whether the process group that was just initialised gives this process another place than ``handover`` says.

    A process that has restarted in itself has destroyed the group of ``handover``, and has initialised another.
    """
    place = (dist.get_rank(), dist.get_world_size())
    return handover.attempt.backend is not None or place != (handover.rank.rank, handover.rank.world_size)


def own_rank() -> int:
    """Return the rank of this process: that of its process group, else as its launcher says, else 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return place_in_job(os.environ).rank or 0


def identify(settings: RecorderSettings, parameters: Collection[torch.device] = (), *, optimizer: object = None) -> Handover:
    """Return the description of this process for the helper. ``parameters``: devices of its parameters, as far as known.

    The run id and start of the settings are used only if this rank creates the run.
    """
    initialised = dist.is_available() and dist.is_initialized()
    place = place_in_job(os.environ)
    rank = own_rank()
    world_size = dist.get_world_size() if initialised else place.world_size or 1
    backend = str(dist.get_backend()) if initialised else None
    attempt = settings.elastic_attempt(os.environ)
    kind, gpus = _devices(parameters)
    uuids = [uuid for gpu in gpus if (uuid := _uuid(gpu)) is not None]
    # A script that learns its place only after setting up its groups may still set the variable in its own environment.
    layout = find_layout(settings.coordinates or os.environ.get(PREFIX + "COORDINATES"))
    started = time.time_ns()
    return Handover(
        # Only free text may contain bytes that are not UTF-8; the launcher checks folders.
        settings=msgspec.structs.replace(
            settings, run_id=as_recorded(settings.run_id), name=as_recorded(settings.name), launcher=None
        ),
        run=RunInfo(
            run_id=as_recorded(settings.run_id),
            name=as_recorded(settings.name),
            start_unix_ns=settings.start_unix_ns,
            launcher=None if settings.launcher is None else as_recorded(settings.launcher),
            price_per_gpu_hour=settings.price_per_gpu_hour,
            currency=settings.currency,
            simulated=settings.simulated,
            trackers=_trackers(),
        ),
        attempt=AttemptInfo(
            attempt=attempt,
            start_unix_ns=started,
            world_size=world_size,
            backend=backend,
            versions=_versions(),
            start_key=start_key(os.environ),
            start_id=_start_id if initialised else None,
            layout=layout.sizes,
            pipeline=find_pipeline(),
        ),
        rank=RankInfo(
            rank=rank,
            world_size=world_size,
            host=socket.gethostname(),
            boot_id=boot_id() or None,
            pid=os.getpid(),
            attempt=attempt,
            local_rank=place.local_rank,
            device_kind=kind,
            gpu_uuid=_uuid(gpus[0]) if gpus else None,
            gpu_name=gpus[0].name if gpus else None,
            gpu_uuids=uuids if len(gpus) > 1 else [],
            coordinates=layout.coordinates,
            process_group=initialised,
            shared_parameters=_are_shared(optimizer),
            start_unix_ns=started,
            budget=settings.budget,
            loader_workers=worker_count(),
        ),
        process_unix_ns=process_start_unix_ns(),
        thread=threading.get_ident(),
    )


def ranks_on_host(world_size: int) -> int:
    """Return the number of ranks on this host, as the launcher says or else an estimate that is typical of GPU hosts."""
    local_size = _integer("LOCAL_WORLD_SIZE") or _integer("OMPI_COMM_WORLD_LOCAL_SIZE")
    if not local_size and (nodes := _integer("SLURM_STEP_NUM_NODES")) and (tasks := _integer("SLURM_STEP_NUM_TASKS")):
        local_size = -(-tasks // nodes)
    return local_size or min(world_size, _TYPICAL_RANKS)


def _integer(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _devices(parameters: Collection[torch.device]) -> tuple[DeviceKind, list[Any]]:
    """Return the kind of device that this process trains on, and the properties of its GPUs, that of its parameters first."""
    # A query would create a context in an uninitialised CUDA: query only if the script has used it.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gpus = used_gpus(parameters) or ([] if parameters else [torch.cuda.current_device()])
        if gpus:
            return "rocm" if torch.version.hip else "cuda", [torch.cuda.get_device_properties(gpu) for gpu in gpus]
    types = {device.type for device in parameters} - {"cpu", "meta"}
    return "xpu" if "xpu" in types else "other" if types else "cpu", []


def _are_shared(optimizer: Any) -> bool:
    """Return whether the parameters of an optimizer are in memory that processes share, as Hogwild trains; on the CPU only."""
    with suppress(Exception):
        parameter = optimizer.param_groups[0]["params"][0]
        return parameter.device.type == "cpu" and bool(parameter.is_shared())
    return False


def _uuid(properties: Any) -> str | None:
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    with suppress(PackageNotFoundError):
        versions["rankscope"] = version("rankscope")
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions


def _trackers() -> dict[str, str]:
    with suppress(Exception):
        return {name: as_recorded(url) for name, url in tracker_urls(os.environ).items()}
    return {}

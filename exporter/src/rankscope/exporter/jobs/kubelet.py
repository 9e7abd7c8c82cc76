"""The pods of this node and their GPUs, from the kubelet's PodResources service on its Unix socket."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankscope.base.errors import MissingError
from rankscope.exporter.jobs.environment import word
from rankscope.exporter.jobs.party import Allocation, PartyIdentity, SchedulerDevice

if TYPE_CHECKING:
    import grpc

DEFAULT_SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

_SERVICE: Final = "/v1.PodResourcesLister/"
_TIMEOUT_S: Final = 0.8
_MAX_BYTES: Final = 16 * 1024 * 1024
_GPUS: Final = re.compile(r"nvidia\.com/(?:gpu|mig-).*")
_DRA_DRIVER: Final = "gpu.nvidia.com"
_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f])", re.IGNORECASE)
_MIG_OLD: Final = re.compile(r"MIG-(GPU-[0-9a-f-]{36})/([0-9]{1,3})/([0-9]{1,3})")
_DEVICE_FILE: Final = re.compile(r"nvidia([0-9]{1,3})(?:/gi([0-9]{1,3}))?(?:/vgpu[0-9]{1,3})?")
_DRA_DEVICE: Final = re.compile(r"gpu-([0-9]{1,3})")


class KubeletError(Exception):
    """The kubelet cannot be queried; the message says why, and ``reason`` is gRPC's status code in lower case, or empty."""

    def __init__(self, text: str, reason: str = "") -> None:
        self.reason = reason
        super().__init__(text)


class Kubelet:
    """Client of the kubelet, which connects on demand and again after the kubelet restarted.

    Raises:
        MissingError: ``explicit`` is set, but gRPC is not installed.
    """

    def __init__(self, socket: Path = DEFAULT_SOCKET, *, explicit: bool) -> None:
        self._socket = socket
        self._explicit = explicit
        self._channel: grpc.Channel | None = None
        self._has_gpus = False
        self._installed = _is_installed("grpc") and _is_installed("google.protobuf")
        if explicit and not self._installed:
            raise MissingError("--jobs.podresources-socket needs grpcio and protobuf: pip install 'rankscope[kubernetes]'")

    def read(self) -> tuple[Allocation, ...] | None:
        """Return each container that has GPUs; None if no kubelet allocates GPUs here, or gRPC is not installed.

        Raises:
            KubeletError: the kubelet does not answer, or its answer is invalid.
        """
        if not self._installed:
            return None
        try:
            if not stat.S_ISSOCK(self._socket.stat().st_mode):
                raise KubeletError(f"{self._socket} is not a socket")
        except FileNotFoundError as error:
            self.close()
            if self._explicit:
                raise KubeletError(f"{self._socket}: no such socket") from error
            return None
        except OSError as error:
            raise KubeletError(f"{self._socket}: {error.strerror}") from error
        try:
            allocations = tuple(_allocations(self._call("List")))
            return allocations if allocations or self._allocates_gpus() else None
        except Exception:
            # A new connection reaches a restarted kubelet at once; the old channel would back off.
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._channel is not None:
            self._channel.close()
            self._channel, self._has_gpus = None, False

    def _allocates_gpus(self) -> bool:
        """Return whether a device plugin registered GPUs.

        True for a kubelet too old for ``GetAllocatableResources``: its empty list then means that no pod holds a GPU.
        """
        if not self._has_gpus:
            try:
                answer = self._call("GetAllocatableResources")
                self._has_gpus = any(_devices_of(resource) for resource in answer.devices)
            except KubeletError as error:
                if error.reason != "unimplemented":
                    raise
                self._has_gpus = True
        return self._has_gpus

    def _call(self, method: str) -> Any:
        import grpc
        from google.protobuf.message import DecodeError

        from rankscope.exporter.jobs.podresources import messages

        request, response = messages(method)
        if self._channel is None:
            options = [
                ("grpc.max_receive_message_length", _MAX_BYTES),
                ("grpc.enable_http_proxy", 0),
                ("grpc.default_authority", "localhost"),
            ]
            self._channel = grpc.insecure_channel(f"unix://{self._socket.absolute()}", options=options)
        call = self._channel.unary_unary(
            f"{_SERVICE}{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=bytes,  # decoded below: gRPC would log a traceback for each invalid answer
        )
        try:
            return response.FromString(call(request(), timeout=_TIMEOUT_S))
        except DecodeError as error:
            raise KubeletError(f"{self._socket}: what answers is not a kubelet") from error
        except grpc.RpcError as error:
            code = getattr(error, "code", None)
            reason = code().name.lower() if code is not None else type(error).__name__
            raise KubeletError(f"{self._socket}: {reason}", reason) from error


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _allocations(response: Any) -> Iterator[Allocation]:
    for pod in response.pod_resources:
        for container in pod.containers:
            allocated_devices = [device for resource in container.devices for device in _devices_of(resource)]
            devices = tuple(dict.fromkeys([*allocated_devices, *_claimed_devices(container)]))
            if devices:
                identity = PartyIdentity(namespace=word(pod.namespace), pod=word(pod.name), container=word(container.name))
                yield Allocation(identity, devices)


def _devices_of(resource: Any) -> list[SchedulerDevice]:
    """Return the devices of a device plugin, also of other vendors' plugins that use uuids.

    The id of a time-slicing or MPS replica ends in ``::N``.
    """
    devices = []
    for device_id in resource.device_ids:
        if old := _MIG_OLD.match(device_id):
            devices.append(SchedulerDevice(uuid=old[1], gpu_instance=int(old[2]), compute_instance=int(old[3])))
        elif uuid := _UUID.match(device_id):
            devices.append(SchedulerDevice(uuid=uuid[1]))
        elif _GPUS.fullmatch(resource.resource_name):
            file = _DEVICE_FILE.fullmatch(device_id.split("::", 1)[0])
            devices.append(
                SchedulerDevice(number=int(file[1]), gpu_instance=int(file[2]) if file[2] else None)
                if file
                else SchedulerDevice()
            )
    return devices


def _claimed_devices(container: Any) -> Iterator[SchedulerDevice]:
    """Yield the devices of dynamic resource allocation (DRA): by a uuid in one of the names, or by device minor number."""
    for claim in container.dynamic_resources:
        for resource in claim.claim_resources:
            names = [resource.device_name, *(device.name for device in resource.cdi_devices)]
            uuids = [uuid[1] for name in names if (uuid := _UUID.search(name))]
            if uuids:
                yield from (SchedulerDevice(uuid=uuid) for uuid in uuids)
            elif resource.driver_name == _DRA_DRIVER:
                # The name of a MIG device holds its placement on the GPU, which no uuid can be found by.
                number = _DRA_DEVICE.fullmatch(resource.device_name)
                yield SchedulerDevice(number=int(number[1])) if number else SchedulerDevice()

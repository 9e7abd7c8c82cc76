"""A kubelet's PodResources service on a Unix socket, as a process: ``python fake_kubelet.py SOCKET STATE``.

``STATE`` is JSON, read again at each call: ``pods`` ([namespace, pod, {container: {resource: [device ids]}}]), ``claims``
([namespace, pod, container, driver, device name, CDI name]), ``allocatable`` ({resource: [device ids]}, null for a kubelet
without that call), and ``how``: ``well``, ``hang``, ``garbage``, ``refuse``.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

GARBAGE = b"\x0a\xff\xff\xff\xff\x0fnonsense"


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field of a message, by hand: the code under test must not encode its own input."""
    length, encoded = len(content), b""
    while length >= 0x80:
        encoded += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + content


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _devices(resources: dict[str, list[str]]) -> list[bytes]:
    topology = _field(3, b"\x0a\x02\x08\x01")
    return [
        _text(1, resource) + b"".join(_text(2, device) for device in devices) + topology
        for resource, devices in resources.items()
    ]


def _listed(state: dict[str, Any]) -> bytes:
    cpus = _field(3, b"\x00\x01")
    pods = b""
    for namespace, pod, containers in state.get("pods", []):
        inside = b"".join(
            _field(3, _text(1, container) + b"".join(_field(2, item) for item in _devices(resources)) + cpus)
            for container, resources in containers.items()
        )
        pods += _field(1, _text(1, pod) + _text(2, namespace) + inside)
    for namespace, pod, container, driver, device, cdi in state.get("claims", []):
        resource = _field(1, _text(1, cdi)) + _text(2, driver) + _text(3, "node1") + _text(4, device)
        claim = _text(2, "claim") + _text(3, namespace) + _field(4, resource)
        pods += _field(1, _text(1, pod) + _text(2, namespace) + _field(3, _text(1, container) + _field(5, claim)))
    return pods


class Service:
    def __init__(self, state: Path) -> None:
        self._state = state

    def handler(self) -> Any:
        methods = {"List": self._list, "GetAllocatableResources": self._allocatable}
        handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
        return grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)

    def _list(self, _request: bytes, context: Any) -> bytes:
        state = self._now(context)
        return GARBAGE if state.get("how") == "garbage" else _listed(state)

    def _allocatable(self, _request: bytes, context: Any) -> bytes:
        state = self._now(context)
        if state["allocatable"] is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
        return b"".join(_field(1, device) for device in _devices(state["allocatable"]))

    def _now(self, context: Any) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self._state.read_text())
        if state.get("how") == "hang":
            time.sleep(3600)
        if state.get("how") == "refuse":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return state


def main() -> None:
    socket, state = sys.argv[1:]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((Service(Path(state)).handler(),))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()

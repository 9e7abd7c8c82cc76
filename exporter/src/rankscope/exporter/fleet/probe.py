"""A short-lived process that queries the driver as a whole: versions, number of GPUs, and, if needed, their PCI bus ids."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from rankscope.exporter.fleet.call_board import CallBoard
from rankscope.exporter.fleet.pci import bus_id
from rankscope.exporter.fleet.wire import Done, DriverFound, Failed, Listed, send_frame
from rankscope.exporter.source import Driver


def probe(connection: socket.socket, board: CallBoard, nvml: Any, *, list_unless: int, skip: frozenset[int]) -> None:
    """Send ``DriverFound``, one ``Listed`` per GPU, and ``Done``; or ``Failed``.

    GPUs are listed unless their number is ``list_unless``; indexes in ``skip`` are left out.
    """
    with contextlib.suppress(ConnectionError):
        try:
            count = _driver(connection, board, nvml)
            if count != list_unless:
                for index in range(count):
                    if index not in skip:
                        _list(connection, board, nvml, index)
            board.mark("")
            send_frame(connection, Done())
        except nvml.NVMLError as error:
            call = board.call()
            board.mark("")
            send_frame(connection, _failed(nvml, error, call))


def _driver(connection: socket.socket, board: CallBoard, nvml: Any) -> int:
    board.mark("nvmlInit")
    nvml.nvmlInit()
    found = Driver(
        driver_version=_version(board, nvml, "nvmlSystemGetDriverVersion"),
        nvml_version=_version(board, nvml, "nvmlSystemGetNVMLVersion"),
        cuda_version=_cuda(_version(board, nvml, "nvmlSystemGetCudaDriverVersion")),
    )
    board.mark("nvmlDeviceGetCount")
    count: int = nvml.nvmlDeviceGetCount()
    send_frame(connection, DriverFound(found, count))
    return count


def _version(board: CallBoard, nvml: Any, name: str) -> str:
    board.mark(name)
    call: Callable[[], Any] = getattr(nvml, name)
    try:
        return str(call())
    except nvml.NVMLError:
        return ""


def _cuda(number: str) -> str:
    """Convert the driver's version number to text: ``12040`` is 12.4."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number.isdecimal() else ""


def _list(connection: socket.socket, board: CallBoard, nvml: Any, index: int) -> None:
    try:
        board.mark(f"nvmlDeviceGetHandleByIndex({index})")
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        board.mark(f"nvmlDeviceGetPciInfo({index})")
        address = nvml.nvmlDeviceGetPciInfo(handle).busId
    except nvml.NVMLError:
        address = ""
    send_frame(connection, Listed(index, bus_id(address.decode() if isinstance(address, bytes) else address)))


def _failed(nvml: Any, error: Any, call: str) -> Failed:
    names = {value: name for name, value in vars(nvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)}
    name = names.get(error.value, f"NVML_ERROR_{error.value}").removeprefix("NVML_ERROR_").lower()
    absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
    return Failed("no_driver" if error.value in absent else "nvml_error", f"NVML: {name} in {call}", error.value)

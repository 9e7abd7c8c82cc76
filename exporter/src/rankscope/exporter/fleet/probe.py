"""A short-lived process that queries the driver as a whole: versions, number of GPUs, and, if needed, their PCI bus ids."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final

from rankscope.exporter.fleet.call_board import CallBoard
from rankscope.exporter.fleet.pci import bus_id, is_address
from rankscope.exporter.fleet.wire import Done, DriverFound, Failed, Listed, send_frame
from rankscope.exporter.source import Driver

_MAX_GPUS: Final = 1024
"""A larger count cannot be a reading: drivers, and a bus that does not answer, return a number with all bits set."""
_LATEST_CUDA: Final = 100_000


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
            message: Done | Failed = Done()
        except nvml.NVMLError as error:
            message = _failed(nvml, error, board.call())
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  an answer that is no text, for example
            message = Failed("nvml_error", f"NVML: {type(error).__name__} in {board.call()}: {error}")
        board.mark("")
        send_frame(connection, message)


def _driver(connection: socket.socket, board: CallBoard, nvml: Any) -> int:
    board.mark("nvmlInit")
    nvml.nvmlInit()
    driver = Driver(
        driver_version=_version(board, nvml, "nvmlSystemGetDriverVersion"),
        nvml_version=_version(board, nvml, "nvmlSystemGetNVMLVersion"),
        cuda_version=_cuda(_version(board, nvml, "nvmlSystemGetCudaDriverVersion")),
    )
    board.mark("nvmlDeviceGetCount")
    count: int = nvml.nvmlDeviceGetCount()
    if count > _MAX_GPUS:
        raise ValueError(f"{count} GPUs cannot be")
    send_frame(connection, DriverFound(driver, count))
    return count


def _version(board: CallBoard, nvml: Any, name: str) -> str:
    """Return a version, or an empty text if it cannot be read."""
    board.mark(name)
    call: Callable[[], Any] = getattr(nvml, name)
    try:
        text = str(call())
    except (nvml.NVMLError, UnicodeDecodeError):
        return ""
    return text if text.isprintable() else ""


def _cuda(number: str) -> str:
    """Convert the driver's version number to text: ``12040`` is 12.4."""
    is_version = number.isdecimal() and int(number) < _LATEST_CUDA
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if is_version else ""


def _list(connection: socket.socket, board: CallBoard, nvml: Any, index: int) -> None:
    """Send the GPU at this index; without an address if it has none or an impossible one."""
    try:
        board.mark(f"nvmlDeviceGetHandleByIndex({index})")
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        board.mark(f"nvmlDeviceGetPciInfo({index})")
        address = nvml.nvmlDeviceGetPciInfo(handle).busId
        text = address.decode() if isinstance(address, bytes) else address
    except (nvml.NVMLError, UnicodeDecodeError):
        text = ""
    send_frame(connection, Listed(index, bus_id(text) if is_address(text) else ""))


def _failed(nvml: Any, error: Any, call: str) -> Failed:
    names = {value: name for name, value in vars(nvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)}
    name = names.get(error.value, f"NVML_ERROR_{error.value}").removeprefix("NVML_ERROR_").lower()
    absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
    return Failed("no_driver" if error.value in absent else "nvml_error", f"NVML: {name} in {call}", error.value)

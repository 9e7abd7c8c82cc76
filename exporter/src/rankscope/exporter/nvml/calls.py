"""NVML calls of one GPU: announces each call before it is made, and separates fatal errors from those of a single metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rankscope.exporter.source import DownReason, SourceError

# Return codes that mean a fault, as opposed to a metric that this GPU does not have.
_TROUBLE: Final = frozenset({
    "unknown", "timeout", "irq_issue", "memory", "operating_system", "in_use", "invalid_state", "insufficient_power",
    "insufficient_resources", "insufficient_size", "corrupted_inforom", "unreadable",
})  # fmt: skip

_LASTING: Final = frozenset({"not_supported", "function_not_found", "invalid_argument"})

_DOWN: Final[dict[str, DownReason]] = {
    "gpu_is_lost": "lost",
    "reset_required": "lost",
    "gpu_not_found": "missing",
    "uninitialized": "no_driver",
    "driver_not_loaded": "no_driver",
    "library_not_found": "no_driver",
    "lib_rm_version_mismatch": "no_driver",
}


class NvmlCalls:
    """NVML calls by name. ``mark`` receives the name of each call just before it is made; ``handle`` is the GPU's NVML handle.

    A call raises ``NVMLError`` if only this value is unavailable, ``SourceError`` if the GPU or the driver is lost.
    """

    def __init__(self, binding: Any, mark: Callable[[str], None]) -> None:
        self.binding = binding
        self.handle: Any = None
        self._mark = mark
        self._names: dict[int, str] = {
            value: name.removeprefix("NVML_ERROR_").lower()
            for name, value in vars(binding).items()
            if name.startswith("NVML_ERROR_") and isinstance(value, int)
        }

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a function of the Python binding and return its result."""
        self._mark(name)
        try:
            return getattr(self.binding, name)(*args, **options)
        except self.binding.NVMLError as error:
            down = _DOWN.get(self.reason(error))
            if down is not None:
                raise SourceError(down, f"{name}: {error} ({self.reason(error)})") from error
            raise

    def call(self, name: str, *args: Any) -> int:
        """Call a function of the C library directly and return its return code.

        The wrappers of nvidia-ml-py take several times as long as the function itself, too long for a call every second.
        """
        self._mark(name)
        try:
            code: int = getattr(self.binding.nvmlLib, name)(*args)
        except AttributeError:
            code = self.binding.NVML_ERROR_FUNCTION_NOT_FOUND
        if code:
            self.check(code, name)
        return code

    def reason(self, error: Any) -> str:
        """Return an NVML error as a label value: its name in lower case."""
        return self.reason_of(error.value)

    def reason_of(self, code: int) -> str:
        """Return an NVML return code as a label value: its name in lower case."""
        return self._names.get(code, f"error_{code}")

    def check(self, code: int, where: str) -> None:
        """Raise ``SourceError`` if a return code means that the GPU or the driver is lost."""
        down = _DOWN.get(self.reason_of(code)) if code else None
        if down is not None:
            raise SourceError(down, f"{where}: {self.reason_of(code)}")


def is_lasting(reason: str) -> bool:
    """Return True if the reason is permanent: this driver or this board lacks the metric."""
    return reason in _LASTING


def is_trouble(reason: str) -> bool:
    """Return True if the reason is a fault of the driver or the GPU."""
    return reason in _TROUBLE or reason.startswith("error_")

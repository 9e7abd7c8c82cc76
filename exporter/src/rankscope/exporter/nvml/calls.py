"""NVML calls of one GPU: announces each call before it is made, and separates fatal errors from those of a single metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import nan
from typing import Any, Final

from rankscope.exporter.source import DEFECT, DownReason, SourceError

# Return codes that mean a fault, as opposed to a metric that this GPU does not have.
_FAULT_REASONS: Final = frozenset({
    "unknown", "timeout", "irq_issue", "memory", "operating_system", "in_use", "invalid_state", "insufficient_power",
    "insufficient_resources", "insufficient_size", "corrupted_inforom", "unreadable", DEFECT,
})  # fmt: skip

_LASTING: Final = frozenset({"not_supported", "function_not_found", "invalid_argument"})

_DOWN: Final[dict[str, DownReason]] = {
    "gpu_is_lost": "lost",
    "reset_required": "lost",
    "gpu_not_found": "missing",
    "uninitialized": "no_driver",
    "driver_not_loaded": "no_driver",
    "library_not_found": "no_driver",
    "lib_rm_version_mismatch": "library_mismatch",
}

IMPLAUSIBLE: Final = "implausible"
"""Reason for a number that cannot be a reading."""
_IMPLAUSIBLE_CODE: Final = -1
# As numbers of 32 and 64 bits, with and without sign.
_ALL_ONES: Final = frozenset({-1, 2**32 - 1, 2**64 - 1})


def is_all_ones(number: float) -> bool:
    """Return True if all bits of a number are set: drivers, and a bus that does not answer, return it for unknown values."""
    return number in _ALL_ONES


def nan_if_all_ones(number: float) -> float:
    """Return the number, or NaN, which no pass publishes (``SamplePass.emit``), if all its bits are set."""
    return nan if number in _ALL_ONES else number


def without_all_ones(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Return the numbers, with NaN for those with all bits set."""
    return numbers if _ALL_ONES.isdisjoint(numbers) else tuple(map(nan_if_all_ones, numbers))


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
        } | {_IMPLAUSIBLE_CODE: IMPLAUSIBLE}

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a function of the Python binding and return its result.

        A number with all bits set is an error with the reason ``implausible``.
        """
        self._mark(name)
        try:
            result = getattr(self.binding, name)(*args, **options)
        except self.binding.NVMLError as error:
            down = _DOWN.get(self.reason(error))
            if down is not None:
                raise SourceError(down, f"{name}: {error} ({self.reason(error)})") from error
            raise
        self.check_numbers(result if isinstance(result, list) else (result,))
        return result

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

    def check_numbers(self, values: Iterable[Any]) -> None:
        """Raise an error with the reason ``implausible`` if a number among the values has all bits set."""
        if any(isinstance(value, int) and is_all_ones(value) for value in values):
            raise self.binding.NVMLError(_IMPLAUSIBLE_CODE)

    def check_count(self, count: int, at_most: int) -> int:
        """Return the count; raise an error with the reason ``implausible`` if it is larger than there can be."""
        if count > at_most:
            raise self.binding.NVMLError(_IMPLAUSIBLE_CODE)
        return count

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


def is_fault(reason: str) -> bool:
    """Return True if the reason is a fault of the driver or the GPU."""
    return reason in _FAULT_REASONS or reason.startswith("error_")

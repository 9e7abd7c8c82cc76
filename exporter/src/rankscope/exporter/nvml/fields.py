"""Field values of one pass, read in one NVML call with a reused array."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from struct import Struct
from typing import Any, Final

from rankscope.exporter.nvml.calls import IMPLAUSIBLE, NvmlCalls, nan_if_all_ones
from rankscope.exporter.nvml.sample_pass import FieldKey

_CALL: Final = "nvmlDeviceGetFieldValues"
# The parts of nvmlFieldValue_t that are read: value type, return code, and a union of eight bytes.
_VALUE: Final = Struct("@24xII8s")
_BY_TYPE: Final = tuple(Struct(f"@{letter}") for letter in "dILQqiH")
_ALL_ONES_16: Final = 2**16 - 1
_MAX_BATCHES: Final = 8


class FieldBatches:
    """Arrays of field values, cached for the few sets of fields that are read together."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[FieldKey, ...], Any] = {}

    def read(self, nvml: NvmlCalls, keys: Sequence[FieldKey]) -> dict[FieldKey, float | str]:
        """Return each field's value, or the reason why it has none. The call succeeds even if single values fail."""
        wanted = tuple(keys)
        array = self._arrays.get(wanted)
        if array is None:
            if len(self._arrays) >= _MAX_BATCHES:
                self._arrays.clear()
            array = self._arrays[wanted] = (nvml.binding.c_nvmlFieldValue_t * len(wanted))()
            for slot, (number, scope) in zip(array, wanted, strict=True):
                slot.fieldId, slot.scopeId = number, scope
        code = nvml.call(_CALL, nvml.handle, len(wanted), array)
        if code:
            return dict.fromkeys(wanted, nvml.reason_of(code))
        values: dict[FieldKey, float | str] = {}
        for key, (kind, code, union) in zip(wanted, _VALUE.iter_unpack(array), strict=True):
            if code:
                nvml.check(code, f"{_CALL}({key[0]})")
                values[key] = nvml.reason_of(code)
            else:
                value = by_type(kind, union)
                if isfinite(value):
                    values[key] = value
                else:
                    values[key] = IMPLAUSIBLE if kind < len(_BY_TYPE) else "unknown_value_type"
        return values


def by_type(kind: int, union: bytes) -> float:
    """Return the number in NVML's union of eight bytes; NaN if all its bits are set or this table lacks the type."""
    if kind >= len(_BY_TYPE):
        return nan
    layout = _BY_TYPE[kind]
    number: float = layout.unpack_from(union)[0]
    return nan if layout.size == 2 and number == _ALL_ONES_16 else nan_if_all_ones(number)

"""Reasons why a profiled window of a rank on a device has nothing of the device."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankscope.runs.records import DeviceKind

_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
_STATUS: Final = Path("/proc/self/status")
_CAP_SYS_ADMIN: Final = 1 << 21


def reason_without_activity(kind: DeviceKind, *, parameters: Path = _PARAMETERS, status: Path = _STATUS) -> str:
    """Return the most likely reason, with what to do. This process must have the rank's privileges.

    ``parameters``: those of the NVIDIA driver. ``status``: the status of this process.
    """
    if kind != "cuda":
        return f"torch's profiler recorded nothing of the device ({kind})"
    if _field(parameters, "RmProfilingAdminOnly") == "1" and not int(_field(status, "CapEff") or "0", 16) & _CAP_SYS_ADMIN:
        return (
            "torch's profiler recorded nothing of the GPU, probably for lack of permission (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, "
            "ERR_NVGPUCTRPERM): this driver lets only administrators profile. Load the nvidia module with "
            "NVreg_RestrictProfilingToAdminUsers=0, or give the job CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN)"
        )
    return (
        "torch's profiler recorded nothing of the GPU: another tool may hold CUPTI (Nsight, DCGM), or this torch has none. "
        "With KINETO_LOG_LEVEL=2 torch prints CUPTI's error"
    )


def _field(path: Path, name: str) -> str | None:
    """Return the value of a line ``name: value``."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((value.strip() for key, _, value in (line.partition(":") for line in lines) if key == name), None)

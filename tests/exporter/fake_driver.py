"""The driver library of ``fake_nvml/`` from Python: build it, set its answers, count its calls.

    fake = FakeDriver(folder, build_library(), [h100_state(index) for index in range(8)])
    fake.hang("nvmlDeviceGetPowerUsage", gpu=1)
    subprocess.run(…, env={**os.environ, **fake.env})

``fake_nvml/nvml.c`` documents the state file.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"
MIB = 2**20
NO_PROCESS = 5_000_000
"""A number that no process of Linux can have: the exporter looks up their names."""
GIB = 2**30
NOT_SUPPORTED, GPU_IS_LOST = "err:3", "err:15"
ALL_LINKS = 0xFFFFFFFF

State = dict[str, object]


@functools.cache
def build_library(*flags: str) -> Path:
    """Return the library, compiled once per process and flags (``-DDRIVER=470``, ``-DWITHOUT_ENERGY``).

    Without a compiler the calling test is skipped, or fails in CI.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        from tests.needs import program  # not at the top: benchmarks use this module without pytest

        compiler = program("gcc")
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O2", "-pthread", "-Wall", "-Werror", *flags]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True)
    return library


def uuid_of(index: int) -> str:
    return f"GPU-{index:x}0000000-aaaa-bbbb-cccc-000000000000"


def gpu_state(index: int) -> State:
    """Return a GPU with few readings, in NVML's units: °C, bytes, percent, mW, mJ, MHz."""
    return {
        "uuid": uuid_of(index),
        "name": "Test GPU",
        "serial": f"16500{index}",
        "bus": f"00000000:{0x1A + index:02X}:00.0",
        "temperature": 40 + index,
        "memory_temperature": 50 + index,
        "memory_total": 81559 * MIB,
        "memory_used": 1000 * MIB,
        "memory_free": 80000 * MIB,
        "memory_reserved": 559 * MIB,
        "utilization": 93,
        "memory_utilization": 41,
        "power": 251250,
        "power_limit": 700000,
        "energy": 123456789,
        "clock_graphics": 1700,
        "clock_sm": 1710,
        "clock_memory": 2619,
        "max_clock_graphics": 1980,
        "max_clock_sm": 1980,
        "max_clock_memory": 2619,
    }


def _ampere_and_newer(index: int) -> State:
    return {
        **gpu_state(index),
        "minor": index,
        "vbios": "96.00.61.00.01",
        "power_limit_default": 700000,
        "performance_state": 0,
        "margin": 47,
        "threshold.0": 92,
        "threshold.1": 89,
        "threshold.2": 95,
        "fans": 0,
        "throttle": 0x4,
        "pcie_replays": 2,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_throughput.0": 3000,
        "pcie_throughput.1": 5000,
        "samples.1": "90,93,96",
        "encoder": 0,
        "decoder": 3,
        "encoder_period_us": 167000,
        "ecc_mode": 1,
        **{f"ecc.{error}.{counter}.{memory}": 0 for error in (0, 1) for counter in (0, 1) for memory in (2, 7)},
        "remap.max": 640,
        "remap.high": 0,
        "remap.partial": 0,
        "remap.low": 0,
        "remap.none": 0,
        "field.74": "5000000000 ull",
        "field.76": "0 ull",
        "field.75": "0 ull",
        "field.77": "0 ull",
        "field.79": "0 ull",
        "field.94": "2 ui",
        "field.83": "123456789 ull",
        f"field.138@{ALL_LINKS}": "7000 ull",
        f"field.139@{ALL_LINKS}": "8000 ull",
        "field.142": "1 ui",
        "field.143": "0 ui",
        "field.144": "0 ui",
        "field.145": "0 ui",
        "field.185": "250000 ui",
        "field.186": "260000 ui",
        "virtualization": 0,
        "capability_minor": 0,
        "compute_mode": 0,
        "persistence": 1,
        "display": 0,
        "mig": 0,
        "mig_pending": 0,
        "process.0": f"compute {NO_PROCESS + index} {900 * MIB} - -",
        "process_util.0": f"{NO_PROCESS + index} 91 40 0 0",
    }


def a100_state(index: int) -> State:
    """Return an A100 SXM with 12 NVLinks: no GPM, NVLink errors as totals, no margin temperature, no fabric."""
    state = _ampere_and_newer(index)
    del state["margin"]
    return {
        **state,
        "name": "NVIDIA A100-SXM4-80GB",
        "architecture": 7,
        "capability_major": 8,
        "power_limit": 400000,
        "power_limit_default": 400000,
        "pcie_generation": 4,
        "pcie_generation_max": 4,
        "nvlinks": 12,
        "gpm": 0,
        "field.38": "1 ull",
        "field.45": "2 ull",
        "field.52": "3 ull",
        "field.59": "4 ull",
        "field.160": "5 ull",
    }


def h100_state(index: int) -> State:
    """Return a full H100 SXM under load: 18 NVLinks, GPM, fabric, every reading of driver branch 580."""
    return {
        **_ampere_and_newer(index),
        "name": "NVIDIA H100 80GB HBM3",
        "architecture": 9,
        "capability_major": 9,
        "nvlinks": 18,
        **{f"field.165@{link}": "1 ui" for link in range(18)},
        **{f"field.{number}@{link}": "0 ull" for number in (161, 162, 163) for link in range(18)},
        "fabric": 3,
        "fabric_status": 0,
        # No degraded bandwidth, no route recovery, no unhealthy route, no access timeout.
        "fabric_health": 0b10101010,
        "field.173": "0 ui",
        "field.179": "0 ui",
        "field.180": "0 ui",
        "field.197": "11000000000 ull",
        "field.198": "12000000000 ull",
        "field.230": "0 ui",
        "field.269": "0 ull",
        "field.270": "0 ull",
        "field.271": "0 ull",
        "gpm": 1,
        "gpm.1": 98,
        "gpm.2": "40,80",
        "gpm.3": 35,
        "gpm.5": "10,20,30,40",
        "gpm.10": 55,
        "gpm.11": 0,
        "gpm.12": 12,
        "gpm.13": 2,
        "gpm.20": 100,
        "gpm.21": 200,
    }


NVLINK5_ERRORS = {
    206: "malformed_packet", 207: "buffer_overrun", 208: "receive", 209: "receive_remote", 210: "receive_general",
    211: "link_integrity", 212: "transmit_discard", 215: "recovery",
}  # fmt: skip
"""Fields of all NVLinks together on Blackwell, and our label of each."""


def gb200_state(index: int) -> State:
    """Return a GB200: 18 NVLinks whose counters are fields 201 to 222, and NVLink-C2C to its Grace CPU."""
    state = h100_state(index)
    for number in (161, 162, 163):
        for link in range(18):
            del state[f"field.{number}@{link}"]
    return {
        **state,
        "name": "NVIDIA GB200",
        "architecture": 10,
        "capability_major": 10,
        **{f"field.{number}@{ALL_LINKS}": f"{number} ull" for number in (*NVLINK5_ERRORS, 213, 214, 219, 221)},
        f"field.202@{ALL_LINKS}": "7168111 ull",
        f"field.204@{ALL_LINKS}": "8192111 ull",
        "field.231": "31 ull",
        "field.232": "32 ull",
        "field.233": "33 ull",
    }


def mig_state(index: int, profiles: Iterable[tuple[int, str]], *, of: State | None = None) -> State:
    """Return a GPU in MIG mode; ``profiles`` are its devices as compute slices and name: ``[(1, "1g.10gb")] * 7``."""
    state = dict(h100_state(index) if of is None else of)
    state["mig"] = 1
    # The whole GPU has no utilisation of its own in MIG mode, and no GPM sample.
    for key in ("utilization", "memory_utilization", "samples.1", "process.0", "process_util.0"):
        state.pop(key, None)
    for device, (slices, profile) in enumerate(profiles):
        size = int(profile.rpartition(".")[2].removesuffix("gb")) * GIB
        state |= {
            f"mig.{device}.uuid": f"MIG-{index:x}{device:x}000000-aaaa-bbbb-cccc-000000000000",
            f"mig.{device}.name": f"{state['name']} MIG {profile}",
            f"mig.{device}.gi": device + 1,
            f"mig.{device}.ci": 0,
            f"mig.{device}.gpu_slices": slices,
            f"mig.{device}.compute_slices": slices,
            f"mig.{device}.memory_total": size,
            f"mig.{device}.memory_used": (device + 1) * MIB,
            f"mig.{device}.memory_free": size - (device + 1) * MIB,
            f"mig.{device}.memory_reserved": 0,
            f"mig.{device}.gpm": state.get("gpm", 0),
            f"mig.{device}.gpm.1": 50 + device,
            f"mig.{device}.gpm.2": 10 * device,
            f"mig.{device}.gpm.5": device,
            f"mig.{device}.gpm.10": 2 * device,
        }
    return state


def mixed_gpus() -> list[State]:
    """Return an H100, an A100, an H100 in MIG mode with two devices, and another H100."""
    return [h100_state(0), a100_state(1), mig_state(2, [(4, "4g.40gb"), (3, "3g.40gb")]), h100_state(3)]


def planted(call: str, gpu: int | None) -> str:
    return call if gpu is None else f"{call}@{gpu}"


@dataclass
class FakeDriver:
    """A fake driver. After a change of ``gpus``, ``system`` or ``calls`` call ``write``; the other methods call it themselves."""

    folder: Path
    library: Path
    gpus: list[State]
    calls: dict[str, str] = field(default_factory=dict)
    system: State = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write()

    @property
    def path(self) -> Path:
        return self.folder / "nvml-state"

    @property
    def env(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML_STATE": str(self.path),
            "FAKE_NVML_COUNTS": str(self.folder / "nvml-counts"),
        }

    def change(self, gpu: int, answers: Mapping[str, object]) -> None:
        """Give a GPU other answers, and write them."""
        self.gpus[gpu] |= answers
        self.write()

    def write(self) -> None:
        """Write the state file; the driver applies it at once."""
        lines = [f"count {len(self.gpus)}"]
        lines += [f"{key} {value}" for key, value in self.system.items()]
        lines += [f"gpu{index}.{key} {value}" for index, gpu in enumerate(self.gpus) for key, value in gpu.items()]
        lines += [f"call.{name} {effect}" for name, effect in self.calls.items()]
        replacement = self.path.with_suffix(".new")
        replacement.write_text("\n".join(lines) + "\n")
        replacement.replace(self.path)
        version = self.path.with_name(self.path.name + ".version")
        number = int.from_bytes(version.read_bytes(), "little") if version.exists() else 0
        with version.open("r+b" if number else "wb") as file:
            file.write(((number + 1) % 2**32).to_bytes(4, "little"))

    def hang(self, call: str, *, gpu: int | None = None, hold_lock: bool = False) -> None:
        """Make a call hang until ``heal``; with ``hold_lock`` no other call of that process returns either."""
        self.calls[planted(call, gpu)] = "lock" if hold_lock else "hang"
        self.write()

    def slow(self, call: str, milliseconds: int, *, gpu: int | None = None) -> None:
        self.calls[planted(call, gpu)] = f"slow:{milliseconds}"
        self.write()

    def fail(self, call: str, code: int, *, gpu: int | None = None) -> None:
        self.calls[planted(call, gpu)] = f"err:{code}"
        self.write()

    def heal(self) -> None:
        """End all hanging, slow and failing calls, and restore lost GPUs and the driver."""
        self.calls.clear()
        self.system.pop("gone", None)
        for gpu in self.gpus:
            gpu.pop("lost", None)
        self.write()

    def lose(self, gpu: int) -> None:
        self.change(gpu, {"lost": 1})

    def vanish(self) -> None:
        """Unload the driver."""
        self.system["gone"] = 1
        self.restart_energy()

    def reload(self, version: str) -> None:
        """Load another version of the driver: processes that had it open must restart."""
        self.system["driver"] = version
        self.restart_energy()

    def restart_energy(self) -> None:
        """Let the energy counters begin again, as when the driver initialises the GPUs."""
        for gpu in self.gpus:
            gpu["energy"] = 1000
        self.write()

    def xid(self, gpu: int, *codes: int) -> None:
        """Add these Xid errors to the GPU, one after the other."""
        first = sum(key.startswith("xid.") for key in self.gpus[gpu])
        self.change(gpu, {f"xid.{first + offset}": code for offset, code in enumerate(codes)})

    def counts(self) -> dict[str, int]:
        """Return the calls of all processes by name since the last ``forget_counts``."""
        path = Path(self.env["FAKE_NVML_COUNTS"])
        if not path.exists():
            return {}
        records = struct.iter_unpack("<QI52s", path.read_bytes())
        return {name.split(b"\0")[0].decode(): count for count, ready, name in records if ready == 2 and count}

    def forget_counts(self) -> None:
        """Reset the counts, also in running processes."""
        path = Path(self.env["FAKE_NVML_COUNTS"])
        if path.exists():
            with path.open("r+b") as file:
                file.write(bytes(path.stat().st_size))

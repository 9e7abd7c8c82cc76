"""A node with an Xid journal, whose clocks a test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankscope.exporter.source import GpuIdentity, Series, XidEvent
from rankscope.exporter.xid.entry import KernelXid
from rankscope.exporter.xid.journal import XidJournal

PCI = "00000000:1a:00.0"
GPU = GpuIdentity(uuid="GPU-1", index=0, model="H100", pci_bus_id=PCI)
SWITCH = "00000000:05:00.0"


class Node:
    """A node whose clocks advance only when the test says, and that can restart its exporter or reboot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unix_s = 1_000_000.0
        self.boot_s = 5_000.0
        self.boot_id = "boot-1"
        self.job: str | None = None
        self.seq = 100
        self.journal = self.start()

    def start(self, folder: Path | None = None) -> XidJournal:
        return XidJournal(
            folder or self.folder,
            job_at=lambda uuid: self.job if uuid == GPU.uuid else None,
            boot_id=self.boot_id,
            now=lambda: self.unix_s,
            monotonic=lambda: self.boot_s,
        )

    def restart(self) -> None:
        self.journal.close()
        self.journal = self.start()

    def wait(self, seconds: float) -> None:
        self.unix_s += seconds
        self.boot_s += seconds

    def event(self, code: int = 79) -> None:
        self.journal.record(GPU.uuid, PCI, XidEvent(self.unix_s, code))

    def line(self, code: int = 79, *, ago_s: float = 0.0, **changes: Any) -> KernelXid:
        self.seq += 1
        result = KernelXid(
            **{
                "kind": "xid",
                "seen_by": "kernel_log",
                "pci_bus_id": PCI,
                "code": code,
                "text": "said the driver",
                "seq": self.seq,
                "boot_s": self.boot_s - ago_s,
                **changes,
            }
        )
        self.journal.record_line(result, GPU.uuid if result.pci_bus_id == PCI else "")
        return result

    def values(self, metric: str = "gpu_xid_errors_total", **labels: str) -> list[float]:
        return values(self.journal.series([GPU]), metric, **labels)

    def count(self, code: int = 79) -> float:
        (value,) = self.values(xid=str(code))
        return value


def values(series: tuple[Series, ...], metric: str, **labels: str) -> list[float]:
    return [sample.value for sample in series if sample.metric == metric and labels.items() <= dict(sample.labels).items()]

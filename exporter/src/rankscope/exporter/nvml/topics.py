"""Which parts each collector consists of."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.nvml.cooling import Fans, Margin
from rankscope.exporter.nvml.fabric import Fabric
from rankscope.exporter.nvml.gpm import Gpm, PcieBytes
from rankscope.exporter.nvml.mig import Mig
from rankscope.exporter.nvml.nvlink import EachLink, Links, NvLinks
from rankscope.exporter.nvml.one_pass import Topic
from rankscope.exporter.nvml.p2p import PeerToPeer
from rankscope.exporter.nvml.processes import Processes
from rankscope.exporter.nvml.rows import Rows
from rankscope.exporter.nvml.status import RECOVERY_ACTION, RetiredPages, Virtualization
from rankscope.exporter.nvml.tables import CALLS, FIELDS
from rankscope.exporter.nvml.utilization import BusySeconds
from rankscope.exporter.nvml.xid_events import Xids


def topics_of(collectors: frozenset[str]) -> dict[str, Sequence[Topic]]:
    """The parts of each enabled collector that asks GPUs, in the order in which they run: MIG devices come before processes."""
    links = Links()
    gpm = Gpm() if "gpm" in collectors else None
    special: dict[str, Sequence[Topic]] = {
        # The table of processes is asked for jobs as well, whose collector is not one of GPUs.
        "gpu": [] if "process" in collectors or "jobs" not in collectors else [Processes(series=False)],
        "temperature": [Margin()],
        "utilization": [BusySeconds()],
        "gpm": [gpm] if gpm else [],
        "fan": [Fans()],
        "pcie": [PcieBytes(gpm.chain if gpm else None)],
        "nvlink": [NvLinks(links), Fabric()],
        "nvlink_link": [EachLink(links)],
        "xid": [Xids()],
        "recovery": [Rows(fields=(RECOVERY_ACTION,))],
        "mig": [Mig()],
        "retired_pages": [RetiredPages()],
        "virtualization": [Virtualization()],
        "process": [Processes(series=True)],
        "p2p": [PeerToPeer()],
    }
    names = [name for name, collector in COLLECTORS.items() if collector.asks_gpu and name != "gpu" and name in collectors]
    return {
        name: [
            *([Rows(CALLS.get(name, ()), FIELDS.get(name, ()))] if name in CALLS or name in FIELDS else []),
            *special.get(name, ()),
        ]
        for name in [*names, "gpu"]
    }

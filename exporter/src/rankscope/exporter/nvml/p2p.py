"""Which other GPUs a GPU can reach directly. Asking opens them all in this GPU's process, so that a lost one can hang it too."""

from __future__ import annotations

from typing import Final

from rankscope.exporter.nvml.asking import Asking
from rankscope.exporter.nvml.one_pass import Pass, PlainTopic
from rankscope.exporter.nvml.rows import RARELY
from rankscope.exporter.source import Labels

_CAPABILITIES: Final = (("read", 0), ("write", 1), ("nvlink", 2), ("atomics", 3))
_OK: Final = 0


class PeerToPeer(PlainTopic):
    """One series per peer and capability."""

    metrics = ("gpu_p2p_status",)

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._reachable: dict[Labels, bool] = {}

    def collect(self, at: Pass) -> None:
        """Topology does not change while the driver runs."""
        if self._due_s <= at.now_s:
            self._reachable = _ask(at.ask, at.uuid)
            self._due_s = at.now_s + RARELY
        for labels, ok in self._reachable.items():
            at.give(self.metrics[0], ok, labels)
        if not self._reachable:
            at.lack(self.metrics[0], "no_peers")


def _ask(ask: Asking, own: str) -> dict[Labels, bool]:
    reachable: dict[Labels, bool] = {}
    for index in range(ask("nvmlDeviceGetCount")):
        peer = ask("nvmlDeviceGetHandleByIndex", index)
        uuid = ask("nvmlDeviceGetUUID", peer)
        if uuid == own:
            continue
        for capability, number in _CAPABILITIES:
            status = ask("nvmlDeviceGetP2PStatus", ask.handle, peer, number)
            reachable[("peer_uuid", uuid), ("capability", capability)] = status == _OK
    return reachable

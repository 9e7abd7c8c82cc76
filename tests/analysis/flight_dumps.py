"""Flight Recorder dumps of a job that trains, with durations that follow from how late each rank comes to each collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.flight_dump_files import document, entry, write

Late = Callable[[int, int], float]
"""Function from rank and step to how many milliseconds the rank comes late."""
TRANSFER_MS = 0.4
STEP_NS = 50_000_000


def always(late: int, ms: float, *, seed: int = 0, noise: float = 0.5) -> Late:
    """Return how late ranks come: one always, all by chance."""
    rng = np.random.default_rng(seed)
    by_chance = rng.exponential(noise, (4096, 64))
    return lambda rank, step: float(by_chance[step, rank]) + (ms if rank == late else 0.0)


class Job:
    """Job of ``dp`` times ``tp`` ranks: ``layers`` all-reduces of activations, then two buckets of gradients."""

    def __init__(self, late: Late, *, dp: int = 4, tp: int = 1, steps: int = 40, layers: int = 3, skewed_ns: int = 0) -> None:
        self.late, self.dp, self.tp, self.steps, self.layers, self.skewed_ns = late, dp, tp, steps, layers, skewed_ns
        self.world = dp * tp
        self.entries: list[list[dict[str, Any]]] = [[] for _ in range(self.world)]
        self.sequence: dict[str, int] = {}
        self.configs = {"0": ("default_pg", list(range(self.world)))}
        self.configs |= {f"tp{row}": ("tp", list(range(row * tp, row * tp + tp))) for row in range(dp)}
        self.configs |= {f"dp{column}": ("dp", list(range(column, self.world, tp))) for column in range(tp)}
        self.issue("0", "broadcast", [17], 0, dict.fromkeys(range(self.world), 900.0), autograd=False)
        for step in range(steps):
            self.train(step)

    def train(self, step: int) -> None:
        """Issue the collectives of a step. All ranks of a group leave a collective together, so a delay passes on."""
        begin = 1_000_000_000 + step * STEP_NS
        behind = {rank: self.late(rank, step) for rank in range(self.world)}
        groups = [name for name in self.configs if name.startswith("tp")] if self.tp > 1 else []
        for layer in range(self.layers):
            for name in groups:
                self.meet(name, "all_reduce", [64, 256], begin + layer * 2_000_000, behind, autograd=False)
        for bucket in range(2):
            for name in [name for name in self.configs if name.startswith("dp")]:
                at = begin + 10_000_000 + bucket * 1_000_000
                self.meet(name, "all_reduce", [1000 + bucket], at, behind, autograd=True)

    def meet(self, group: str, op: str, sizes: list[int], at: int, behind: dict[int, float], *, autograd: bool) -> None:
        """Let the members of a group wait for the last of them."""
        members = self.configs[group][1]
        last = max(behind[rank] for rank in members)
        self.issue(group, op, sizes, at, {rank: last - behind[rank] for rank in members}, autograd=autograd)
        behind |= dict.fromkeys(members, last)

    def issue(self, group: str, op: str, sizes: list[int], at: int, waits: dict[int, float], *, autograd: bool) -> None:
        """Add one collective to the ranks that wait in it, in milliseconds."""
        number = self.sequence[group] = self.sequence.get(group, 0) + 1
        for rank, wait in waits.items():
            created = 1_700_000_000_000_000_000 + at + self.skewed_ns * rank
            self.entries[rank].append(
                entry(
                    len(self.entries[rank]),
                    f"nccl:{op}",
                    group=(group, self.configs[group][0]),
                    sequence=number,
                    created_ns=created,
                    sizes=([sizes], [sizes]),
                    duration_ms=TRANSFER_MS + wait,
                    time_discovered_started_ns=created,
                    time_discovered_completed_ns=created + 10**8,
                    thread_name="pt_autograd_0" if autograd else "python",
                )
            )

    def document(self, rank: int) -> dict[str, Any]:
        """Return the dump of a rank."""
        groups = {name: members for name, (_, members) in self.configs.items() if rank in members}
        return document(groups, self.entries[rank], descriptions={name: about for name, (about, _) in self.configs.items()})

    def write(self, folder: Path, *, ranks: Sequence[int] | None = None, as_json: bool = False) -> Path:
        """Write the dumps of all or some ranks, and return their folder."""
        dumps = {rank: self.document(rank) for rank in (range(self.world) if ranks is None else ranks)}
        return write(folder, dumps, form="json" if as_json else "pickle", waited_s=None)

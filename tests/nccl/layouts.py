"""Training steps of the usual parallel layouts, as programs of ``device.Rank``, with faults of one rank whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from tests.nccl.device import Event, NcclJob, Note, Program, Rank
from tests.nccl.faults import FAULTS, Fault

LAYERS: Final = 6
KERNELS: Final = {"attention": 700.0, "mlp": 1300.0}
"""Kernels of a layer, and the microseconds of their forward pass; backward takes twice as long."""
HIDDEN: Final = 4096
TOKENS: Final = 8192


_BATCHES: Final = 8
"""Micro-batches of a pipeline's step."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel layout: ranks are numbered with tensor (or expert, context) parallelism innermost, then stages, then replicas."""

    name: str
    replicas: int
    stages: int = 1
    inner: int = 1

    @property
    def kind(self) -> str:
        """Name without the number of ranks."""
        return self.name.split(" of ")[0]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.replicas * self.stages * self.inner

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return replica, stage, and place in the inner group."""
        return rank // (self.stages * self.inner), rank // self.inner % self.stages, rank % self.inner

    def rank(self, replica: int, stage: int, inner: int) -> int:
        """Return the rank at a place."""
        return (replica * self.stages + stage) * self.inner + inner

    def groups(self) -> dict[str, list[int]]:
        """Return the process groups."""
        all_ranks = list(range(self.world))
        groups = {"0": all_ranks}
        for stage, inner in product(range(self.stages), range(self.inner)):
            groups[f"dp{stage}-{inner}"] = [self.rank(replica, stage, inner) for replica in range(self.replicas)]
        for replica, stage in product(range(self.replicas), range(self.stages)):
            groups[f"in{replica}-{stage}"] = [self.rank(replica, stage, inner) for inner in range(self.inner)]
        for replica, inner in product(range(self.replicas), range(self.inner)):
            groups[f"pp{replica}-{inner}"] = [self.rank(replica, stage, inner) for stage in range(self.stages)]
        return {name: members for name, members in groups.items() if len(members) > 1 or name == "0"}


LAYOUTS: Final = {
    layout.name: layout
    for layout in (
        Layout("ddp", 8),
        Layout("fsdp", 8),
        Layout("hsdp", 2, inner=4),
        Layout("tp", 1, inner=8),
        Layout("tp x dp", 2, inner=4),
        Layout("accumulation", 4, inner=2),
        Layout("recompute", 4, inner=2),
        Layout("cp", 2, inner=4),
        Layout("moe", 2, inner=4),
        Layout("pp", 2, stages=4),
        Layout("pp x tp", 2, stages=2, inner=2),
        Layout("pp interleaved", 2, stages=4),
        Layout("pp gpipe", 2, stages=4),
        Layout("ring attention", 2, inner=4),
        Layout("tp on the current stream", 2, inner=4),
        Layout("ddp in a CUDA graph", 8),
        Layout("fsdp of 32", 32),
    )
}

LARGE: Final = {
    layout.name: layout
    for layout in (
        Layout("ddp of 64", 64),
        Layout("fsdp of 64", 64),
        Layout("tp x dp of 64", 8, inner=8),
        Layout("ddp of 256", 256),
        Layout("fsdp of 256", 256),
        Layout("tp x dp of 256", 32, inner=8),
        Layout("ddp of 1024", 1024),
        Layout("fsdp of 1024", 1024),
        Layout("tp x dp of 1024", 128, inner=8),
    )
}
"""Layouts of many ranks: in each step a fiftieth of them pauses."""


class LayoutJob(NcclJob):
    """Job of a layout with a fault of the rank ``late``, which is there from the first step."""

    def __init__(self, layout: Layout, fault: Fault, *, late: int = 3, steps: int = 10, seed: int = 0) -> None:
        super().__init__(layout.groups(), seed=seed)
        self.layout, self.fault, self.late, self.steps = layout, fault, late, steps
        if "current stream" in layout.name:
            # Reductions of gradients are asynchronous, so they have a stream of their own.
            self.on_current_stream = frozenset(group for group in self.groups if group.startswith("in"))
        self._longer_us = 0.0
        self._speed = np.ones(self.world)
        self._lasting = np.zeros(self.world)
        if fault.launching:
            usual = LayoutJob(layout, FAULTS["none"], late=late, steps=3)
            self._longer_us = fault.launching * usual.step_us * usual.steps / len(usual.ranks[late].launches)
        self.play([self.train(rank) for rank in self.ranks])

    @property
    def step_us(self) -> float:
        """Mean time of a step, from the first start of any rank to the last end."""
        notes = [note for rank in self.ranks for note in rank.notes]
        return (max(note.end_us for note in notes) - min(note.start_us for note in notes)) / self.steps

    def slowness(self, rank: Rank, name: str) -> float:
        """Return the factor by which a kernel takes longer than usual."""
        usual = super().slowness(rank, name) * float(self._speed[rank.rank])
        return usual * (self.fault.kernel(rank.step, name) if rank.rank == self.late else 1.0)

    def launch_us(self, rank: Rank) -> float:
        """Return the host's time for one launch."""
        return super().launch_us(rank) + (self._longer_us if rank.rank == self.late else 0.0)

    def link(self, group: str, step: int) -> float:
        """Return the factor by which transfers of a group take longer than usual."""
        del step
        return self.fault.link if self.late in self.groups[group] else 1.0

    def train(self, rank: Rank) -> Program:
        """Train: data, forward and backward, reduction of gradients, optimizer, loss."""
        own = rank.rank == self.late
        step_of = {
            "fsdp": self._sharded,
            "hsdp": self._sharded,
            "pp": self._pipeline,
            "pp x tp": self._pipeline,
            "pp interleaved": self._interleaved,
            "pp gpipe": self._all_forward_first,
        }.get(self.layout.kind, self._replicated)
        for step in range(self.steps):
            rank.step = step
            begin = rank.host_us
            # Noise of a rank that lasts for some steps, and pauses of any host.
            self._lasting[rank.rank] = 0.8 * self._lasting[rank.rank] + self.rng.normal(0, 0.006)
            self._speed[rank.rank] = 1 + self._lasting[rank.rank]
            if self.rng.random() < 0.02:
                rank.host(float(self.rng.exponential(3_000.0)))
            rank.enter("data")
            loading = 300.0 + float(self.rng.exponential(60.0)) + (self.fault.data_us(step) if own else 0.0)
            rank.host(loading, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
            rank.enter("forward")
            rank.host(100.0 + float(self.rng.exponential(40.0)))
            if own and (paused := self.fault.host_us(step)):
                rank.host(paused, self.fault.host_note)
            yield from step_of(rank)
            updated = rank.host_us
            rank.enter("optimizer")
            rank.kernel("multi_tensor_apply_kernel<adam>", 600.0)
            rank.host(20.0 + (self.fault.optimizer_us(step) if own else 0.0))
            rank.notes.append(Note("Optimizer.step#AdamW.step", step, updated, rank.host_us))
            rank.enter("between_steps")
            rank.synchronize()
            if own and (saving := self.fault.saving_us(step)):
                rank.host(saving, "save_checkpoint")
            rank.notes.append(Note(f"ProfilerStep#{step}", step, begin, rank.host_us))

    def _tokens(self, rank: Rank) -> float:
        return self.fault.work if rank.rank == self.late else 1.0

    def _layer(self, rank: Rank, part: str, *, backward: bool, share: float = 1.0) -> None:
        """Launch a kernel of a layer."""
        more = self._tokens(rank)
        name = f"{part}_{'backward' if backward else 'forward'}_kernel"
        rank.kernel(name, KERNELS[part] * (1 + backward) * more * share, grid=round(128 * more * share))

    def _replicated(self, rank: Rank) -> Program:
        """Play a step with replicated parameters: data, tensor, context and expert parallelism."""
        name = self.layout.kind
        _, stage, inner = self.layout.place(rank.rank)
        data = f"dp{stage}-{inner}"
        buckets: list[Event] = []
        micro_steps = 4 if name == "accumulation" else 1
        for number in range(2 * micro_steps):
            backward = bool(number % 2)
            rank.enter("backward" if backward else "forward")
            for layer in reversed(range(LAYERS)) if backward else range(LAYERS):
                if backward and name == "recompute":
                    for part in KERNELS:
                        self._layer(rank, part, backward=False)
                for part in reversed(KERNELS) if backward else KERNELS:
                    yield from self._part(rank, part, backward=backward, share=1 / micro_steps)
                if backward and number == 2 * micro_steps - 1 and layer % 2 == 0 and data in self.groups:
                    buckets.append(rank.collective(data, "all_reduce", (HIDDEN * HIDDEN + layer,) * 2, 900.0))
        rank.enter("reduction")
        for bucket in buckets:
            yield from rank.wait(bucket)

    def _part(self, rank: Rank, part: str, *, backward: bool, share: float) -> Program:
        """Play one part of a layer, with the collective inside its group."""
        name = self.layout.kind
        replica, stage, _ = self.layout.place(rank.rank)
        group = f"in{replica}-{stage}"
        if name == "moe" and part == "mlp":
            yield from self._experts(rank, group, backward=backward)
            return
        self._layer(rank, part, backward=backward, share=share)
        if name == "cp" and part == "attention":
            op = "_reduce_scatter_base" if backward else "_all_gather_base"
            sizes = (TOKENS * 512, TOKENS * 128) if backward else (TOKENS * 128, TOKENS * 512)
            yield from rank.wait(rank.collective(group, op, sizes, 150.0))
        elif name == "ring attention":
            if part == "attention":
                yield from self._ring(rank, group)
        elif group in self.groups and name not in ("cp", "moe"):
            yield from rank.wait(rank.collective(group, "all_reduce", (TOKENS * 512,) * 2, 120.0))

    def _ring(self, rank: Rank, group: str) -> Program:
        """Pass keys and values on to the next rank of the ring until those of all ranks have been here."""
        members = self.groups[group]
        place, count = members.index(rank.rank), len(members)
        for _ in range(count - 1):
            parts = [("send", (place + 1) % count, TOKENS * 128), ("recv", (place - 1) % count, TOKENS * 128)]
            yield from rank.wait(rank.exchange(group, parts, 50.0))

    def _experts(self, rank: Rank, group: str, *, backward: bool) -> Program:
        """Play the experts of a layer: tokens go to the experts and back."""
        members = self.groups[group]
        tokens = {member: TOKENS * (self.fault.work if member == self.late else 1.0) for member in members}
        place = members.index(rank.rank)
        uneven = self.fault.work != 1.0
        # What each rank sends to each expert; the hot one gets more of everybody's tokens.
        weights = np.array([tokens[member] for member in members]) / sum(tokens.values())
        sent = (
            [round(TOKENS * weight) * HIDDEN for weight in weights]
            if uneven
            else [TOKENS // len(members) * HIDDEN] * len(members)
        )
        received = [sent[place]] * len(members)
        op = "all_to_allv" if uneven else "all_to_all"

        def own_us(member: int) -> float:
            return 200.0 * tokens[member] / TOKENS * self.link(group, rank.step)

        def move(send: list[int], receive: list[int]) -> Event:
            sizes = (sum(send), sum(receive))
            return rank.collective(group, op, sizes, 0.0, splits=(send, receive) if uneven else None, own_us=own_us)

        yield from rank.wait(move(sent, received))
        share = tokens[rank.rank] / TOKENS
        name = f"grouped_gemm_{'backward' if backward else 'forward'}_kernel"
        rank.kernel(name, KERNELS["mlp"] * (1 + backward) * share, grid=round(128 * share))
        yield from rank.wait(move(received, sent))

    def _sharded(self, rank: Rank) -> Program:
        """Play a step of FSDP2: parameters are gathered a layer ahead, gradients scattered beside compute, twice for HSDP."""
        replica, stage, inner = self.layout.place(rank.rank)
        replicate = f"dp{stage}-{inner}" if self.layout.kind == "hsdp" else None
        shard = f"in{replica}-{stage}" if replicate else f"dp{stage}-{inner}"
        reduced: list[Event] = []
        sizes = (HIDDEN * HIDDEN // len(self.groups[shard]), HIDDEN * HIDDEN)
        for backward in (False, True):
            rank.enter("backward" if backward else "forward")
            gathered = rank.collective(shard, "_all_gather_base", sizes, 350.0)
            for layer in range(LAYERS):
                yield from rank.wait(gathered)
                if layer + 1 < LAYERS:
                    gathered = rank.collective(shard, "_all_gather_base", sizes, 350.0)
                for part in reversed(KERNELS) if backward else KERNELS:
                    self._layer(rank, part, backward=backward)
                if backward:
                    scattered = rank.collective(shard, "_reduce_scatter_base", sizes[::-1], 400.0)
                    if replicate is None:
                        reduced.append(scattered)
                    else:
                        yield from rank.wait(scattered)
                        reduced.append(rank.collective(replicate, "all_reduce", (sizes[0],) * 2, 300.0))
        rank.enter("reduction")
        for event in reduced:
            yield from rank.wait(event)

    def _pipeline(self, rank: Rank) -> Program:
        """Play a step of a 1F1B schedule: eight micro-batches, activations to the next stage, gradients back."""
        _, stage, inner = self.layout.place(rank.rank)
        stages, data = self.layout.stages, f"dp{stage}-{inner}"
        warm_up = min(_BATCHES, stages - stage - 1)
        steady = _BATCHES - warm_up
        for _ in range(warm_up):
            yield from self._exchange(rank, ("recv", stage - 1))
            yield from self._micro_batch(rank, backward=False)
            yield from self._exchange(rank, ("send", stage + 1))
        yield from self._exchange(rank, ("recv", stage - 1))
        for batch in range(steady):
            yield from self._micro_batch(rank, backward=False)
            yield from self._exchange(rank, ("send", stage + 1), ("recv", stage + 1))
            yield from self._micro_batch(rank, backward=True)
            more = [("recv", stage - 1)] if batch + 1 < steady else []
            yield from self._exchange(rank, ("send", stage - 1), *more)
        for _ in range(warm_up):
            yield from self._exchange(rank, ("recv", stage + 1))
            yield from self._micro_batch(rank, backward=True)
            yield from self._exchange(rank, ("send", stage - 1))
        if data in self.groups:
            yield from rank.wait(rank.collective(data, "all_reduce", (HIDDEN * HIDDEN,) * 2, 900.0))

    def _all_forward_first(self, rank: Rank) -> Program:
        """Play a step of GPipe: all micro-batches forward, then all backward; compute does not wait for sends."""
        _, stage, inner = self.layout.place(rank.rank)
        data = f"dp{stage}-{inner}"
        for backward in (False, True):
            before, after = (stage + 1, stage - 1) if backward else (stage - 1, stage + 1)
            sent: list[Event] = []
            for _ in range(_BATCHES):
                yield from self._exchange(rank, ("recv", before))
                # The ends of a model differ from its middle, so only replicas do the same work.
                if stage in (0, self.layout.stages - 1):
                    rank.kernel(f"{'head' if stage else 'embedding'}_kernel", 200.0)
                yield from self._micro_batch(rank, backward=backward)
                sent += self._sent(rank, after)
            for event in sent:
                yield from rank.wait(event)
        if data in self.groups:
            yield from rank.wait(rank.collective(data, "all_reduce", (HIDDEN * HIDDEN,) * 2, 900.0))

    def _micro_batch(self, rank: Rank, *, backward: bool) -> Program:
        """Play one pass of a stage."""
        replica, stage, _ = self.layout.place(rank.rank)
        group = f"in{replica}-{stage}"
        rank.enter("backward" if backward else "forward")
        for _ in range(2):
            for part in reversed(KERNELS) if backward else KERNELS:
                self._layer(rank, part, backward=backward, share=0.5)
                if group in self.groups:
                    yield from rank.wait(rank.collective(group, "all_reduce", (TOKENS * 512,) * 2, 60.0))
        rank.enter("forward")

    def _exchange(self, rank: Rank, *parts: tuple[str, int]) -> Program:
        """Play a batch of sends and receives with other stages; those that do not exist are left out."""
        replica, _, inner = self.layout.place(rank.rank)
        transfers = [(op, other, TOKENS * 512) for op, other in parts if 0 <= other < self.layout.stages]
        if transfers:
            yield from rank.wait(rank.exchange(f"pp{replica}-{inner}", transfers, 100.0))

    def _sent(self, rank: Rank, stage: int) -> list[Event]:
        """Send to a stage, if it exists; return the end of the send."""
        replica, _, inner = self.layout.place(rank.rank)
        parts = [("send", stage, TOKENS * 512)] if 0 <= stage < self.layout.stages else []
        return [rank.exchange(f"pp{replica}-{inner}", parts, 100.0)] if parts else []

    def _interleaved(self, rank: Rank) -> Program:
        """Play a step of a looped schedule: each rank has two parts of the model, all micro-batches pass the first part first."""
        _, stage, inner = self.layout.place(rank.rank)
        stages, data = self.layout.stages, f"dp{stage}-{inner}"
        sent: list[Event] = []
        last = 2 * stages - 1
        for backward in (False, True):
            for part in (1, 0) if backward else (0, 1):
                at = part * stages + stage
                before, after = (at + 1, at - 1) if backward else (at - 1, at + 1)
                for _ in range(_BATCHES):
                    if 0 <= before <= last:
                        yield from rank.wait(self._transfer(rank, "recv", before % stages))
                    yield from self._micro_batch(rank, backward=backward)
                    if 0 <= after <= last:
                        sent.append(self._transfer(rank, "send", after % stages))
        for event in sent:
            yield from rank.wait(event)
        if data in self.groups:
            yield from rank.wait(rank.collective(data, "all_reduce", (HIDDEN * HIDDEN,) * 2, 900.0))

    def _transfer(self, rank: Rank, op: str, stage: int) -> Event:
        replica, _, inner = self.layout.place(rank.rank)
        return rank.transfer(f"pp{replica}-{inner}", op, stage, TOKENS * 512, 100.0)

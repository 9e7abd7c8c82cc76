"""What is known of each operation: who waits for whom in it, and how its size turns into bus bandwidth. A table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

Rule = Literal["everybody", "from_root", "to_root", "pair"]
"""Who waits for whom.

- ``everybody``: nobody leaves before the last has arrived.
- ``from_root``: the others wait for the root; a late receiver holds up nobody for certain.
- ``to_root``: the root waits for the last of the others; they hand over their part and go.
- ``pair``: either side of a send and its receive waits for the later one.
"""


def _two_passes(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _one_pass(ranks: int) -> float:
    return (ranks - 1) / ranks


def _whole(_ranks: int) -> float:
    return 1.0


class Operation(msgspec.Struct, frozen=True):
    """One row. ``rule`` is ``None`` where a record does not tell whose data an operation waits for.

    ``factor``: bus bandwidth over algorithm bandwidth by number of ranks, as in nccl-tests (doc/PERFORMANCE.md; gather and
    scatter: src/gather.cu, src/scatter.cu), where the size is that of the larger side of a rank: the whole array. ``None``: the
    size says nothing about what crosses a link.

    ``input_is_message``: the size of the input is the size meant, so a trace that records inputs alone tells it.

    ``excluded``: the reason under which instances are counted that cannot be judged by the rule.
    """

    rule: Rule | None = "everybody"
    factor: Callable[[int], float] | None = None
    input_is_message: bool = False
    excluded: str = ""


_UNKNOWN: Final = Operation()
"""What is not in the table is taken for a collective of all, without a size."""

OPERATIONS: Final[dict[str, Operation]] = {
    "all_reduce": Operation(factor=_two_passes, input_is_message=True),
    "all_reduce_coalesced": Operation(factor=_two_passes, input_is_message=True),
    "all_gather": Operation(factor=_one_pass),
    "all_gather_base": Operation(factor=_one_pass),
    "all_gather_coalesced": Operation(factor=_one_pass),
    "reduce_scatter": Operation(factor=_one_pass, input_is_message=True),
    "reduce_scatter_base": Operation(factor=_one_pass, input_is_message=True),
    "reduce_scatter_coalesced": Operation(factor=_one_pass, input_is_message=True),
    "all_to_all": Operation(factor=_one_pass, input_is_message=True),
    # Ranks that send little to each other leave early: the shortest duration is no transfer, the size none of a link.
    "all_to_allv": Operation(rule=None, excluded="uneven_all_to_all"),
    "broadcast": Operation(rule="from_root", factor=_whole, input_is_message=True, excluded="broadcast"),
    "scatter": Operation(rule="from_root", factor=_one_pass, excluded="rooted"),
    "reduce": Operation(rule="to_root", factor=_whole, input_is_message=True, excluded="rooted"),
    "gather": Operation(rule="to_root", factor=_one_pass, excluded="rooted"),
    "send": Operation(rule="pair", factor=_whole, input_is_message=True, excluded="p2p"),
    "recv": Operation(rule="pair", factor=_whole, input_is_message=True, excluded="p2p"),
    "send_recv": Operation(rule=None, excluded="p2p"),
    "batch_isend_irecv": Operation(rule=None, excluded="p2p"),
    "dispatch": Operation(rule=None, excluded="expert_parallel"),
    "combine": Operation(rule=None, excluded="expert_parallel"),
    "notify": Operation(rule=None, excluded="expert_parallel"),
}


def operation(op: str) -> Operation:
    """The row of an operation."""
    return OPERATIONS.get(op, _UNKNOWN)


def bus_factor(op: str, ranks: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth in a group of ``ranks``; ``None`` where that is not defined."""
    factor = operation(op).factor
    return factor(ranks) if factor is not None and ranks > 1 else None

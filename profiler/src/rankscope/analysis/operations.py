"""Table of communication operations: all that is known of an operation by its name. Other modules look it up here.

Libraries spell an operation differently; ``operation_name`` returns the name in records. To add an operation or a spelling, add
or change a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, Literal

import msgspec

Rule = Literal["everybody", "from_root", "to_root", "pair"]
"""Rule for which ranks wait for which.

- ``everybody``: no rank leaves before the last one has arrived.
- ``from_root``: the other ranks wait for the root; a late receiver does not necessarily delay another rank.
- ``to_root``: the root waits for the last of the other ranks, which leave once they have handed over their part.
- ``pair``: either side of a send and its receive waits for the later one.
"""

Family = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"]
"""Operations among all ranks that differ only in how they are called. None has a root."""
_FAMILIES: Final[tuple[Family, ...]] = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter")

Side = Literal["input", "output"]
_BOTH: Final[tuple[Side, ...]] = ("input", "output")

EXCLUSIONS: Final = {
    "broadcast": "from a root (broadcast)",
    "rooted": "with a root (reduce, gather, scatter)",
    "p2p": "between two ranks",
    "uneven_all_to_all": "all-to-all with unequal parts",
    "expert_parallel": "of expert parallelism",
    "unknown_operation": "of unknown kind",
}
"""Reasons why an operation cannot be judged by its rule, with the text after a number of operations."""


def _two_passes(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _one_pass(ranks: int) -> float:
    return (ranks - 1) / ranks


def _whole(_ranks: int) -> float:
    return 1.0


class OperationKind(msgspec.Struct, frozen=True):
    """Row of the table.

    ``spellings``: the others of torch, NCCL and gloo, in lower case and without underscores.

    ``kernels``: case-insensitive pattern of functions of kernels that have no metadata. Rows are tried in their order.

    ``gloo``: operation that gloo runs and annotates instead.

    ``rule``: ``None`` where a record does not show which ranks' data an operation waits for.

    ``factor``: bus bandwidth over algorithm bandwidth by number of ranks, as in nccl-tests (doc/PERFORMANCE.md; gather and
    scatter: src/gather.cu, src/scatter.cu). The size is the larger one of a rank's input and output, that is, the whole array.
    ``None`` where the size does not determine the bytes that cross a link.

    ``input_is_message``: true if the size of the input is that size, so that a trace with input shapes only is enough.

    ``excluded``: reason under which instances are counted that cannot be judged by the rule.

    ``equal``: sides that need the same number of elements on all ranks.

    ``parts``: sides that may be a list with a part for each rank. Where parts have different sizes, only the two ends of each
    part must agree, and ``equal`` does not hold.

    ``is_p2p``: true if all of it is between two ranks.
    """

    name: str
    spellings: tuple[str, ...] = ()
    kernels: str = ""
    family: Family | None = None
    gloo: str = ""
    rule: Rule | None = "everybody"
    factor: Callable[[int], float] | None = None
    input_is_message: bool = False
    excluded: str = ""
    equal: tuple[Side, ...] = ()
    parts: tuple[Side, ...] = ()
    is_p2p: bool = False

    @property
    def is_symmetric(self) -> bool:
        """True if no rank can end it before all ranks have begun it."""
        return self.rule == "everybody"

    @property
    def has_one_type(self) -> bool:
        """True if all ranks need the same data type."""
        return bool(self.equal or self.parts)

    @property
    def has_root(self) -> bool:
        """True if one rank sends or receives all data."""
        return self.rule in ("from_root", "to_root")

    @property
    def reduces_equal(self) -> bool:
        """True if it adds up the same number of elements of all ranks, as of gradients."""
        return bool(self.equal) and self.family in ("all_reduce", "reduce_scatter")


# What operations have in common.
_reduces: Final = partial(OperationKind, family="all_reduce", factor=_two_passes, input_is_message=True, equal=_BOTH)
_gathers: Final = partial(OperationKind, family="all_gather", factor=_one_pass, equal=_BOTH)
_scatters: Final = partial(OperationKind, family="reduce_scatter", factor=_one_pass, input_is_message=True, equal=_BOTH)
_hands_over: Final = partial(OperationKind, factor=_whole, input_is_message=True)
_routes: Final = partial(OperationKind, rule=None, excluded="expert_parallel")

_ROWS: Final[tuple[OperationKind, ...]] = (
    # A kernel that fuses two collectives counts as the one in which all ranks exchange everything.
    _reduces("all_reduce", kernels=r"all_?reduce|device_reduce|quickreduce|rdxn|lamport|\bar_|_gpu_(rw|rr|mc)$"),
    _reduces("all_reduce_coalesced", gloo="all_reduce"),
    # Ranks may have any number of values that are not zero.
    OperationKind("sparse_all_reduce", ("allreducesparse",), family="all_reduce", gloo="all_reduce"),
    _gathers("all_gather", kernels=r"all_?gather|fcollect|\bag_|userbuffers\w*_ag", parts=("output",)),
    _gathers("all_gather_base", ("allgatherintotensor", "allgathersingle"), gloo="all_gather"),
    _gathers(
        "all_gather_coalesced",
        ("allgatherintotensorcoalesced", "allgatherbasecoalesced", "allgathersinglecoalesced"),
        gloo="all_gather",
    ),
    OperationKind("all_gatherv", family="all_gather", rule=None, excluded="unknown_operation", parts=("output",)),
    _scatters("reduce_scatter", kernels=r"reduce_?scatter|\brs_|userbuffers\w*_rs", gloo="all_reduce", parts=("input",)),
    _scatters("reduce_scatter_base", ("reducescattertensor", "reducescattersingle"), gloo="all_reduce"),
    _scatters(
        "reduce_scatter_coalesced",
        ("reducescattertensorcoalesced", "reducescatterbasecoalesced", "reducescattersinglecoalesced"),
    ),
    OperationKind("reduce_scatterv", family="reduce_scatter", rule=None, excluded="unknown_operation", parts=("input",)),
    _routes("notify", kernels=r"notify"),
    _routes("dispatch", kernels=r"dispatch"),
    _routes("combine", kernels=r"combine"),
    # Ranks that exchange little leave early, so the shortest duration is no transfer time, and no link carries the whole size.
    OperationKind(
        "all_to_allv",
        ("alltoallvsingle",),
        kernels=r"moe_?all_?to_?all|all_?(to_?|2)all_?v|a2av",  # experts get unequal numbers of tokens
        family="all_to_all",
        rule=None,
        excluded="uneven_all_to_all",
        parts=_BOTH,
    ),
    OperationKind(
        "all_to_all",
        ("alltoallsingle", "alltoallbase", "all2all"),
        kernels=r"all_?(to_?|2)all|a2a|exchange_?split",
        family="all_to_all",
        factor=_one_pass,
        input_is_message=True,
        parts=_BOTH,
    ),
    OperationKind("barrier", ("allreducebarrier",), kernels=r"barrier|\bsync|_sync|clean_low_latency", family="barrier"),
    _hands_over("broadcast", ("broadcastoop",), kernels=r"broadcast", rule="from_root", excluded="broadcast", equal=_BOTH),
    OperationKind("scatter", rule="from_root", factor=_one_pass, excluded="rooted", parts=("input",)),
    OperationKind("gather", ("gathersingle",), rule="to_root", factor=_one_pass, excluded="rooted", parts=("output",)),
    # Its kernel runs any number of sends and receives, also those of an all-to-all.
    OperationKind("send_recv", kernels=r"send_?recv", rule=None, excluded="p2p"),
    _hands_over("send", ("isend",), kernels=r"send|put_signal|_put_kernel", rule="pair", excluded="p2p", is_p2p=True),
    _hands_over(
        "recv",
        ("irecv", "recvanysource"),
        kernels=r"recv|wait_(for_)?signal|wait_until|_get_kernel",
        rule="pair",
        excluded="p2p",
        is_p2p=True,
    ),
    _hands_over("reduce", ("reduceoop",), kernels=r"reduce", rule="to_root", excluded="rooted", equal=_BOTH),
    # Batches of sends and receives; which ones, the record does not say.
    OperationKind("coalesced", rule=None, excluded="p2p", is_p2p=True),
    OperationKind("batch_isend_irecv", rule=None, excluded="p2p", is_p2p=True),
    # Kernel that the user names as communication, and whose name has no operation.
    OperationKind("collective"),
)

OPERATIONS: Final = {row.name: row for row in _ROWS}


def _bare(spelling: str) -> str:
    return spelling.replace("_", "").lower()


_NAMES: Final = {spelling: row.name for row in _ROWS for spelling in (_bare(row.name), *row.spellings)}


@lru_cache(1024)
def operation_name(spelling: str) -> str:
    """Return the one name of an operation, however a library spells it: ``allreduce_``, ``AllReduce``, ``gloo:all_reduce`` →
    ``all_reduce``, ``nccl:send 0->1`` → ``send``.
    """
    bare = spelling.rpartition(":")[2].partition(" ")[0]
    return _NAMES.get(_bare(bare)) or bare.strip("_").lower() or "unknown"


def operation(op: str) -> OperationKind:
    """Return the row of an operation. One that is not in the table may be a transfer between two ranks."""
    return OPERATIONS.get(op) or _unknown(op)


@lru_cache(1024)
def _unknown(op: str) -> OperationKind:
    family = next((family for family in _FAMILIES if family in op), None)
    return OperationKind(op, family=family, rule=None, excluded="unknown_operation")


def bus_factor(op: str, ranks: int) -> float | None:
    """Return bus bandwidth over algorithm bandwidth in a group of ``ranks``; ``None`` where it is not defined."""
    factor = operation(op).factor
    return factor(ranks) if factor is not None and ranks > 1 else None

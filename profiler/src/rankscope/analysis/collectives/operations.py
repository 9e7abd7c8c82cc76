"""Table of communication operations, and the message size of a collective.

The table says which ranks wait for which, which sizes must agree, and the factor from size to bus bandwidth. Message sizes follow
from element types and the shapes of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from rankscope.analysis.trace.possible import MOST_BYTES
from rankscope.analysis.trace.schema import EventArgs

Rule = Literal["everybody", "from_root", "to_root", "pair"]
"""Rule for which ranks wait for which.

- ``everybody``: no rank leaves before the last one has arrived.
- ``from_root``: the other ranks wait for the root; a late receiver does not necessarily delay another rank.
- ``to_root``: the root waits for the last of the other ranks, which leave once they have handed over their part.
- ``pair``: either side of a send and its receive waits for the later one.
"""

Side = Literal["input", "output"]
_BOTH: Final[tuple[Side, ...]] = ("input", "output")


def _two_passes(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _one_pass(ranks: int) -> float:
    return (ranks - 1) / ranks


def _whole(_ranks: int) -> float:
    return 1.0


class Operation(msgspec.Struct, frozen=True):
    """Row of the table.

    ``rule``: ``None`` where a record does not show which ranks' data an operation waits for.

    ``factor``: bus bandwidth over algorithm bandwidth by number of ranks, as in nccl-tests (doc/PERFORMANCE.md; gather and
    scatter: src/gather.cu, src/scatter.cu). The size is the larger one of a rank's input and output, that is, the whole array.
    ``None`` where the size does not determine the bytes that cross a link.

    ``input_is_message``: true if the size of the input is that size, so that a trace with input shapes only is enough.

    ``excluded``: reason under which instances are counted that cannot be judged by the rule.

    ``equal``: sides that need the same number of elements on all ranks.

    ``parts``: sides that may be a list with a part for each rank. Where parts have different sizes, only the two ends of each
    part must agree, and ``equal`` does not hold.
    """

    rule: Rule | None = "everybody"
    factor: Callable[[int], float] | None = None
    input_is_message: bool = False
    excluded: str = ""
    equal: tuple[Side, ...] = ()
    parts: tuple[Side, ...] = ()

    @property
    def is_symmetric(self) -> bool:
        """True if no rank can end it before all ranks have begun it."""
        return self.rule == "everybody"

    @property
    def has_one_type(self) -> bool:
        """True if all ranks need the same data type."""
        return bool(self.equal or self.parts)


_UNKNOWN: Final = Operation(rule=None, excluded="unknown_operation")
"""Row of an operation that is not in the table: it may be a transfer between two ranks."""

OPERATIONS: Final[dict[str, Operation]] = {
    "all_reduce": Operation(factor=_two_passes, input_is_message=True, equal=_BOTH),
    "all_reduce_coalesced": Operation(factor=_two_passes, input_is_message=True, equal=_BOTH),
    "all_gather": Operation(factor=_one_pass, equal=_BOTH, parts=("output",)),
    "all_gather_base": Operation(factor=_one_pass, equal=_BOTH),
    "all_gather_coalesced": Operation(factor=_one_pass, equal=_BOTH),
    "all_gatherv": Operation(rule=None, excluded="unknown_operation", parts=("output",)),
    "reduce_scatter": Operation(factor=_one_pass, input_is_message=True, equal=_BOTH, parts=("input",)),
    "reduce_scatter_base": Operation(factor=_one_pass, input_is_message=True, equal=_BOTH),
    "reduce_scatter_coalesced": Operation(factor=_one_pass, input_is_message=True, equal=_BOTH),
    "reduce_scatterv": Operation(rule=None, excluded="unknown_operation", parts=("input",)),
    "all_to_all": Operation(factor=_one_pass, input_is_message=True, parts=_BOTH),
    # Ranks that exchange little leave early, so the shortest duration is no transfer time, and no link carries the whole size.
    "all_to_allv": Operation(rule=None, excluded="uneven_all_to_all", parts=_BOTH),
    "barrier": Operation(),
    # Ranks may have any number of values that are not zero.
    "sparse_all_reduce": Operation(),
    # Kernel that the user names as communication, and whose name has no operation.
    "collective": Operation(),
    "broadcast": Operation(rule="from_root", factor=_whole, input_is_message=True, excluded="broadcast", equal=_BOTH),
    "scatter": Operation(rule="from_root", factor=_one_pass, excluded="rooted", parts=("input",)),
    "reduce": Operation(rule="to_root", factor=_whole, input_is_message=True, excluded="rooted", equal=_BOTH),
    "gather": Operation(rule="to_root", factor=_one_pass, excluded="rooted", parts=("output",)),
    "send": Operation(rule="pair", factor=_whole, input_is_message=True, excluded="p2p"),
    "recv": Operation(rule="pair", factor=_whole, input_is_message=True, excluded="p2p"),
    "send_recv": Operation(rule=None, excluded="p2p"),
    # A batch of sends and receives; which ones, the record does not say.
    "coalesced": Operation(rule=None, excluded="p2p"),
    "batch_isend_irecv": Operation(rule=None, excluded="p2p"),
    "dispatch": Operation(rule=None, excluded="expert_parallel"),
    "combine": Operation(rule=None, excluded="expert_parallel"),
    "notify": Operation(rule=None, excluded="expert_parallel"),
}


def operation(op: str) -> Operation:
    """Return the row of an operation."""
    return OPERATIONS.get(op, _UNKNOWN)


def bus_factor(op: str, ranks: int) -> float | None:
    """Return bus bandwidth over algorithm bandwidth in a group of ``ranks``; ``None`` where it is not defined."""
    factor = operation(op).factor
    return factor(ranks) if factor is not None and ranks > 1 else None


_ELEMENT_BYTES: Final[dict[str, int]] = {
    # Names as in the communication library's metadata and in recorded input types; lower case.
    "float": 4,
    "double": 8,
    "half": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "short int": 2,
    "char": 1,
    "signed char": 1,
    "byte": 1,
    "unsigned char": 1,
    "bool": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complexfloat": 8,
    "complexdouble": 16,
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("c10::float8_e4m3fn", "c10::float8_e4m3fnuz", "c10::float8_e5m2", "c10::float8_e5m2fnuz"), 1),
}

_shapes = msgspec.json.Decoder(list[list[int]])
_types = msgspec.json.Decoder(list[str])


def element_bytes(dtype: str | None) -> int | None:
    """Return the bytes of one element; ``None`` for a type that is not in the table."""
    return _ELEMENT_BYTES.get((dtype or "").lower())


def input_size(op: str, args: EventArgs | None) -> tuple[str | None, int | None]:
    """Return data type and bytes of a collective whose annotation has the shapes of its inputs (``record_shapes=True``).

    Both are ``None`` without shapes, and where the inputs are only a part of the message, as in an all-gather. The data type is
    ``None`` where inputs have different types.
    """
    if args is None or not operation(op).input_is_message:
        return None, None
    try:
        shapes, types = _shapes.decode(args.input_shapes), _types.decode(args.input_types)
    except msgspec.DecodeError:
        return None, None
    widths = [element_bytes(one) for one in types]
    if not shapes or len(shapes) != len(types) or any(size < 0 for shape in shapes for size in shape):
        return None, None
    total = sum(math.prod(shape) * width for shape, width in zip(shapes, widths, strict=True) if width is not None)
    if None in widths or not 0 < total < MOST_BYTES:
        return None, None
    return (types[0] if len(set(types)) == 1 else None), total

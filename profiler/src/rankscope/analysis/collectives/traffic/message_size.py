"""Message size of a collective, by element types and the shapes of its inputs."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from rankscope.analysis.operations import operation
from rankscope.analysis.trace.possible import MOST_BYTES
from rankscope.analysis.trace.schema import EventArgs

_ELEMENT_BYTES: Final[dict[str, int]] = {
    # Names as in the communication library's metadata and in recorded input types; lower case.
    **dict.fromkeys(("char", "signed char", "byte", "unsigned char", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("c10::float8_e4m3fn", "c10::float8_e4m3fnuz", "c10::float8_e5m2", "c10::float8_e5m2fnuz"), 1),
    **dict.fromkeys(("half", "c10::half", "bfloat16", "c10::bfloat16", "short", "short int", "uint16"), 2),
    **dict.fromkeys(("float", "int", "uint32"), 4),
    **dict.fromkeys(("double", "long", "long int", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
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
    widths = [element_bytes(type_) for type_ in types]
    if not shapes or len(shapes) != len(types) or any(size < 0 for shape in shapes for size in shape):
        return None, None
    total = sum(math.prod(shape) * width for shape, width in zip(shapes, widths, strict=True) if width is not None)
    if None in widths or not 0 < total < MOST_BYTES:
        return None, None
    return (types[0] if len(set(types)) == 1 else None), total

"""Safe reader for untrusted pickles that hold nothing but plain data.

``pickle.Unpickler`` calls any function that the pickle names, and allocates as much as the pickle claims. The standard library
has the same unpickler in Python, with a table of instructions: here it is cut down to those that build dictionaries, lists,
tuples, strings and numbers. Its memo is a dictionary, and it reads no further than the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from pickle import _Unpickler  # the C unpickler has no table of instructions
from typing import Any, Final, NoReturn

MAX_BYTES: Final = 32 * 1024**2
"""Maximum size of a pickle; a record of a collective takes about 180 bytes, and 30 per stack frame."""
MAX_CONTAINERS: Final = 1_500_000
"""Maximum number of dictionaries, lists and tuples; a record takes about 8."""

_PLAIN: Final = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK),
    *(pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
)
"""Instructions that the standard library's functions read safely: none allocates more than the file has left."""
_COSTLY: Final = (
    *(pickle.MARK, pickle.EMPTY_DICT, pickle.EMPTY_LIST),
    *(pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.MEMOIZE),
)
"""Instructions of one byte that allocate about a hundred. Texts and numbers hold a few of these bytes, too."""
_MALFORMED: Final = (
    pickle.UnpicklingError,
    struct.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
)
"""Errors of the standard library where an instruction does not fit the stack, the memo or the file."""


class PickleError(Exception):
    """The pickle is damaged, too large, or holds something other than plain data; the message says which, and where."""


def load_plain(data: bytes) -> object:
    """Load a pickle of ``dict`` with string keys, ``list``, ``tuple``, ``str``, ``int``, ``float``, ``bool`` and ``None``.

    The same object may occur in many places, and inside itself. Raises ``PickleError``.
    """
    if len(data) > MAX_BYTES:
        raise PickleError(f"a pickle of more than {MAX_BYTES // 1024**2} MiB: no dump is that large")
    if sum(map(data.count, _COSTLY)) > MAX_CONTAINERS:
        raise PickleError(f"more than {MAX_CONTAINERS:,} lists and dictionaries: no dump has that many")
    file = io.BytesIO(data)
    try:
        return _PlainUnpickler(file).load()
    except _MALFORMED as error:
        what = "ends early" if file.tell() == len(data) else "is damaged"
        raise PickleError(f"the pickle {what} at byte {file.tell()}") from error


class _Instructions(dict[int, Callable[[Any], None]]):
    """Functions of the unpickler by instruction; every other instruction is refused."""

    def __missing__(self, instruction: int) -> NoReturn:
        names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
        name = names.get(chr(instruction), f"{instruction:#04x}")
        raise PickleError(f"refused: instruction {name} is not for plain data; reading such a pickle could run a program")


def _text(size: int) -> Callable[[Any], None]:
    """Return the function that reads a string after its length of ``size`` bytes; damaged UTF-8 is no error."""

    def load(unpickler: Any) -> None:
        length = int.from_bytes(unpickler.read(size), "little")
        unpickler.append(unpickler.read(length).decode(errors="replace"))

    return load


def _items(instruction: bytes, keys: slice) -> Callable[[Any], None]:
    """Return the function of an instruction that adds items to a dictionary, for ``keys`` of the stack that are strings.

    The hashes of strings cannot be made to collide, and take no recursion.
    """
    add: Callable[[Any], None] = _Unpickler.dispatch[instruction[0]]

    def load(unpickler: Any) -> None:
        if not all(type(key) is str for key in unpickler.stack[keys]):
            raise TypeError
        add(unpickler)

    return load


class _PlainUnpickler(_Unpickler):
    """Unpickler of plain data."""

    dispatch = _Instructions(
        {
            **{instruction[0]: _Unpickler.dispatch[instruction[0]] for instruction in _PLAIN},
            pickle.SETITEM[0]: _items(pickle.SETITEM, slice(-2, -1)),
            pickle.SETITEMS[0]: _items(pickle.SETITEMS, slice(0, None, 2)),
            pickle.SHORT_BINUNICODE[0]: _text(1),
            pickle.BINUNICODE[0]: _text(4),
            pickle.BINUNICODE8[0]: _text(8),
        }
    )

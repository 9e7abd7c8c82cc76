"""Preparation of msgspec's type information before threads decode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec


def make_decoders() -> None:
    """Make msgspec inspect every imported type of rankscope; takes milliseconds, and almost no time when called again.

    msgspec inspects a type when it is first decoded. If two threads do so at once, one may use the unfinished result of the
    other, and the process dies of a segmentation fault. So call this before starting threads that decode.
    """
    for kind in set(_below(msgspec.Struct)):
        if kind.__module__.startswith("rankscope."):
            with suppress(TypeError):  # a type with fields that JSON lacks is never decoded
                msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _below(subclass)

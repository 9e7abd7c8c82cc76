"""What msgspec needs to decode a type, made before threads want it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec


def make_decoders() -> None:
    """Have msgspec look through every type of ours that is imported by now; milliseconds, and nothing the second time.

    It looks through a type when that is first decoded. Where two threads are the first at once, one may use what the other has
    half made, and the process dies of a segmentation fault. So whoever starts threads that decode calls this before.
    """
    for kind in set(_below(msgspec.Struct)):
        if kind.__module__.startswith("rankscope."):
            with suppress(TypeError):  # of one with fields that JSON has not: nobody decodes it
                msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)

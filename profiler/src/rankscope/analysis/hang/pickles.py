"""Safe reader for untrusted pickles that hold nothing but plain data.

Python's own unpickler calls any function that the pickle names. This one knows only the instructions that build dictionaries,
lists, tuples, strings and numbers, and refuses all others. Its limits bound the time and memory it takes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

MAX_STEPS: Final = 12_000_000
"""Maximum number of instructions; a record of a collective takes about 70."""
MAX_CONTAINERS: Final = 1_500_000
"""Maximum number of dictionaries, lists and tuples; a record takes about 8."""

_GET: Final = ord("h")
_NAMES: Final = {
    b"c": "GLOBAL",
    b"\x93": "STACK_GLOBAL",
    b"R": "REDUCE",
    b"i": "INST",
    b"o": "OBJ",
    b"b": "BUILD",
    b"\x81": "NEWOBJ",
    b"\x92": "NEWOBJ_EX",
    b"P": "PERSID",
    b"Q": "BINPERSID",
    b"\x82": "EXT1",
    b"\x83": "EXT2",
    b"\x84": "EXT4",
}
"""Instructions that would create, look up or call an object."""


class PickleError(Exception):
    """The pickle is damaged, too large, or holds something other than plain data; the message says which, and where."""


def load_plain(data: bytes) -> object:
    """Load a pickle of ``dict`` with string keys, ``list``, ``tuple``, ``str``, ``int``, ``float``, ``bool`` and ``None``.

    The same object may occur in many places, and inside itself. Raises ``PickleError``.
    """
    machine = _Machine(data)
    stack, memo, known = machine.stack, machine.memo, _STEPS.get
    at = 0
    try:
        for _ in range(MAX_STEPS):
            at = machine.at
            instruction = data[at]
            if instruction == _GET:  # every second instruction, so handled without a call
                stack.append(memo[data[at + 1]])
                machine.at = at + 2
                continue
            step = known(instruction)
            if step is None:
                raise PickleError(_refusal(data[at : at + 1], at))
            machine.at = at + 1
            step(machine)
            if machine.done:
                return stack.pop()
    except (IndexError, struct.error, KeyError) as error:
        what = "ends early" if max(machine.at, at + 1) >= len(data) else "is damaged"
        raise PickleError(f"the pickle {what} at byte {at}") from error
    raise PickleError(f"more than {MAX_STEPS:,} instructions: no dump has that many")


def _refusal(instruction: bytes, at: int) -> str:
    name = _NAMES.get(instruction)
    if name is not None:
        return f"refused: it holds more than plain data ({name} at byte {at}), and reading it could run a program"
    return f"not a pickle of plain data: instruction {instruction.hex()} at byte {at}"


class _Machine:
    """Stack machine that reads one pickle."""

    __slots__ = ("at", "containers", "data", "done", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.containers = 0
        self.done = False

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            self.at = len(self.data)
            raise IndexError
        self.at += count
        return taken

    def skip(self, count: int) -> None:
        """Skip the next ``count`` bytes."""
        self.take(count)

    def byte(self) -> int:
        """Return the next byte."""
        self.at += 1
        return self.data[self.at - 1]

    def number(self, size: int) -> int:
        """Return the next unsigned number of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little")

    def push(self, container: object) -> None:
        """Push a new container. Raises ``PickleError`` if there are too many."""
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            raise PickleError(f"more than {MAX_CONTAINERS:,} lists and dictionaries: no dump has that many")
        self.stack.append(container)

    def popped_to_mark(self) -> list[object]:
        """Pop all objects pushed since the last mark."""
        mark = self.marks.pop()
        if mark > len(self.stack):
            raise IndexError
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def put(self, key: int) -> None:
        """Memoize the topmost object under ``key``."""
        self.memo[key] = self.stack[-1]

    def text(self, length: int) -> None:
        """Push a string of ``length`` bytes."""
        self.stack.append(self.take(length).decode(errors="replace"))

    def extend(self, items: list[object]) -> None:
        """Append to the topmost list."""
        target = self.stack[-1]
        if type(target) is not list:
            raise IndexError
        target.extend(items)

    def update(self, items: list[object]) -> None:
        """Add keys and values to the topmost dictionary."""
        target, keys = self.stack[-1], items[::2]
        # Only string keys: an attacker cannot make their hashes collide, and they are not nested.
        if type(target) is not dict or len(items) % 2 or not all(type(key) is str for key in keys):
            raise IndexError
        target.update(zip(keys, items[1::2], strict=True))

    def tuple_of(self, count: int) -> None:
        """Replace the ``count`` topmost objects with a tuple of them."""
        if len(self.stack) < count:
            raise IndexError
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.push(items)

    def finish(self) -> None:
        """Mark the pickle as complete."""
        if not self.stack:
            raise IndexError
        self.done = True


_STEPS: Final[dict[int, Callable[[_Machine], None]]] = {
    instruction[0]: step
    for instruction, step in {
        b"\x80": lambda machine: machine.skip(1),  # the protocol
        b"\x95": lambda machine: machine.skip(8),  # the size of a frame
        b"(": lambda machine: machine.marks.append(len(machine.stack)),
        b"}": lambda machine: machine.push({}),
        b"]": lambda machine: machine.push([]),
        b")": lambda machine: machine.push(()),
        b"t": lambda machine: machine.push(tuple(machine.popped_to_mark())),
        b"\x85": lambda machine: machine.tuple_of(1),
        b"\x86": lambda machine: machine.tuple_of(2),
        b"\x87": lambda machine: machine.tuple_of(3),
        b"e": lambda machine: machine.extend(machine.popped_to_mark()),
        b"a": lambda machine: machine.extend([machine.stack.pop()]),
        b"u": lambda machine: machine.update(machine.popped_to_mark()),
        b"s": lambda machine: machine.update([machine.stack.pop(-2), machine.stack.pop()]),
        b"X": lambda machine: machine.text(machine.number(4)),
        b"\x8c": lambda machine: machine.text(machine.number(1)),
        b"\x8d": lambda machine: machine.text(machine.number(8)),
        b"q": lambda machine: machine.put(machine.byte()),
        b"r": lambda machine: machine.put(machine.number(4)),
        b"\x94": lambda machine: machine.put(len(machine.memo)),
        b"j": lambda machine: machine.stack.append(machine.memo[machine.number(4)]),
        b"K": lambda machine: machine.stack.append(machine.byte()),
        b"M": lambda machine: machine.stack.append(machine.number(2)),
        b"J": lambda machine: machine.stack.append(int.from_bytes(machine.take(4), "little", signed=True)),
        b"\x8a": lambda machine: machine.stack.append(int.from_bytes(machine.take(machine.number(1)), "little", signed=True)),
        b"G": lambda machine: machine.stack.append(struct.unpack(">d", machine.take(8))[0]),
        b"N": lambda machine: machine.stack.append(None),
        b"\x88": lambda machine: machine.stack.append(True),
        b"\x89": lambda machine: machine.stack.append(False),
        b".": lambda machine: machine.finish(),
    }.items()
}

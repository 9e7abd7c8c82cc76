"""Files of traces: bytes in, events out, whole or damaged."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

YEAR_US = 366 * 86_400 * 10**6
LATEST_US = 4 * 10**15

KERNELS = ("kernel", "concurrent_kernel")
COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
CALLS = ("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime")
OPERATORS = ("cpu_op", "operator")
NOTES = ("user_annotation",)
DEVICE_NOTES = ("gpu_user_annotation",)
RELEVANT = KERNELS + COPIES + CALLS + OPERATORS + NOTES + DEVICE_NOTES


class RefusedError(Exception):
    """The file is no trace that can be analysed."""


@dataclass(eq=False)
class Event:
    """Event of a relevant category; times are nanoseconds."""

    category: str
    name: str
    start: int
    end: int
    thread: tuple[str, str]
    args: dict[str, Any]
    possible: bool = True
    """False for work on a device whose time is none."""

    def number(self, key: str) -> int:
        """Return an argument as a whole number, -1 where it is missing or senseless."""
        return whole_number(self.args.get(key))


@dataclass
class File:
    """Trace of one rank."""

    path: Path
    head: dict[str, Any] = field(default_factory=dict)
    """Top-level keys besides the events."""
    events: list[Event] = field(default_factory=list)
    damaged: int = 0
    """Number of events that make no sense."""
    torn: bool = False
    """True if the end of the file is missing."""
    base: int = 0
    """Time to which those of the file are relative, in nanoseconds."""

    def some(self, categories: tuple[str, ...]) -> list[Event]:
        """Return the events of some categories, in the order of the file."""
        return [event for event in self.events if event.category in categories]

    @property
    def work_on_device(self) -> list[Event]:
        """Kernels and copies."""
        return self.some(KERNELS + COPIES)

    @property
    def distributed(self) -> dict[str, Any]:
        """``distributedInfo``, empty where there is none."""
        info = self.head.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def rank(self) -> int | None:
        """Rank by the file's own word, else by its name."""
        named = re.search(r"rank[-_]?(\d+)", self.path.name)
        rank = self.distributed.get("rank", named and named[1])
        return None if rank is None else int(rank)


def read(path: Path) -> File:
    """Read a trace. Raises ``RefusedError``."""
    text, torn = unpacked(path.read_bytes())
    file = File(path, torn=torn)
    raw = list(_raw_events(text.decode("utf-8-sig", errors="replace"), file))
    base = file.head.get("baseTimeNanoseconds")
    file.base = base if isinstance(base, int) and 0 <= base < 2**62 else 0
    for item in raw:
        if isinstance(item, dict) and item.get("ph") != "X" and isinstance(item.get("ph"), str):
            continue
        event = _event(item, file.base)
        if event is None:
            file.damaged += 1
        elif event.category in RELEVANT:
            file.events.append(event)
    return file


def unpacked(data: bytes) -> tuple[bytes, bool]:
    """Return the text of a file, and whether its end is missing."""
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        from backports.zstd import decompress

        return decompress(data), False
    text = b""
    if not data.startswith(b"\x1f\x8b"):
        return data, False
    while data.startswith(b"\x1f\x8b"):
        member = zlib.decompressobj(wbits=31)
        try:
            text += member.decompress(data)
        except zlib.error as error:
            raise RefusedError("gzip") from error
        if not member.eof:
            return text, True
        data = member.unused_data
    return text, False


def _raw_events(text: str, file: File) -> Iterator[Any]:
    """Yield the events, and fill in the head of the file."""
    # Kineto prints what is no number as C does.
    text = re.sub(r"([:\[,]\s*)-?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", r"\1null", text, flags=re.IGNORECASE)
    if not text.strip("\0 \r\n"):
        raise RefusedError("empty")
    if text.lstrip()[:1] not in "[{":
        raise RefusedError("not JSON")
    try:
        content = json.loads(text.rstrip("\0"), parse_float=Decimal)
    except ValueError:
        yield from _salvaged(text, file)
        return
    events = content if isinstance(content, list) else content.get("traceEvents")
    if not isinstance(events, list):
        raise RefusedError("no list of traceEvents")
    if isinstance(content, dict):
        file.head = {key: value for key, value in content.items() if key != "traceEvents"}
    yield from events


def _salvaged(text: str, file: File) -> Iterator[Any]:
    """Yield event by event what can be read of a list with damage, or without an end."""
    opening = re.search(r'"traceEvents"\s*:\s*\[', text)
    if opening is None:
        raise RefusedError("truncated")
    file.head = json.loads(text[: opening.start()].rstrip(" ,\n") + "}", parse_float=Decimal)
    decoder = json.JSONDecoder(parse_float=Decimal)
    at = opening.end()
    while True:
        at = next((place for place in range(at, len(text)) if text[place] not in ", \n"), len(text))
        if text[at : at + 1] == "]":
            file.head |= json.loads("{" + text[at + 1 :].lstrip(" ,\n"))
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            following = text.find('{"ph"', at + 1)
            if following < 0:
                file.torn = True
                return
            file.damaged += 1
            at = following
        else:
            yield event


def _event(item: Any, base: int) -> Event | None:
    """Return an event, or ``None`` if it makes no sense; times count only where the category is relevant."""
    if not isinstance(item, dict) or item.get("ph") != "X":
        return None
    args, name = item.get("args"), item.get("name")
    if not isinstance(args, dict | None) or not isinstance(name, str | int | Decimal | None):
        return None
    category = str(item.get("cat") or "").lower()
    if any(not isinstance(item.get(key), str | int | Decimal | None) for key in ("ts", "dur")):
        return None
    start, length = decimal(item.get("ts")), decimal(item.get("dur"))
    possible, matters = True, category in RELEVANT or item.get("cat") is None
    if matters and (start is None or length is None or abs(start) >= LATEST_US or not 0 <= length < YEAR_US):
        if category not in KERNELS + COPIES:
            return None
        possible, start, length = False, None, None
    begin, took = nanoseconds(start or Decimal(0)), nanoseconds(length or Decimal(0))
    thread = (str(item.get("pid")), str(item.get("tid")))
    return Event(category, str(name), begin + base, begin + base + took, thread, args or {}, possible)


def decimal(value: Any) -> Decimal | None:
    """Return a number that may be written as a text."""
    try:
        return None if value is None else Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        return None


def nanoseconds(us: Decimal) -> int:
    """Return microseconds as whole nanoseconds."""
    return int((us * 1000).to_integral_value(ROUND_HALF_EVEN))


def whole_number(value: Any) -> int:
    """Return a whole number that may be written as a text; -1 where there is none."""
    try:
        number = -1 if value is None else int(value)
    except (ValueError, OverflowError, TypeError):
        return -1
    return number if 0 <= number < 2**62 else -1

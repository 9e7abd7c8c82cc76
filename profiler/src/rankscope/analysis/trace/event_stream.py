"""Events of a trace, decoded from its text a few thousand at a time, in bounded memory and linear time.

The text is cut between two events, and each part is decoded as a list of its own. The place to cut is a guess: the first
``}, {`` from the right. Decoding shows whether it was right: a list that was cut inside an object or a string is no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import msgspec

from rankscope.analysis.trace.locations import Location
from rankscope.base.errors import InputError

MAX_HEAD_BYTES: Final = 16 * 1024**2
"""Largest size of the text before the events."""
MAX_TAIL_BYTES: Final = 64 * 1024**2
"""Largest size of the text after the events that is read."""
MAX_EVENT_BYTES: Final = 32 * 1024**2
"""Largest size of one event. Events with long lists of shapes take some KiB."""
MAX_DAMAGED: Final = 100_000
"""Number of damaged events above which a file is no trace, if they are also more than half of its events."""

_GUESSES: Final = 4
_MOST_CUTS_TRIED: Final = 10_000
"""Largest number of braces tried as a place to cut: a text with more in a row is no trace, and must not cost more time."""
_SPACE: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_KEY: Final = re.compile(rb'"traceEvents"\s*:\s*([^\s])')
_KEYS: Final = 50
"""Number of nested keys of that name after which the search is given up."""
_KEY_BYTES: Final = 1024
"""Upper bound of the size of that key and the space after it."""
_OPENING: Final = re.compile(rb'\{\s*"[^"\\]{1,40}"')
_HOPELESS_BYTES: Final = 2 * 1024**2
"""Text longer than this counts as damaged if it has places that look like a cut, but none that is right."""
_END: Final = re.compile(rb"\]\s*(?:,\s*\"|\}|,?\s*\Z)")
"""Closing bracket of the events and what may follow it: another key, the end of the object, or nothing."""
_PLACE: Final = re.compile(r"\(byte (\d+)\)")

# Some Kineto versions print float fields as C does, which is not JSON.
_NOT_A_NUMBER: Final = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:nan|inf(?:inity)?)(?:\([a-z]*\))?(?=\s*[,}\]])", re.IGNORECASE)

_ONE_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_MANY_RAW: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Categorised(msgspec.Struct):
    cat: str | None = None


_CATEGORY: Final = msgspec.json.Decoder(_Categorised)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)


class NoTraceError(InputError):
    """JSON that is no trace, as other files beside traces are."""

    def __reduce__(self) -> tuple[Callable[..., InputError], tuple[str, str, str | None]]:
        return _no_trace_error, super().__reduce__()[1]


def _no_trace_error(path: str, reason: str, place: str | None) -> InputError:
    return NoTraceError(path, reason, place=place)


_E = TypeVar("_E")
_NO_EVENTS: Final = "JSON, but not a trace: it has no list of traceEvents"


class EventStream(Generic[_E]):
    """Lists of the events of a trace, decoded as type ``event``, in file order. It can be iterated over once.

    After the iteration ``top_level`` has the other top-level keys of the file. Raises ``InputError`` where the file is no trace,
    or is hostile. Damaged events are counted and left out; the rest is used.
    """

    def __init__(
        self, path: Location, blocks: Iterable[bytes], event: Any, needed: Callable[[str | None], bool] = lambda _: True
    ) -> None:
        """``needed``: whether events of a category matter; others do not count as damaged."""
        self.top_level: dict[str, msgspec.Raw] = {}
        self.events = 0
        """Number of events in the file, usable or not."""
        self.damaged = 0
        """Number of ``events`` that could not be decoded."""
        self.complete = False
        """True if the file is complete; False if it was cut off."""
        self._path = path
        self._needed = needed
        self._reason = ""
        self._blocks = iter(blocks)
        self._event_decoder: msgspec.json.Decoder[_E] = msgspec.json.Decoder(event)
        self._events_decoder: msgspec.json.Decoder[list[_E]] = msgspec.json.Decoder(list[event])
        self._is_list = False
        self._opening: bytes | None = None
        """Begin of the first event, up to its first key."""
        self._tail: bytes | None = None
        """Text from the closing bracket of the events on; ``None`` until the bracket has been seen."""

    @property
    def torn(self) -> str | None:
        """Reason why the file ends too early; ``None`` where it is complete."""
        return None if self.complete else "the JSON ends in the middle"

    def __iter__(self) -> Iterator[list[_E]]:
        try:
            yield from self._all()
        except RecursionError as error:
            raise InputError(self._path, "not a trace: its JSON is nested absurdly deep") from error

    def _all(self) -> Iterator[list[_E]]:
        text = self._begin()
        wanted = 0
        while not self._is_closed() and (block := next(self._blocks, b"")):
            text += block
            if len(text) < wanted:
                continue
            events, remaining = self._take(text)
            # Nothing could be cut off: an event is longer than this text, so wait until there is twice as much.
            wanted = 2 * len(text) if len(remaining) == len(text) else 0
            text = remaining
            if events:
                yield events
            self._check(text)
        yield from self._last(text)
        if self._tail is not None:
            self._end(self._tail)

    def _is_closed(self) -> bool:
        return self._tail is not None

    def _check(self, text: bytes) -> None:
        if len(text) > MAX_EVENT_BYTES:
            raise InputError(self._path, f"not a trace: one event of more than {MAX_EVENT_BYTES // 1024**2} MiB")
        if self.damaged > MAX_DAMAGED and 2 * self.damaged > self.events:
            raise InputError(
                self._path, f"not a trace: {self.damaged} of its first {self.events} events cannot be decoded: {self._reason}"
            )

    def _begin(self) -> bytes:
        """Read up to the first event. Return the text from there on."""
        text = b""
        while not text.strip(_SPACE + b"\0") and (block := next(self._blocks, b"")):
            text = block
        text = text.removeprefix(_BOM).lstrip(_SPACE)
        match text[:1]:
            case b"[":
                self._is_list = True
                return text[1:]
            case b"{":
                return self._find_events(text)
            case b"" | b"\0":
                raise InputError(self._path, "the file is empty")
            case _:
                raise InputError(self._path, "not JSON: the file does not start with { or [")

    def _find_events(self, text: bytes) -> bytes:
        searched = keys = 0
        while keys < _KEYS:
            if (match := _KEY.search(text, searched)) is not None:
                if self._is_top_level(text[: match.start(1)]):
                    if match[1] == b"[":
                        return text[match.end() :]
                    raise NoTraceError(self._path, _NO_EVENTS)
                searched, keys = match.end(), keys + 1
            elif len(text) <= MAX_HEAD_BYTES and (block := next(self._blocks, b"")):
                searched = max(searched, len(text) - _KEY_BYTES)
                text += block
            else:
                raise self._without_events(text)
        raise NoTraceError(self._path, _NO_EVENTS)

    def _is_top_level(self, head: bytes) -> bool:
        """Return whether ``head``, the text up to the value of a key, ends at the top level of the file's object."""
        try:
            self.top_level = _object(head + b"null}")
        except _UNREADABLE:
            return False
        return True

    def _without_events(self, text: bytes) -> InputError:
        if len(text) > MAX_HEAD_BYTES:
            return InputError(self._path, f"{_NO_EVENTS} in its first {MAX_HEAD_BYTES // 1024**2} MiB")
        try:
            _object(text)
        except _UNREADABLE as error:
            if "truncated" in str(error):
                return InputError(
                    self._path, "truncated: the JSON ends before the first event; was the process killed meanwhile?"
                )
            return InputError(self._path, f"not JSON: {error}")
        return NoTraceError(self._path, _NO_EVENTS)

    def _take(self, text: bytes) -> tuple[list[_E], bytes]:
        """Return the events that ``text`` begins with, and the text after them. If there are none: no events and ``text``."""
        text = text.lstrip(_SPACE + b",")
        if self._opening is None and (match := _OPENING.match(text)):
            self._opening = match[0]
        first = 0
        for comma, brace in self._guesses(text):
            first = first or brace
            try:
                return self._decode(text, comma), text[brace:]
            except _UNREADABLE as error:
                if self._ends_within(text, comma, error):
                    return self._take_up_to_the_end(text), b""
                if not _is_cut_wrongly(error, comma):
                    return self._take_damaged(text, brace)
        try:
            return self._decode(text, len(text.rstrip(_SPACE + b","))), b""
        except _UNREADABLE as error:
            if self._ends_within(text, len(text), error):
                return self._take_up_to_the_end(text), b""
        return self._take_damaged(text, first) if first and len(text) > _HOPELESS_BYTES else ([], text)

    def _guesses(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield places that may be between two events: where the first ends and where the second begins."""
        # Events begin alike; objects inside them, and strings that look like events, begin with something else.
        for opening in dict.fromkeys((self._opening or b"{", b"{")):
            yield from islice(_cuts(text, opening), _GUESSES)

    def _take_damaged(self, text: bytes, end: int) -> tuple[list[_E], bytes]:
        repaired = _repair(text[:end])
        if repaired != text[:end]:
            return self._take(repaired + text[end:])
        return self._salvage(text[:end].rstrip(_SPACE + b",")), text[end:]

    def _last(self, text: bytes) -> Iterator[list[_E]]:
        """Yield the remaining events at the end of the file."""
        for _ in range(2):
            # First all events but the last, then the last one with the end of the list.
            if not self._is_closed():
                events, text = self._take(text)
                yield events
        if text and not self._is_closed():
            events, text = self._take(_repair(text))
            yield events
        if not self._is_closed() and (cut := next(_cuts(text, self._opening or b"{"), None)) is not None:
            yield self._salvage(text[: cut[0]])
        # The remaining text is the event in which the file was cut off: it counts neither as an event nor as damaged.

    def _decode(self, text: bytes, stop: int) -> list[_E]:
        """Decode all events of a part of the list. Raises the errors of msgspec where the part is no list."""
        data = b"".join((b"[", memoryview(text)[:stop], b"]"))
        try:
            events = self._events_decoder.decode(data)
        except (msgspec.ValidationError, UnicodeDecodeError):
            pieces = _MANY_RAW.decode(data)
            return self._each(bytes(piece) for piece in pieces)
        self.events += len(events)
        return events

    def _each(self, pieces: Iterable[bytes]) -> list[_E]:
        events: list[_E] = []
        for piece in pieces:
            self.events += 1
            event = self._event(piece)
            if event is not None:
                events.append(event)
            elif self._is_needed(piece):
                self.damaged += 1
        return events

    def _is_needed(self, text: bytes) -> bool:
        try:
            return self._needed(_CATEGORY.decode(text).cat)
        except _UNREADABLE:
            return True

    def _event(self, text: bytes) -> _E | None:
        for read in (bytes, _repair):
            try:
                return self._event_decoder.decode(read(text))
            except _UNREADABLE as error:
                self._reason = str(error)
        return None

    def _ends_within(self, text: bytes, cut: int, error: Exception) -> bool:
        """Return whether decoding up to ``cut`` failed because the list ends before it. If so, set the tail from there."""
        if "trailing characters" not in str(error):
            return False
        bracket = text.rfind(b"]", 0, max(0, min(cut, _place(error) - 2)))
        if bracket < 0 or _END.match(text, bracket) is None:
            return False
        self._tail = text[bracket:]
        return True

    def _take_up_to_the_end(self, text: bytes) -> list[_E]:
        assert self._tail is not None
        stop = len(text) - len(self._tail)
        try:
            return self._decode(text, stop)
        except _UNREADABLE:
            return self._salvage(text[:stop])

    def _salvage(self, text: bytes) -> list[_E]:
        """Decode event by event, for a part that is no JSON as a whole."""
        events: list[_E] = []
        for start, stop in self._pieces(text):
            end = _end_behind_object(text[start:stop])
            if end is not None and _END.match(text, start + end):
                self._tail = text[start + end :]
                events += self._each([text[start : start + end]])
                break
            events += self._each([text[start:stop]])
        return events

    def _pieces(self, text: bytes) -> Iterator[tuple[int, int]]:
        for start, stop in _split(text, 0, len(text), self._opening or b"{"):
            if _is_object(text[start:stop]):
                yield start, stop
            else:
                # These are events that begin with another key, or remains of damaged ones.
                yield from _split(text, start, stop, b"{")

    def _end(self, tail: bytes) -> None:
        """Read the text after the events."""
        for block in self._blocks:
            tail += block
            if len(tail) > MAX_TAIL_BYTES:
                return
        fields_text = tail[1:].strip(_SPACE + b"\0")
        if self._is_list:
            self.complete = True
            return
        try:
            self.top_level |= _object(b"{" + fields_text.lstrip(_SPACE + b","))
        except _UNREADABLE:
            return
        self.complete = True


def _object(text: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _OBJECT.decode(text)
    except _UNREADABLE:
        return _OBJECT.decode(_repair(text))


def _repair(text: bytes) -> bytes:
    """Correct known errors of Kineto in JSON: ``nan`` and ``inf`` as values, names that are not UTF-8."""
    return _NOT_A_NUMBER.sub(rb"\1null", text.decode(errors="replace").encode())


def _cuts(text: bytes, opening: bytes) -> Iterator[tuple[int, int]]:
    """Yield the places between two objects, from the right. The second object begins with ``opening``."""
    brace = len(text)
    for _ in range(_MOST_CUTS_TRIED):
        if (brace := text.rfind(opening, 0, brace)) <= 0:
            return
        before = text[max(0, brace - 256) : brace].rstrip(_SPACE)
        if before.endswith(b",") and before[:-1].rstrip(_SPACE).endswith(b"}"):
            yield text.rfind(b",", 0, brace), brace


def _split(text: bytes, start: int, stop: int, opening: bytes) -> Iterator[tuple[int, int]]:
    for match in re.compile(rb"(?<=\})\s*,\s*(?=%b)" % re.escape(opening)).finditer(text, start, stop):
        yield start, match.start()
        start = match.end()
    yield start, stop


def _place(error: Exception) -> int:
    match = _PLACE.search(str(error))
    return int(match[1]) if match else 0


def _is_cut_wrongly(error: Exception, length: int) -> bool:
    """Return whether a list of ``length`` bytes may be no JSON only because it ends inside an object or a string."""
    return _place(error) >= length if _place(error) else "truncated" in str(error)


def _is_object(piece: bytes) -> bool:
    try:
        _ONE_RAW.decode(piece)
    except _UNREADABLE:
        return False
    return True


def _end_behind_object(piece: bytes) -> int | None:
    """Return the index of the bracket that closes the list of events after the first object of ``piece``, or ``None``."""
    try:
        _ONE_RAW.decode(piece)
    except _UNREADABLE as error:
        place = _place(error)
        if "trailing characters" in str(error) and piece[place - 1 : place] == b"]":
            return place - 1
    return None

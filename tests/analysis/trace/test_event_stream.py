"""Events parsed out of a trace's text, however it is cut into blocks, and wherever it is damaged."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.trace import event_stream
from rankscope.analysis.trace.event_stream import EventStream
from rankscope.analysis.trace.schema import ANY_EVENT, Mark, TraceEvent
from rankscope.base.errors import InputError

Read = tuple[list[Any], EventStream[TraceEvent | Mark]]


def blocks(text: bytes, size: int) -> Iterator[bytes]:
    return (text[at : at + size] for at in range(0, len(text), size))


def read(text: bytes, size: int = 1 << 19) -> Read:
    stream = EventStream[TraceEvent | Mark](Path("rank-0.json"), blocks(text, size), ANY_EVENT)
    return [event.name for events in stream for event in events if isinstance(event, TraceEvent)], stream


def event(name: Any, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 1.5, "dur": 2, "pid": 0, "tid": 7, "args": args}


# Text that may break a cut: brackets, separators and quotes in strings, nested objects that follow each other, escapes.
ODD = st.sampled_from(["a", "}, {", '"}, {"', "]", '], "x": {', "\\", '\\"', "é", "\u2028", "}\n  },\n  {\n", "[[{", ""])
ARGS = st.recursive(
    st.none() | st.integers(-5, 5) | ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3)
)
EVENTS = st.lists(st.builds(lambda name, inside: event(name, odd=inside), ODD, ARGS), max_size=8)
OTHER_KEYS = st.dictionaries(st.sampled_from(["host_name", "traceName", "x", "}, {"]), ARGS, max_size=3)


@given(
    events=EVENTS,
    before=OTHER_KEYS,
    after=OTHER_KEYS,
    size=st.integers(1, 400),
    indent=st.sampled_from([None, 0, 2]),
    bare=st.booleans(),
)
def test_events_are_complete_and_in_order_for_any_block_size(
    events: list[Any], before: dict[str, Any], after: dict[str, Any], size: int, indent: int | None, *, bare: bool
) -> None:
    # given any trace, in blocks of any size
    whole = {**before, "traceEvents": events} | {key: value for key, value in after.items() if key not in before}
    text = json.dumps(events if bare else whole, indent=indent, ensure_ascii=False).encode()
    # when it is read
    names, stream = read(text, size)
    # then nothing is missing, double or changed
    assert names == [event["name"] for event in events]
    assert (stream.events, stream.damaged, stream.complete) == (len(events), 0, True)
    if not bare:
        by_key = {key: msgspec.json.decode(value) for key, value in stream.top_level.items()}
        assert by_key == {**whole, "traceEvents": None}


@given(events=EVENTS, cut=st.floats(0, 1), size=st.integers(1, 400), indent=st.sampled_from([None, 2]))
def test_torn_text_yields_every_complete_event(events: list[Any], cut: float, size: int, indent: int | None) -> None:
    # given a trace that ends anywhere after its events have begun
    text = json.dumps({"traceEvents": events, "traceName": "x"}, indent=indent).encode()
    first = text.index(b"[") + 1
    torn = text[: first + int((len(text) - first) * cut)]
    # when it is read
    names, stream = read(torn, size)
    # then events with their closing bracket are used, and nothing counts as damaged
    complete = 0
    at = first
    decoder = json.JSONDecoder()
    for _ in events:
        _, at = decoder.raw_decode(text.decode(), text.index(b"{", at))
        complete += at <= len(torn)
    assert names == [event["name"] for event in events[:complete]]
    assert (stream.damaged, stream.complete) == (0, torn == text)


def test_damage_costs_only_the_events_it_hits() -> None:
    # given a trace of many events in which a few bytes are overwritten
    events = [event(f"kernel {at}") for at in range(3000)]
    text = bytearray(json.dumps({"traceEvents": events, "host_name": "n1"}).encode())
    where = [text.index(b'"kernel %d"' % at) for at in (50, 1500, 2900)]
    text[where[0]] = ord("#")
    text[where[1] : where[1] + 30] = b"\xff" * 30
    text[where[2] - 4 : where[2]] = b"}}}}"
    # when it is read in small parts
    for size in (1000, 20_000, 1 << 20):
        names, stream = read(bytes(text), size)
        # then everything else is there, and also the fields behind the events
        assert set(names) == {f"kernel {at}" for at in range(3000)} - {"kernel 50", "kernel 1500", "kernel 2900"}
        assert stream.damaged == 3
        assert stream.complete
        assert msgspec.json.decode(stream.top_level["host_name"]) == "n1"


def test_stray_closing_bracket_does_not_end_the_events() -> None:
    text = json.dumps({"traceEvents": [event(at) for at in range(100)]}).encode()
    at = text.index(b"}}, {", 2000)
    names, stream = read(text[: at + 2] + b"]" + text[at + 2 :], 700)
    assert len(names) >= 98
    assert stream.damaged <= 2


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            b'{"a": {"traceEvents": [' + b"{}," * 50 + b'{}]}, "traceEvents": [%s]}', id="a key of that name further in"
        ),
        pytest.param(b'{"a": "\\"traceEvents\\": [", "traceEvents": [%s]}', id="the key inside of a string"),
        pytest.param(b'{"a": nan, "traceEvents": [%s]}', id="what is no JSON before it"),
        pytest.param(b'{"traceEvents" \n:\n [%s]}\0\0\0', id="space around it, padding behind"),
        pytest.param(b'\xef\xbb\xbf  {"traceEvents": [%s]}', id="a byte order mark"),
        pytest.param(
            b'{"traceEvents": [%s], "stackFrames": [{"a": 1}, {"b": 2}], "x": [[{}], {}]}', id="lists of objects behind"
        ),
    ],
)
@pytest.mark.parametrize("size", [7, 1 << 19])
def test_event_list_is_found_at_any_position(text: bytes, size: int) -> None:
    names, stream = read(text % json.dumps(event("k")).encode(), size)
    assert (names, stream.complete) == (["k"], True)


def test_marks_are_skipped_and_invalid_events_count_as_damaged() -> None:
    text = json.dumps([{"ph": "s", "id": 1}, event("k"), 5, None, {"ph": "X", "name": [1]}, {"ph": "M"}, {"ph": "?"}]).encode()
    names, stream = read(text)
    assert (names, stream.events, stream.damaged) == (["k"], 7, 4)


@pytest.mark.parametrize("size", [100, 10_000])
@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 100_000,
        b'{"traceEvents": [{}, {"ph": "X", "args": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001 + b"]}",
        b'{"traceEvents": [], "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_absurd_nesting_is_refused_at_any_position(text: bytes, size: int) -> None:
    with pytest.raises(InputError, match="nested"):
        read(text, size)


def endless(text: bytes) -> Iterator[bytes]:
    """Yield text without end: its reader must stop by itself."""
    while True:
        yield text * (1 + (1 << 16) // len(text))


@pytest.mark.parametrize(
    ("begin", "forever", "reason"),
    [
        (b"", b" ", "no list of traceEvents|the file is empty|not JSON"),
        (b"{", b" ", "no list of traceEvents"),
        (b'{"a": "', b"x", "no list of traceEvents"),
        (b'{"a": [', b'{"traceEvents": [1]}, ', "no list of traceEvents|ends before the first event"),
        (b'{"traceEvents": [{"name": "', b"}, {", "one event of more than|cannot be decoded"),
        (b'{"traceEvents": [1', b", 1", "cannot be decoded"),
        (b'{"traceEvents": [{}', b", {", "one event of more than"),
    ],
)
def test_endless_text_without_events_is_refused(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, forever: bytes, reason: str
) -> None:
    # given text that never reaches an event, with limits that are reached soon
    monkeypatch.setattr(event_stream, "MAX_HEAD_BYTES", 1 << 20)
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", 1 << 20)
    monkeypatch.setattr(event_stream, "MAX_DAMAGED", 5000)

    def text() -> Iterator[bytes]:
        yield begin
        yield from endless(forever)

    # then reading gives up
    with pytest.raises(InputError, match=reason):
        list(EventStream[TraceEvent | Mark](Path("rank-0.json"), text(), ANY_EVENT))


def test_text_after_the_events_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_TAIL_BYTES", 1 << 20)

    def text() -> Iterator[bytes]:
        yield json.dumps({"traceEvents": [event("k")]}).encode()[:-1] + b', "a": "'
        yield from endless(b"x")

    stream = EventStream[TraceEvent | Mark](Path("rank-0.json"), text(), ANY_EVENT)
    assert [item.name for events in stream for item in events if isinstance(item, TraceEvent)] == ["k"]
    assert not stream.complete


def test_blocks_are_decoded_once() -> None:
    # given a long trace in which every event ends in text that looks like the gap between two events
    rng = random.Random(1)
    events = [event(at, odd=[{"a": 1}, {"b": rng.random()}]) for at in range(20_000)]
    calls = 0

    def counted() -> Iterator[bytes]:
        nonlocal calls
        for block in blocks(json.dumps({"traceEvents": events}).encode(), 1 << 16):
            calls += 1
            yield block

    # when it is read
    stream = EventStream[TraceEvent | Mark](Path("rank-0.json"), counted(), ANY_EVENT)
    parts = [len(part) for part in stream]
    # then each block returns its events at once: nothing piles up
    assert sum(parts) == len(events)
    assert max(parts) < 2 * len(events) / calls * 1.5

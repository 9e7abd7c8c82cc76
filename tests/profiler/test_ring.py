"""Ring: no silent loss, nothing of a step that is not over, and it survives its writer and its reader."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ring_step import ring_in

from rankscope.profiler.ring import (
    BYTES,
    CAPACITY,
    GENERATION,
    MASK,
    MAX_NAMES,
    STEP_WORDS,
    TAIL,
    Announcement,
    EndState,
    RingReader,
    RingWriter,
)
from rankscope.profiler.words import MESSAGE, bytes_of_message, size_of_message, words_of_message

NUMBER, FIRST, STEPS, FLAGS, CHECK = range(GENERATION + 1, GENERATION + 6)


def reader_of(path: Path) -> RingReader:
    """Return a new reader of the ring in a file."""
    with path.open("rb+") as file:
        return RingReader(file.fileno())


class Ring:
    """Both sides of a ring in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ring"
        self.writer = ring_in(self.path)
        self.reader = reader_of(self.path)

    def put(self, *words: int) -> bool:
        """Write a step."""
        self.writer.write(*words)
        return self.writer.next_step()

    def replace_reader(self) -> None:
        """Let another reader take the place of one that was killed."""
        self.reader.close()
        self.reader = reader_of(self.path)

    def close(self) -> None:
        """Close both sides."""
        self.reader.close()
        self.writer.close()


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    """Return a ring with a reader."""
    both_sides = Ring(tmp_path)
    yield both_sides
    both_sides.close()


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["step", "step", "inline", "read", "free", "replace"]),
            st.one_of(st.integers(1, 50), st.integers(1, STEP_WORDS + 10), st.sampled_from([STEP_WORDS, STEP_WORDS + 1])),
        ),
        max_size=30,
    )
)
def test_whole_steps_are_read_in_order_or_counted_as_dropped(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int]]
) -> None:
    ring = Ring(tmp_path_factory.mktemp("ring"))
    writer = ring.writer
    kept = list[int]()
    dropped = read = freed = 0
    roomy = True
    for number, (operation, size) in enumerate(operations):
        if operation in ("step", "inline"):
            words = [number << 20 | place | 1 << 60 for place in range(size)]
            if operation == "step":
                for start in range(0, size, 100):
                    writer.write(*words[start : start + 100])
            else:
                for word in words:
                    if writer.at >= writer.limit:
                        writer.overflow()
                    writer.words[writer.at & MASK] = word
                    writer.at += 1
            whole = writer.next_step()
            assert whole or size > STEP_WORDS or not roomy
            assert not (whole and size > STEP_WORDS)
            kept += words if whole else []
            dropped += not whole
            roomy = len(kept) - freed <= CAPACITY - 2 * STEP_WORDS
        elif operation == "read":
            data = ring.reader.read(size)
            assert data == kept[read : read + size]
            read += len(data)
        elif operation == "free":
            freed = max(freed, min(read, freed + size))
            ring.reader.free(freed)
        else:
            ring.replace_reader()
            read = freed
    assert ring.reader.read() == kept[read:]
    assert ring.reader.dropped == dropped
    ring.close()


def test_step_is_readable_after_its_end(ring: Ring) -> None:
    ring.writer.write(3, 4)
    ring.writer.write(5)
    assert ring.reader.read() == []
    assert ring.reader.current() == [3, 4, 5]
    ring.writer.next_step()
    assert ring.reader.current() == []
    assert ring.reader.read() == [3, 4, 5]


def test_current_step_excludes_words_of_dropped_steps(ring: Ring) -> None:
    # Given a full ring
    number = 0
    while ring.put(*[7] * 1000) and number < 1000:
        number += 1
    assert number > 10
    # When there is room again, and a step begins where others were dropped
    ring.writer.write(*[9] * 5)
    ring.writer.next_step()
    assert ring.reader.current() == []
    ring.reader.free(ring.reader.at + len(ring.reader.read()))
    ring.writer.next_step()
    ring.writer.write(3)
    # Then it alone is seen
    assert ring.reader.current() == [3]
    # And of a step that grew too large, nothing
    ring.writer.write(*[5] * STEP_WORDS)
    assert ring.reader.current() == []


def test_words_after_a_step_are_kept_when_the_next_step_has_no_space(ring: Ring) -> None:
    # Given steps that are followed by other words, as by a reading of counters
    number = 0
    while not ring.writer.spilled:
        number += 1
        ring.writer.write(*[7] * 1000)
        ring.writer.publish()
        ring.writer.write(8)
        ring.writer.next_step()
    assert ring.reader.read() == ([7] * 1000 + [8]) * number


def test_reader_stops_at_a_word_not_yet_visible_and_continues_later(ring: Ring) -> None:
    ring.writer.write(3, 4, 5)
    ring.writer.words[1] = 0
    ring.writer.next_step()
    assert [ring.reader.read(), ring.reader.read()] == [[3], []]
    ring.writer.words[1] = 4
    assert ring.reader.read() == [4, 5]


@pytest.mark.slow
def test_interrupt_during_a_write_leaves_no_gap(ring: Ring) -> None:
    # Given a step during whose writing Ctrl-C arrives again and again
    script = """
import signal, sys, time
from pathlib import Path
from tests.ring_step import ring_in
ring, armed = ring_in(Path(sys.argv[1])), False
def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
until = time.monotonic() + 0.5
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
while time.monotonic() < until:
    try:
        armed = True
        while ring.at < 20000:
            ring.write(*range(1, 100))
    except KeyboardInterrupt:
        pass
    armed = False
    if 0 in ring.words[:ring.at].tolist():
        sys.exit("a gap")
    if ring.at >= 20000:
        ring.overflow()
        ring.next_step()
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    # Then there is no gap, which no reader would get past
    subprocess.run([sys.executable, "-c", script, ring.path.with_name("other")], check=True)


def test_message_with_any_content_is_read_between_words(ring: Ring) -> None:
    for size in (0, 1, 6, 7, 8, 1000):
        assert ring.writer.put(5, bytes(range(256))[:1] * size)
        ring.writer.next_step()
        words = ring.reader.read()
        assert words == words_of_message(5, b"\0" * size)
        assert 0 not in words
        assert words[0] & 31 == MESSAGE
        assert size_of_message(words[0]) == (5, size, len(words) - 1)
        assert bytes_of_message(size, words[1:]) == b"\0" * size


def test_names_are_read_by_number_including_those_from_before_sharing(tmp_path: Path) -> None:
    writer = RingWriter()
    early = writer.name("early")
    with (tmp_path / "ring").open("xb+") as file:
        writer.share(file.fileno())
        reader = RingReader(file.fileno())
    assert early is not None
    late = writer.name("\N{OWL}" * 20)
    assert late is not None
    assert (reader.name(early), reader.name(late)) == ("early", "\N{OWL}" * 9)
    assert writer.name("early") == early
    more = [writer.name(f"n{number}") for number in range(MAX_NAMES)]
    assert more[-2:] == [None, None]
    last = more[MAX_NAMES - 3]
    assert last == MAX_NAMES - 1
    assert reader.name(last) == f"n{MAX_NAMES - 3}"
    assert [reader.name(number) for number in (-1, MAX_NAMES, 2**60)] == [""] * 3
    reader.close()
    writer.close()


@pytest.mark.parametrize("large", [False, True])
def test_first_step_written_before_sharing_is_kept(tmp_path: Path, large: bool) -> None:
    writer = RingWriter()
    writer.write(3, 4)
    if large:
        writer.write(*[5] * STEP_WORDS)
    with (tmp_path / "ring").open("xb+") as file:
        writer.share(file.fileno())
        reader = RingReader(file.fileno())
    assert writer.next_step() is not large
    writer.write(6)
    writer.next_step()
    assert (reader.read(), reader.dropped) == ([6], 1) if large else ([3, 4, 6], 0)
    reader.close()
    writer.close()


def test_announcement_is_received_once_and_the_last_one_wins(ring: Ring) -> None:
    for number in (1, 2):
        ring.reader.announce(Announcement(number, 100 * number, 3, keep_trace=number == 2))
    acknowledged = [ring.reader.acknowledged]
    assert ring.writer.announcement() == Announcement(2, 200, 3, keep_trace=True)
    acknowledged.append(ring.reader.acknowledged)
    assert acknowledged == [False, True]
    assert [ring.writer.announcement() for _ in range(2)] == [None, None]
    # Announcements of a replacement helper are received too
    ring.replace_reader()
    ring.reader.announce(Announcement(1, 300, 3))
    assert ring.writer.announcement() == Announcement(1, 300, 3)


@pytest.mark.parametrize("word", [GENERATION, NUMBER, FIRST, STEPS, CHECK])
def test_partially_written_announcement_is_not_received(ring: Ring, word: int) -> None:
    ring.reader.announce(Announcement(7, 100, 3))
    # When one of its words is still an old one
    header = ring.writer.header
    whole, header[word] = header[word], 0
    assert ring.writer.announcement() is None
    # Then it is received once it is complete, at a later step
    header[word] = whole
    assert ring.writer.announcement() == Announcement(7, 100, 3)


def test_window_cost_is_separate_from_recorder_cost(ring: Ring) -> None:
    ring.writer.set_cost(5000)
    ring.writer.set_window_cost(3000, 2)
    assert (ring.reader.cost_ns, ring.reader.window_cost_ns, ring.reader.windows) == (5000, 3000, 2)


def test_written_words_survive_sigkill_of_the_writer_inside_a_step(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from tests.ring_step import ring_in\n"
        "ring = ring_in(Path(sys.argv[1]))\n"
        "for number in range(1, 101): ring.write(number, number); ring.next_step()\n"
        "ring.set_cost(1234); ring.write(7); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script, tmp_path / "ring"], check=False)
    assert ended.returncode == -signal.SIGKILL
    with reader_of(tmp_path / "ring") as reader:
        assert reader.read() == [number for number in range(1, 101) for _ in range(2)]
        assert reader.current() == [7]
        assert reader.end is EndState.SILENT
        assert reader.cost_ns > 1234


def test_end_state_and_disabled_reason_are_read(ring: Ring) -> None:
    assert (ring.reader.end, ring.reader.disabled_reason) == (EndState.SILENT, None)
    ring.writer.set_end(EndState.CRASH)
    ring.writer.set_disabled("ä" * 2000)
    assert ring.reader.end is EndState.CRASH
    assert (ring.reader.disabled_reason or "").startswith("ää")


@pytest.mark.parametrize("content", [b"not a ring" * 1000, b"x", b"RSRING02" + bytes(5000), bytes(BYTES)])
def test_foreign_file_is_rejected_as_not_a_ring(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="not a ring"):
        reader_of(tmp_path / "file")


def test_words_kept_by_a_reader_are_read_again_by_its_replacement(ring: Ring) -> None:
    for word in (3, 4, 5):
        ring.put(word, word)
    assert len(ring.reader.read()) == 6
    ring.reader.free(2)
    # The reader itself reads nothing twice
    ring.put(6)
    assert ring.reader.read() == [6]
    ring.replace_reader()
    assert ring.reader.read() == [4, 4, 5, 5, 6]


def test_replacement_reader_continues_after_words_freed_by_a_killed_reader(ring: Ring) -> None:
    for word in (3, 4, 5):
        ring.put(word, word)
    ring.reader.read()
    ring.reader.free(4)
    # When it was killed before it moved the tail
    ring.writer.header[TAIL] = 0
    ring.replace_reader()
    assert ring.reader.read() == [5, 5]
    assert ring.writer.header[TAIL] == 4

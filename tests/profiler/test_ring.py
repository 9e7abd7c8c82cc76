"""Ring: no silent loss, no torn entries, and it survives its writer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.profiler.ring import Announcement, End, RingReader, RingWriter

SLOT = 64
HEAD = 8
GENERATION, NUMBER, FIRST, STEPS, FLAGS, CHECK = range(24, 30)
ROOM = SLOT - 16

Operation = tuple[int, bytes] | int


@given(
    slots=st.integers(1, 5),
    operations=st.lists(st.one_of(st.tuples(st.integers(0, 9), st.binary(max_size=ROOM + 4)), st.integers(1, 6)), max_size=60),
)
def test_entries_come_out_in_order_or_are_counted(
    tmp_path_factory: pytest.TempPathFactory, slots: int, operations: list[Operation]
) -> None:
    path = tmp_path_factory.mktemp("ring") / "ring"
    writer = RingWriter(path, slots=slots, slot_bytes=SLOT)
    reader = RingReader(path)
    expected: deque[tuple[int, bytes]] = deque()
    dropped = 0
    for operation in operations:
        if isinstance(operation, int):
            took = reader.read(operation)
            assert took == [expected.popleft() for _ in range(min(operation, len(expected)))]
        else:
            kind, payload = operation
            fits = len(expected) < slots and len(payload) <= ROOM
            assert writer.put(kind, payload) == fits
            if fits:
                expected.append((kind, payload))
            dropped += not fits
    assert reader.read(1000) == list(expected)
    assert reader.dropped == dropped
    reader.close()
    writer.close()


@pytest.mark.parametrize("how", ["patience", "ended"])
def test_a_slot_that_was_overwritten_in_part_is_waited_for_then_counted_never_believed(tmp_path: Path, how: str) -> None:
    writer = RingWriter(tmp_path / "ring", slots=4, slot_bytes=SLOT)
    writer.put(1, b"first")
    writer.put(1, b"second")
    data = (tmp_path / "ring").read_bytes()
    (tmp_path / "ring").write_bytes(data.replace(b"first", b"fi\0st"))
    with RingReader(tmp_path / "ring", patience_s=0.0 if how == "patience" else 1e9) as reader:
        if how == "ended":
            assert reader.read() == []
            assert reader.dropped == 0
        assert reader.read(ended=how == "ended") == [(1, b"second")]
        assert reader.dropped == 1
    writer.close()


def test_a_head_that_is_ahead_of_its_slots_skips_nothing(tmp_path: Path) -> None:
    # Given a head beyond the last entry, as a half-written head may be
    writer = RingWriter(tmp_path / "ring", slots=4, slot_bytes=SLOT)
    writer.put(1, b"first")
    writer.words[HEAD] = 4
    with RingReader(tmp_path / "ring") as reader:
        # Then a missing entry is not read
        assert reader.read() == [(1, b"first")]
        assert reader.read() == []
        # And once it is there, it is read
        for payload in (b"second", b"third"):
            writer.put(1, payload)
        assert reader.read() == [(1, b"second"), (1, b"third")]
        assert reader.dropped == 0
    writer.close()


def test_an_announcement_is_heard_once_and_the_last_one_counts(tmp_path: Path) -> None:
    writer = RingWriter(tmp_path / "ring", slots=1, slot_bytes=SLOT)
    with RingReader(tmp_path / "ring") as reader:
        for number in (1, 2):
            reader.announce(Announcement(number, 100 * number, 3, keep_trace=number == 2))
        heard = [reader.heard]
        assert writer.news() == Announcement(2, 200, 3, keep_trace=True)
        heard.append(reader.heard)
        assert heard == [False, True]
        assert [writer.news() for _ in range(2)] == [None, None]
    # Announcements of a replacement helper are received too
    with RingReader(tmp_path / "ring") as reader:
        reader.announce(Announcement(1, 300, 3))
        assert writer.news() == Announcement(1, 300, 3)
    writer.close()


@pytest.mark.parametrize("word", [GENERATION, NUMBER, FIRST, STEPS, CHECK])
def test_an_announcement_in_the_middle_of_a_change_is_not_believed(tmp_path: Path, word: int) -> None:
    writer = RingWriter(tmp_path / "ring", slots=1, slot_bytes=SLOT)
    with RingReader(tmp_path / "ring") as reader:
        reader.announce(Announcement(7, 100, 3))
        # When one of its words is still an old one
        whole, writer.words[word] = writer.words[word], 0
        assert writer.news() is None
        # Then it is received once it is complete, at a later step
        writer.words[word] = whole
        assert writer.news() == Announcement(7, 100, 3)
    writer.close()


def test_what_windows_cost_is_told_apart(tmp_path: Path) -> None:
    writer = RingWriter(tmp_path / "ring", slots=1, slot_bytes=SLOT)
    with RingReader(tmp_path / "ring") as reader:
        writer.set_cost(5000)
        writer.set_window_cost(3000, 2)
        assert (reader.cost_ns, reader.window_cost_ns, reader.windows) == (5000, 3000, 2)
    writer.close()


def test_what_was_written_survives_sigkill_of_the_writer(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from rankscope.profiler.ring import RingWriter\n"
        "ring = RingWriter(Path(sys.argv[1]))\n"
        "for number in range(100): ring.put(1, str(number).encode())\n"
        "ring.set_cost(1234); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", script, tmp_path / "ring"], check=False)
    assert ended.returncode == -signal.SIGKILL
    with RingReader(tmp_path / "ring") as reader:
        assert [int(payload) for _, payload in reader.read()] == list(range(100))
        assert reader.end is End.SILENT
        assert reader.cost_ns == 1234


def test_goodbye_and_the_reason_for_silence_are_read(tmp_path: Path) -> None:
    writer = RingWriter(tmp_path / "ring", slots=1, slot_bytes=SLOT)
    with RingReader(tmp_path / "ring") as reader:
        assert (reader.end, reader.disabled_reason) == (End.SILENT, None)
        writer.set_end(End.CRASH)
        writer.set_disabled("ä" * 2000)
        assert reader.end is End.CRASH
        assert (reader.disabled_reason or "").startswith("ää")
    writer.close()


@pytest.mark.parametrize("content", [b"not a ring" * 1000, b"x", b"RSRING02" + bytes(5000)])
def test_another_file_is_no_ring(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="not a ring"):
        RingReader(tmp_path / "file")


def test_a_ring_is_private_and_never_an_existing_file(tmp_path: Path) -> None:
    RingWriter(tmp_path / "ring").close()
    assert (tmp_path / "ring").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        RingWriter(tmp_path / "ring")


def test_what_a_reader_keeps_is_read_again_by_the_one_that_takes_its_place(tmp_path: Path) -> None:
    writer = RingWriter(tmp_path / "ring", slots=4, slot_bytes=SLOT)
    for payload in (b"first", b"second", b"third"):
        writer.put(1, payload)
    with RingReader(tmp_path / "ring") as reader:
        assert len(reader.read(free=False)) == 3
        reader.free(keep=2)
        # The reader itself reads nothing twice, and the slots are not free
        writer.put(1, b"fourth")
        assert reader.read(free=False) == [(1, b"fourth")]
        assert [writer.put(1, b"fifth"), writer.put(1, b"sixth")] == [True, False]
    with RingReader(tmp_path / "ring") as reader:
        assert [payload for _, payload in reader.read()] == [b"second", b"third", b"fourth", b"fifth"]
    writer.close()

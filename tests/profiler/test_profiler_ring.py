"""The ring: nothing is lost silently, nothing torn is believed, and it survives its writer."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.profiler.ring import End, RingReader, RingWriter

SLOT = 64
ROOM = SLOT - 16

Operation = tuple[int, bytes] | int


@given(
    slots=st.integers(1, 5),
    operations=st.lists(st.one_of(st.tuples(st.integers(0, 9), st.binary(max_size=ROOM + 4)), st.integers(1, 6)), max_size=60),
)
@settings(max_examples=150, deadline=None)
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


def test_a_slot_that_was_overwritten_in_part_is_counted_not_believed(tmp_path: Path) -> None:
    writer = RingWriter(tmp_path / "ring", slots=4, slot_bytes=SLOT)
    writer.put(1, b"first")
    writer.put(1, b"second")
    data = (tmp_path / "ring").read_bytes()
    (tmp_path / "ring").write_bytes(data.replace(b"first", b"fi\0st"))
    with RingReader(tmp_path / "ring") as reader:
        assert reader.read() == [(1, b"second")]
        assert reader.dropped == 1
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


@pytest.mark.parametrize("content", [b"not a ring" * 1000, b"x", b"RSRING01" + bytes(5000)])
def test_another_file_is_no_ring(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="not a ring"):
        RingReader(tmp_path / "file")


def test_a_ring_is_private_and_never_an_existing_file(tmp_path: Path) -> None:
    RingWriter(tmp_path / "ring").close()
    assert (tmp_path / "ring").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        RingWriter(tmp_path / "ring")

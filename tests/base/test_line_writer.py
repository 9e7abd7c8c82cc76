"""Lines to a pipe whose reader stalls."""

from __future__ import annotations

import fcntl
import os
import re

from tests.full_pipe import SMALLEST_PIPE, fill_pipe

from rankscope.base.line_writer import LineWriter


def test_lines_are_dropped_and_counted_when_the_pipe_flows_again() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    fill_pipe(writer)
    lines = LineWriter(writer, dropped=lambda count: f"dropped: {count}", max_lines=3)
    for number in range(10):
        lines.write(f"line {number}")

    text = ""
    while "dropped" not in text:
        text += os.read(reader, 65536).decode()

    shown = text.replace("x", "").splitlines()
    kept = [line for line in shown if re.fullmatch(r"line \d", line)]
    assert kept == [f"line {number}" for number in range(len(kept))]
    assert 3 <= len(kept) <= 4  # one may be in the writer when the queue fills
    assert shown[len(kept) :] == [f"dropped: {10 - len(kept)}"]
    lines.write("all is well")
    lines.flush(60)
    assert os.read(reader, 65536) == b"all is well\n"
    os.close(reader)
    os.close(writer)

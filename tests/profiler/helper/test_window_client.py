"""Announced windows as a rank reads them, from a file that other users may be able to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.profiler.helper.plan_lines import line

from rankscope.profiler.helper.coordination.window_client import WindowClient, plan_file


def test_invalid_lines_of_the_plan_are_ignored_and_reported_once(tmp_path: Path) -> None:
    messages = list[str]()
    client = WindowClient(tmp_path, messages.append)
    assert client.read() == []
    # Windows of impossible size or position, more of them than any planner announces, and endless nesting
    many = b"".join(line(first) for first in range(1000, 3000, 10))
    invalid = line(100, 10**9) + line(110, 0) + line(2**60) + b"[" * 5000 + b"\n" + b"\xff\n"
    plan_file(tmp_path).write_bytes(many + invalid + line(500)[:-1])
    assert [window.first for window in client.read()] == list(range(2920, 3000, 10))
    with plan_file(tmp_path).open("ab") as file:
        file.write(b"\n")
    assert [window.first for window in client.read()] == [500]
    assert client.read() == []
    assert len(messages) == 1
    assert str(plan_file(tmp_path)) in messages[0]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_plan_that_is_no_regular_file_is_not_read(tmp_path: Path, kind: str) -> None:
    messages = list[str]()
    (tmp_path / "secret").write_bytes(line(500))
    replace_by(kind, plan_file(tmp_path), tmp_path / "secret")
    client = WindowClient(tmp_path, messages.append)
    assert [client.read() for _ in range(2)] == [[], []]
    assert len(messages) == 1


def replace_by(kind: str, path: Path, target: Path) -> None:
    """Create a link to ``target``, a FIFO or a folder at ``path``."""
    if kind == "link":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()

"""Configuration files of the operator: what is refused, with its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankscope.base.config_files import MAX_BYTES, read_config_text, read_toml
from rankscope.base.errors import InputError


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa = 'b'\n")
    assert read_toml(tmp_path / "file") == {"a": "b"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a = 'b'\nc = \xff", "byte 12: not UTF-8"),
        (b"#" * (MAX_BYTES + 1), "larger than 1 MiB"),
        (b"a = 1\nb = x\nc = 2", "not TOML: .* line 2"),
        (b"a = " + b"[" * 5000, "not TOML"),
        (b'a = [{"b\\u0000" = 1}]', "u0000"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_toml(tmp_path / "file")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(InputError, match="not a regular file"):
        read_config_text(tmp_path / "file")

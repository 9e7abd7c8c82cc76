"""Files that are replaced as a whole, and configuration files: full disks, damage, other users' files, several writers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.full_disk import disk_with_room_for

from rankscope.base.atomic_files import remove_unfinished, replace_file, replacing
from rankscope.base.config_files import MAX_BYTES, read_config_text, read_toml
from rankscope.base.errors import InputError


@pytest.fixture(params=["path", "descriptor"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """``replace_file`` of a file in ``tmp_path``, by path or in the opened folder."""
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY) if request.param == "descriptor" else None

    def call(data: bytes, **options: bool) -> None:
        replace_file("file" if folder is not None else tmp_path / "file", data, folder=folder, **options)

    yield call
    if folder is not None:
        os.close(folder)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_full_disk_keeps_old_content_and_leaves_no_temporary_file(tmp_path: Path, write: Callable[..., None]) -> None:
    write(b"old")
    with disk_with_room_for(4), pytest.raises(OSError, match="File too large"):
        write(b"new and longer")
    assert ((tmp_path / "file").read_bytes(), names(tmp_path)) == (b"old", ["file"])


def test_writer_error_keeps_old_content_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def fail() -> None:
        with replacing(tmp_path / "file") as file:
            file.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ((tmp_path / "file").read_bytes(), names(tmp_path)) == (b"old", ["file"])


@pytest.mark.parametrize(("error", "raises"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_failed_fsync_keeps_the_old_file(
    tmp_path: Path, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch, error: int, raises: bool
) -> None:
    def fail(_: int) -> None:
        raise OSError(error, os.strerror(error))

    write(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    if raises:
        with pytest.raises(OSError, match="Input/output"):
            write(b"new")
    else:  # the filesystem does not support it
        write(b"new")
    assert ((tmp_path / "file").read_bytes(), names(tmp_path)) == (b"old" if raises else b"new", ["file"])
    write(b"newest", sync=False)
    assert (tmp_path / "file").read_bytes() == b"newest"


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_link_or_pipe_at_the_target_is_replaced_and_not_written_to(tmp_path: Path, write: Callable[..., None], kind: str) -> None:
    folder = tmp_path.parent / f"{tmp_path.name}-victim"
    folder.mkdir()
    (folder / "victim").write_bytes(b"mine")
    if kind == "pipe":
        os.mkfifo(tmp_path / "file")
    else:
        (tmp_path / "file").symlink_to(folder / ("victim" if kind == "link" else "nowhere"))
    with pytest.raises(FileExistsError):
        write(b"new", overwrite=False)
    write(b"new")
    assert ((folder / "victim").read_bytes(), names(folder)) == (b"mine", ["victim"])
    assert (tmp_path / "file").is_file()
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("links", [True, False])
def test_one_of_several_concurrent_first_writers_wins(
    tmp_path: Path, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    won: list[bytes] = []

    def compete(data: bytes) -> None:
        try:
            write(data, overwrite=False)
        except FileExistsError:
            return
        won.append(data)

    threads = [threading.Thread(target=compete, args=(b"%d" % number * 1000,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (won, names(tmp_path)) == ([(tmp_path / "file").read_bytes()], ["file"])


def test_file_mode_is_private_or_derived_from_the_folder(tmp_path: Path, write: Callable[..., None]) -> None:
    mask = os.umask(0o077)
    try:
        tmp_path.chmod(0o750)
        write(b"new")
        private = (tmp_path / "file").stat().st_mode & 0o777
        write(b"new", shared=True)
        shared = (tmp_path / "file").stat().st_mode & 0o777
    finally:
        os.umask(mask)
    assert (oct(private), oct(shared)) == ("0o600", "0o640")


def test_only_temporary_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    pid = os.fork()
    if pid == 0:
        with replacing(tmp_path / "file"):
            os._exit(9)
    os.waitpid(pid, 0)
    (tmp_path / ".file.7-0123456789ab").symlink_to(target)
    others = [".file", ".file.bak", ".file.7-0123456789ab.old", ".files.7-0123456789ab", "elsewhere", "file"]
    for name in others[:-2]:
        (tmp_path / name).touch()
    (tmp_path / ".file.8-0123456789ab").mkdir()  # not a file of a writer: another user's folder
    replace_file(tmp_path / "file", b"new")
    assert len(names(tmp_path)) == len(others) + 3
    remove_unfinished(tmp_path / "file")
    assert names(tmp_path) == sorted([*others, ".file.8-0123456789ab"])
    assert target.read_bytes() == b"precious"


def test_cleanup_of_a_missing_folder_is_harmless(tmp_path: Path) -> None:
    remove_unfinished(tmp_path / "missing" / "file")


# Configuration files


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
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
def test_damaged_toml_is_rejected_with_position_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_toml(tmp_path / "file")


def test_pipe_is_rejected_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(InputError, match="not a regular file"):
        read_config_text(tmp_path / "file")

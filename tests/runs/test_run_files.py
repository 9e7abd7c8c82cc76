"""Opening the files of a run: no link is followed, nothing blocks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.base.errors import InputError
from rankscope.runs import run_files
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import RunInfo
from rankscope.runs.run_files import confine, list_run_folder, open_run_file, real_run
from rankscope.runs.small_files import create_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Run with one file per rank folder, and the same beside it."""
    for name in ("own", "other"):
        create_run(tmp_path / name, RunInfo(run_id=name, name=name, start_unix_ns=1))
        folder = rank_dir(tmp_path / name, 0, 3)
        (folder / "traces").mkdir(parents=True)
        (folder / "traces" / "t.json").write_text(name)
    return tmp_path / "own"


@pytest.fixture
def _unconfined() -> Iterator[None]:
    yield
    run_files._permitted = frozenset()


@pytest.mark.parametrize("place", ["attempts", "attempts/000", "attempts/000/ranks", "attempts/000/ranks/00003/traces"])
def test_linked_folder_in_a_run_is_not_followed(run: Path, place: str) -> None:
    file = rank_dir(run, 0, 3) / "traces" / "t.json"
    with open_run_file(file) as opened:
        assert opened.read() == b"own"
    (run / place).rename(run / "aside")
    (run / place).symlink_to(run.parent / "other" / place)

    assert file.read_text() == "other", "the link works"
    with pytest.raises(OSError, match="symbolic link"):
        open_run_file(file)
    with pytest.raises(OSError, match="symbolic link"):
        list_run_folder(file.parent)


def test_linked_file_is_not_followed_even_within_the_run(run: Path) -> None:
    file = rank_dir(run, 0, 3) / "traces" / "t.json"
    (file.parent / "again.json").symlink_to(file)
    with pytest.raises(OSError, match="symbolic link") as raised:
        open_run_file(file.parent / "again.json")
    assert raised.value.errno == errno.ELOOP
    assert raised.value.filename == os.fspath(file.parent / "again.json")


def test_pipe_is_refused_without_blocking(run: Path) -> None:
    os.mkfifo(run / "pipe.json")
    with pytest.raises(OSError, match="not a regular file"):
        open_run_file(run / "pipe.json")


def test_run_directory_itself_may_be_reached_through_links(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.parent / "home").symlink_to(run.parent)
    assert RunReader(run.parent / "home" / "own").ranks(0) == [3]
    monkeypatch.chdir(run.parent)
    assert RunReader(Path("own")).path == Path("own"), "messages have the path as it was given"
    assert RunReader(Path("other/../own")).ranks(0) == [3]
    with pytest.raises(InputError, match="symbolic link"):
        RunReader(run.parent / "home" / "own", links=False)


@pytest.mark.usefixtures("_unconfined")
def test_confined_process_can_read_no_other_run(run: Path) -> None:
    confine([run])
    assert RunReader(run).info.run_id == "own"
    run.rename(run.parent / "aside")
    run.symlink_to("other")
    for other in (run, run.parent / "other"):
        with pytest.raises(InputError, match="symbolic link"):
            real_run(other)


def test_concurrently_replaced_file_is_read(run: Path) -> None:
    file, ended = run / "rank.json", threading.Event()
    file.write_text("1")

    def replace() -> None:
        while not ended.is_set():
            (run / "new.json").write_text("1")
            (run / "new.json").replace(file)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(500):
            with open_run_file(file) as opened:
                assert opened.read() == b"1"
    finally:
        ended.set()
        thread.join()

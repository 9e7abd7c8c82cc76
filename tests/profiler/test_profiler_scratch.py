"""Folders on local memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rankscope.profiler import scratch


def test_a_scratch_folder_is_private_and_in_the_launchers_where_that_is(tmp_path: Path) -> None:
    inside = scratch.make_scratch("rank0", str(tmp_path))
    assert inside.parent == tmp_path
    assert inside.stat().st_mode & 0o077 == 0
    elsewhere = scratch.make_scratch("rank0", str(tmp_path / "on-another-node"))
    try:
        assert elsewhere.parent != tmp_path
        assert elsewhere.is_dir()
    finally:
        elsewhere.rmdir()


@pytest.fixture
def nothing_else_to_sweep(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setattr(scratch, "LOCAL_MEMORY", empty)
    monkeypatch.setattr(tempfile, "tempdir", str(empty))


@pytest.mark.usefixtures("nothing_else_to_sweep")
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_only_old_folders_that_nobody_holds_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    prefix = f"rankscope-{os.getuid()}-"
    held, left, young, foreign = (
        tmp_path / name for name in (f"{prefix}held", f"{prefix}left", f"{prefix}young", "rankscope-x-1")
    )
    for folder in (held, left, young, foreign):
        (folder / "rank0").mkdir(parents=True)
        os.close(scratch.hold(folder / "rank0"))
        if folder != young:
            os.utime(folder, (0, 0))
    handle = scratch.hold(held / "rank0")
    assert (scratch.is_left(held / "rank0"), scratch.is_left(left / "rank0"), scratch.is_left(tmp_path)) == (False, True, False)
    if place == "memory":
        monkeypatch.setattr(scratch, "LOCAL_MEMORY", tmp_path)
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scratch.sweep()
    assert set(tmp_path.iterdir()) == {held, young, foreign}
    # The lock goes with its holder, however that ends.
    os.close(handle)
    scratch.sweep()
    assert set(tmp_path.iterdir()) == {young, foreign}


def test_a_trace_goes_to_disk_where_memory_is_short_and_nowhere_where_both_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert scratch.trace_folder(tmp_path) == tmp_path
    room = {tmp_path: 0}
    monkeypatch.setattr(scratch, "_free", lambda folder: room.get(folder, 10**12))
    folder = scratch.trace_folder(tmp_path)
    assert folder is not None
    assert folder != tmp_path
    (folder / "trace.json").touch()
    scratch.remove_trace(folder / "trace.json", tmp_path)
    assert not folder.exists()
    monkeypatch.setattr(scratch, "_free", lambda _folder: 0)
    assert scratch.trace_folder(tmp_path) is None

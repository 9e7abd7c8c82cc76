"""Snapshots of GPU memory: when they are written and what happens if they cannot be; torch's interface to CUDA is replaced."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("require_torch")

OutOfMemory = Callable[[int, int, int, int], None]


@pytest.fixture
def observers(monkeypatch: pytest.MonkeyPatch) -> list[OutOfMemory]:
    """Observers of errors of the allocator that have been attached; CUDA counts as in use."""
    import torch

    attached: list[OutOfMemory] = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [len(attached)]})
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attached.append, raising=False)
    return attached


def test_a_rank_that_runs_out_of_memory_leaves_a_snapshot(
    tmp_path: Path, observers: list[OutOfMemory], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rankscope.profiler.rank.gpu import memory_snapshot

    monkeypatch.setenv("RANK", "3")
    memory_snapshot.record_memory(str(tmp_path / "run"))
    (out_of_memory,) = observers
    assert not (tmp_path / "run").exists()
    out_of_memory(0, 1 << 30, 2 << 30, 1 << 20)
    (file,) = (tmp_path / "run" / "memory").iterdir()
    assert file.name.startswith("rank-00003-")
    assert pickle.loads(file.read_bytes()) == {"segments": [1]}
    # A script that catches the error and tries again does not write each time.
    file.unlink()
    out_of_memory(0, 1 << 30, 2 << 30, 1 << 20)
    assert not file.exists()
    monkeypatch.setattr(memory_snapshot, "INTERVAL_SECONDS", 0.0)
    out_of_memory(0, 1 << 30, 2 << 30, 1 << 20)
    assert file.exists()
    assert capsys.readouterr().err == ""


def test_an_unwritable_snapshot_does_not_hide_the_scripts_own_error(
    tmp_path: Path, observers: list[OutOfMemory], capsys: pytest.CaptureFixture[str]
) -> None:
    from rankscope.profiler.rank.gpu.memory_snapshot import record_memory

    (tmp_path / "file").touch()
    record_memory(str(tmp_path / "file"))
    observers[0](0, 1, 1, 0)
    assert "no snapshot of GPU memory: NotADirectoryError" in capsys.readouterr().err


def test_a_link_of_another_user_is_not_written_through(tmp_path: Path, observers: list[OutOfMemory]) -> None:
    from rankscope.profiler.rank.gpu.memory_snapshot import record_memory

    folder, target = tmp_path / "memory", tmp_path / "target"
    folder.mkdir()
    target.write_bytes(b"precious")
    for name in (f"rank-00000-{os.getpid()}.pickle", f".rank-00000-{os.getpid()}.pickle"):
        (folder / name).symlink_to(target)
    record_memory(str(tmp_path))
    observers[0](0, 1, 1, 0)
    assert target.read_bytes() == b"precious"
    assert not (folder / f"rank-00000-{os.getpid()}.pickle").is_symlink()


def test_a_torch_that_cannot_record_memory_trains_on(
    tmp_path: Path, observers: list[OutOfMemory], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from rankscope.profiler.rank.gpu.memory_snapshot import record_memory

    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    record_memory(str(tmp_path))
    assert observers == []
    assert "GPU memory is not recorded: AttributeError" in capsys.readouterr().err

"""Functions that write checkpoints are found when the script imports them, and not before."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rankscope.profiler.rank.wrappers import checkpoints  # noqa: E402  # torch may be missing


class Told:
    """Recorder that counts checkpoints."""

    written = 0

    def enter_checkpoint(self) -> bool:
        return True

    def leave_checkpoint(self) -> None:
        self.written += 1


def test_looking_for_a_module_is_not_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saves_things.py").write_text("def save(): return 'saved'")
    monkeypatch.syspath_prepend(tmp_path)
    recorder = Told()
    finder = checkpoints._Finder({"saves_things": ("save",)}, lambda: recorder)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.util.find_spec("saves_things") is not None
    assert importlib.util.find_spec("saves_things") is not None
    try:
        assert importlib.import_module("saves_things").save() == "saved"
    finally:
        sys.modules.pop("saves_things", None)
    assert recorder.written == 1


def test_pickling_a_tensor_is_no_checkpoint(tmp_path: Path) -> None:
    # As object collectives, Ray and joblib do
    recorder = Told()
    save = checkpoints._reported(torch.serialization.save, lambda: recorder)
    saved_by = torch.storage.UntypedStorage.__reduce__.__globals__["torch"]
    original, saved_by.save = saved_by.save, save
    try:
        assert torch.equal(pickle.loads(pickle.dumps(torch.ones(3))), torch.ones(3))
        assert recorder.written == 0
        torch.save({"weights": torch.ones(3)}, tmp_path / "model.pt")
        assert recorder.written == 1
    finally:
        saved_by.save = original

"""Input that may not be read: the verbs find out by reading it, and say so in their own way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rankscope.cli.main import main

VERBS = {
    "hang": [],
    "compare": ["--at", "5"],
    "whatif": [],
    "export": ["--perfetto", "-"],
    "capture": [],
    "compact": [],
}


@pytest.mark.parametrize("verb", VERBS)
def test_whether_a_path_can_be_read_is_not_asked_beforehand(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a filesystem that denies to this user what is asked for
    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)
    monkeypatch.setattr(sys, "argv", ["rankscope", verb, str(tmp_path), *VERBS[verb]])
    with pytest.raises(SystemExit) as left:
        main()
    # Then what the folder holds, or what the system says of it, decides
    said = capsys.readouterr().err
    assert (left.value.code, said.count("\n")) == (3, 1)
    assert said.startswith(f"rankscope: {tmp_path}")

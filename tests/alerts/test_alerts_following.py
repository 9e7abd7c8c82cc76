"""Runs that go on are followed; what is over is not kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankscope.alerts.following import Following
from rankscope.analysis.run_analysis import analyze_run
from rankscope.runs import segments
from rankscope.runs.errors import InputError


def test_a_run_that_grows_is_read_on_from_where_it_was(make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = segments.read_blocks

    def counting(file: Any) -> Any:
        for lines, length in original(file):
            sizes.append(length)
            yield lines, length

    monkeypatch.setattr("rankscope.runs.follow.read_blocks", counting)
    run = make_run()
    following = Following()
    assert following.update(run.path) == analyze_run(run.path)
    first, sizes[:] = sum(sizes), []
    run.grow(5)
    assert following.update(run.path) == analyze_run(run.path)
    assert 0 < sum(sizes) < first / 2
    # Until it is not kept any more: then it is new.
    sizes.clear()
    following.keep([run.path])
    following.update(run.path)
    assert sum(sizes) == 0
    following.keep([])
    following.update(run.path)
    assert sum(sizes) > first


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run directory"):
        Following().update(tmp_path)

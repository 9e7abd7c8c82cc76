"""Session of a rank: its shared memory, and its helper as a real process."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.profiler.recorded_runs import info_of

pytest.importorskip("torch")

from tests.profiler.handovers import handover_of
from tests.ring_step import put_step
from tests.waiting import wait_until

from rankscope.profiler.handover import RING_FILE
from rankscope.profiler.rank.session import Session
from rankscope.profiler.ring import BYTES, EndState, RingWriter
from rankscope.profiler.scratch import is_abandoned, spooled_before
from rankscope.profiler.settings import SITE_FOLDER
from rankscope.runs.reader import RunReader

pytestmark = pytest.mark.slow  # each starts real processes


@pytest.mark.parametrize("end", [EndState.EXIT, EndState.SILENT])
def test_replacement_helper_completes_the_record_of_a_killed_helper(tmp_path: Path, end: EndState) -> None:
    # Given a rank whose helper is killed while it works
    (tmp_path / "spool").mkdir()
    session = Session(handover_of(tmp_path / "run", spool=tmp_path / "spool"), str(tmp_path), RingWriter())
    put_step(session.ring, 0)
    wait_until(lambda: spooled_before(session.scratch))
    session._helper.kill()
    wait_until(session.helper_ended)
    put_step(session.ring, 1)
    # When another takes its place, the folder never looks abandoned
    session.replace_helper()
    assert not is_abandoned(session.scratch)
    assert not session.helper_ended()
    put_step(session.ring, 2)
    session.ring.set_end(end)
    session.close()
    # Then nothing is missing
    wait_until(lambda: not session.scratch.exists())
    run = RunReader(tmp_path / "run")
    assert [row.step for row in run.steps(0, 0)] == [0, 1, 2]
    info = info_of(run)
    assert info.end_reason == {EndState.EXIT: "exit", EndState.SILENT: "killed"}[end]
    assert any((tmp_path / "spool").iterdir()) == (end is EndState.SILENT)


def test_ring_memory_has_a_fixed_size_and_is_not_inherited(tmp_path: Path) -> None:
    session = Session(handover_of(tmp_path / "run"), str(tmp_path), RingWriter())
    assert session.memory is not None
    for size in (0, 2 * BYTES):
        with pytest.raises(PermissionError):
            os.truncate(session.memory, size)
    child = "import os; print([name for name in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{name}')])"
    inherited = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, close_fds=False)
    assert str(session.memory) not in ast.literal_eval(inherited.stdout)
    session.close()
    wait_until(lambda: not session.scratch.exists())


@pytest.mark.parametrize("refused", [1, 2])
def test_ring_works_without_memory_seals_or_memfd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    # Given an older kernel, which does not know one flag, or a sandbox that forbids the call
    calls, make = list[int](), os.memfd_create

    def refuse(name: str, flags: int) -> int:
        calls.append(flags)
        if len(calls) <= refused:
            raise OSError(errno.EINVAL, "Invalid argument")
        return make(name, flags)

    monkeypatch.setattr(os, "memfd_create", refuse)
    session = Session(handover_of(tmp_path / "run"), str(tmp_path), RingWriter())
    assert (session.scratch / RING_FILE).exists() == (refused == 2)
    put_step(session.ring, 0)
    session.ring.set_end(EndState.EXIT)
    session.close()
    wait_until(lambda: not session.scratch.exists())
    assert [row.step for row in RunReader(tmp_path / "run").steps(0, 0)] == [0]


def test_helper_of_an_attached_rank_does_not_attach_to_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE_FOLDER), *sys.path]))
    session = Session(handover_of(tmp_path / "run"), str(tmp_path), RingWriter())
    environment = Path(f"/proc/{session._helper.pid}/environ")
    wait_until(lambda: environment.read_bytes() != b"")  # empty for a moment, while the program is being loaded
    path = next(item for item in environment.read_bytes().split(b"\0") if item.startswith(b"PYTHONPATH="))
    assert os.fsencode(SITE_FOLDER) not in path.removeprefix(b"PYTHONPATH=").split(b":")
    session.close()
    wait_until(lambda: not session.scratch.exists())


def test_process_with_many_recordings_keeps_at_most_one_zombie(tmp_path: Path) -> None:
    helpers = list[Path]()
    for fit in range(3):
        session = Session(handover_of(tmp_path / f"run-{fit}"), str(tmp_path), RingWriter())
        # The helpers of the earlier fits have been waited for.
        assert not any(helper.exists() for helper in helpers)
        session.ring.set_end(EndState.EXIT)
        session.close()
        helpers.append(Path(f"/proc/{session._helper.pid}"))
        wait_until(partial(_is_zombie, helpers[-1]))


def _is_zombie(process: Path) -> bool:
    return ") Z " in (process / "stat").read_text()

"""Host lock: its holder, its next holder, and its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.base.locks import try_lock
from rankscope.profiler.helper.sampling import host_lock
from rankscope.profiler.helper.sampling.host_lock import HostLock


def test_one_holder_at_a_time_and_the_last_to_leave_leaves_nothing(tmp_path: Path) -> None:
    first, second, other = HostLock("run", base=tmp_path), HostLock("run", base=tmp_path), HostLock("other", base=tmp_path)
    assert [lock.take() for lock in (first, second, other)] == [True, False, True]
    assert [lock.is_held() for lock in (first, second, other)] == [True, False, True]
    first.leave()
    assert second.take()
    second.release()
    assert first.take(), "also one that has left may come back"
    first.leave()
    second.leave()
    other.leave()
    assert list(tmp_path.iterdir()) == []


def test_whoever_holds_a_lock_that_was_removed_holds_it_no_more(tmp_path: Path) -> None:
    first, second = HostLock("run", base=tmp_path), HostLock("run", base=tmp_path)
    assert first.take()
    next(tmp_path.glob("*/lock")).unlink()
    assert not first.is_held()
    assert second.take()
    first.leave()
    assert second.is_held(), "what the new holder has is not the old one's to remove"


def test_a_lock_that_is_removed_while_it_is_taken_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = HostLock("run", base=tmp_path)

    def late(handle: int, *, shared: bool = False) -> bool:
        for file in tmp_path.glob("*/lock"):
            file.unlink()  # as the last holder does on exit
        return try_lock(handle, shared=shared)

    with monkeypatch.context() as patch:
        patch.setattr(host_lock, "try_lock", late)
        assert not lock.take()
    assert lock.take()


def test_a_word_stays_until_the_last_has_left(tmp_path: Path) -> None:
    first, second = HostLock("run", base=tmp_path), HostLock("run", base=tmp_path)
    assert [first.take(), second.take()] == [True, False]
    assert (first.note(b"absent"), first.note(b"absent"), first.note(b"other")) == (True, False, True)
    first.leave()
    assert second.take()
    assert not second.note(b"absent")
    second.leave()
    assert first.take()
    assert first.note(b"absent")


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_place_that_is_not_ours_is_refused(tmp_path: Path, kind: str) -> None:
    lock = HostLock("run", base=tmp_path)
    if kind == "file":
        lock._folder.touch()
    else:
        lock._folder.symlink_to("/tmp")
    with pytest.raises(PermissionError, match="not a folder of this user"):
        lock.take()

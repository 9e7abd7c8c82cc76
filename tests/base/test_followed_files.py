"""Files that are followed: changes, unusable versions, and file systems that hang."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import wait_in_loop

from rankscope.base import followed_files
from rankscope.base.followed_files import FollowedFiles, ReloadThread, SharedReading


@pytest.fixture(autouse=True)
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_files, "LOOK_EVERY_S", 0)


def test_changed_files_are_read_again_unless_the_new_version_is_unusable(tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_text("1")
    changed: list[int] = []
    failed: list[Exception] = []
    followed = FollowedFiles(lambda: (int(file.read_text()), [file]), changed=changed.append, failed=failed.append)

    async def story() -> None:
        assert (await followed.get(), changed) == (1, [])
        file.write_text("nonsense")
        assert await followed.get() == 1
        assert [type(error) for error in failed] == [ValueError]
        file.unlink()
        assert await followed.get() == 1
        file.write_text("23")
        assert [await followed.get(), await followed.get()] == [23, 23]
        assert changed == [23]

    asyncio.run(story())


def test_referenced_file_is_read_once_created(tmp_path: Path) -> None:
    config, first, second = (tmp_path / name for name in ("config", "first", "second"))
    config.write_text("first")
    first.write_text("1")

    def read() -> tuple[int, list[Path]]:
        named = tmp_path / config.read_text()
        return int(named.read_text()), [config, named]

    followed = FollowedFiles(read, changed=lambda _: None, failed=lambda _: None)

    async def story() -> None:
        config.write_text("second")
        assert await followed.get() == 1
        second.write_text("2")
        assert await followed.get() == 2
        second.write_text("33")
        assert await followed.get() == 33

    asyncio.run(story())


def test_hanging_file_system_delays_only_the_first_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_files, "PATIENCE_S", 0.05)
    file = tmp_path / "number"
    file.write_text("1")
    answers = threading.Event()
    answers.set()
    threads: list[str] = []

    def read() -> tuple[int, list[Path]]:
        threads.append(threading.current_thread().name)
        answers.wait(60)
        return int(file.read_text()), [file]

    followed = FollowedFiles(read, changed=lambda _: None, failed=lambda _: None)

    async def story() -> None:
        file.write_text("22")
        answers.clear()
        ticks = asyncio.create_task(asyncio.sleep(0.01))
        assert list(await asyncio.gather(followed.get(), followed.get())) == [1, 1]
        assert ticks.done()  # the loop went on meanwhile
        # A reading that began longer ago than the patience is waited for by none; a new patience would outlast this test.
        monkeypatch.setattr(followed_files, "PATIENCE_S", 3600.0)
        followed._look._began_s -= 3600
        assert [await followed.get() for _ in range(20)] == [1] * 20
        answers.set()
        await wait_in_loop(lambda: followed.value == 22)
        assert await followed.get() == 22

    asyncio.run(story())
    assert len(threads) == 2
    assert threading.current_thread().name not in threads[1:]


def test_no_reload_thread_starts_without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = FollowedFiles(lambda: (1, ()), changed=lambda _: None, failed=lambda _: None)
    monkeypatch.setattr(threading, "Thread", None)
    assert asyncio.run(followed.get()) == 1


def test_hanging_read_does_not_block_process_exit() -> None:
    script = (
        "import asyncio, threading\n"
        "from rankscope.base import followed_files\n"
        "followed_files.PATIENCE_S = 0\n"
        "hang = threading.Event().wait\n"
        "followed_files.ReloadThread(hang).request()\n"
        "asyncio.run(followed_files.SharedReading(hang).run())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_concurrent_readers_share_one_read() -> None:
    reads: list[int] = []

    async def story() -> None:
        reading = SharedReading(lambda: reads.append(1))
        await asyncio.gather(reading.run(), reading.run())
        assert reads == [1]
        await reading.run()
        assert reads == [1, 1]

    asyncio.run(story())


def test_requests_during_a_reload_cause_one_more_reload() -> None:
    began, goes_on, ended = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    reloads: list[int] = []

    def reload() -> None:
        reloads.append(1)
        began.release()
        goes_on.acquire(timeout=60)
        if len(reloads) == 2:
            ended.set()

    thread = ReloadThread(reload)
    thread.request()
    assert began.acquire(timeout=60)
    for _ in range(5):
        thread.request()
    goes_on.release(2)
    assert ended.wait(60)
    assert not began.acquire(timeout=0.05) or len(reloads) == 2

"""Bounds on one user's files, to protect the others: number of files, names, bytes and series."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.exporter.spool.spool_files import GOOD, INFO, LABELS, R1, R2, spool_of

from rankscope.exporter.spool.file import MAX_BYTES
from rankscope.exporter.spool.reading import MAX_BYTES_OF_USER, MAX_FILES, MAX_FILES_OF_USER, MAX_SERIES_OF_USER


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES_OF_USER + 5):
        (tmp_path / f"{number:06d}.prom").write_bytes(b"")

    sample = spool_of(tmp_path).read()

    assert sample.rejected == {"too_many_files": 5, "empty": MAX_FILES_OF_USER}


def test_listing_of_a_huge_folder_is_bounded_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.exporter.spool.reading.MAX_NAMES", 20)
    for number in range(30):
        (tmp_path / f"{number}.txt").write_bytes(b"")

    assert spool_of(tmp_path).read().rejected == {"too_many_files": 1}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
@pytest.mark.parametrize(("users", "too_many"), [(1, MAX_FILES - MAX_FILES_OF_USER), (2, 1)])
def test_users_with_too_many_files_do_not_affect_other_users(tmp_path: Path, users: int, too_many: int) -> None:
    for number in range(MAX_FILES):
        (tmp_path / f"{number}.prom").write_bytes(b"")
        os.chown(tmp_path / f"{number}.prom", 1001 + number % users, 1001)
    (tmp_path / "mine.prom").write_text(GOOD)
    os.utime(tmp_path / "mine.prom", (time.time() - 100,) * 2)

    sample = spool_of(tmp_path).read()

    assert sample.states == {R1: "running"}
    assert sample.rejected == {"too_many_files": too_many, "empty": MAX_FILES - too_many}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_many_files_hide_neither_known_ranks_nor_other_users(tmp_path: Path) -> None:
    (tmp_path / "known.prom").write_text(GOOD)
    spool = spool_of(tmp_path)
    spool.read()
    for number in range(8200):
        os.mknod(tmp_path / f"{number}.junk")
        os.mknod(tmp_path / f"{number}.prom")
        os.chown(tmp_path / f"{number}.prom", 1001, 1001)
    (tmp_path / "new.prom").write_text(GOOD.replace("r1", "r2"))

    sample = spool.read()

    assert sample.states == {R1: "running", R2: "running"}
    assert sample.rejected == {"too_many_files": 8200 - MAX_FILES_OF_USER, "empty": MAX_FILES_OF_USER}


def test_known_ranks_stay_if_the_listing_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "known.prom").write_text(GOOD)
    spool = spool_of(tmp_path)
    spool.read()

    monkeypatch.setattr("rankscope.exporter.spool.reading.MAX_NAMES", 0)

    for _ in range(2):
        sample = spool.read()
        assert sample.states == {R1: "running"}
        assert sample.rejected == {"too_many_files": 1}
    assert spool_of(tmp_path).read().states == {}


def test_user_over_the_byte_limit_loses_the_oldest_files(tmp_path: Path) -> None:
    fits = MAX_BYTES_OF_USER // MAX_BYTES
    for number in range(fits + 3):
        (tmp_path / f"{number}.prom").write_text("#\n" + "#" * 3000 + "\n")
        os.truncate(tmp_path / f"{number}.prom", MAX_BYTES)

    assert spool_of(tmp_path).read().rejected == {"too_many_files": 3, "not_prometheus_text": fits}


def test_user_over_the_series_limit_loses_the_oldest_files(tmp_path: Path) -> None:
    per_file = 100
    text = "".join(f'rank_x{{{LABELS},l="{number}"}} 1\n' for number in range(per_file - 1))
    files = MAX_SERIES_OF_USER // per_file + 2
    for number in range(files):
        file = tmp_path / f"{number}.prom"
        file.write_text(f"{INFO}# TYPE rank_x gauge\n{text}")
        os.utime(file, (1000 + number, 1000 + number))
    freshest = tmp_path / f"{files - 1}.prom"
    freshest.write_text(GOOD.replace("r1", "r2"))
    os.utime(freshest, (1500, 1500))

    sample = spool_of(tmp_path, now=lambda: 1600.0, stale_s=1000.0).read()

    assert sample.rejected == {"too_many_files": 1}
    assert sample.states[R2] == "running"


def test_file_at_the_size_limit_is_read_and_a_larger_file_is_refused(tmp_path: Path) -> None:
    padding = "".join(f"# {'x' * 997}\n" for _ in range(MAX_BYTES // 1000 + 1))
    at_limit = GOOD + padding[: MAX_BYTES - len(GOOD) - 1] + "\n"
    (tmp_path / "a.prom").write_text(at_limit)
    assert spool_of(tmp_path).read().ok_files == 1

    (tmp_path / "a.prom").write_text(at_limit + "\n")

    assert spool_of(tmp_path).read().rejected == {"too_large": 1}

"""Rejected files by name: in the log once, and in the sample, both in limits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.exporter.spool.spool_files import GOOD, gauge, spool_of

from rankscope.exporter.spool.file import parse
from rankscope.exporter.spool.rejections import MAX_LINES_PER_HOUR, MAX_NAMED, RejectedFile, RejectionLog
from rankscope.exporter.spool.series import SpoolContent


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """Return file, uid and reason of each logged file since the last call."""
    logged = [vars(record) for record in caplog.records if "file" in vars(record)]
    caplog.clear()
    return [(fields["file"], fields["uid"], fields["reason"]) for fields in logged]


def test_each_file_is_named_once_for_each_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool, me = spool_of(tmp_path), os.getuid()
    (tmp_path / "good.prom").write_text(GOOD)
    file = tmp_path / "bad.prom"
    file.write_bytes(gauge(name="node_load1"))

    samples = [spool.read() for _ in range(3)]

    assert [sample.rejected_files for sample in samples] == [(("bad.prom", me, "wrong_name"),)] * 3
    assert lines(caplog) == [("bad.prom", me, "wrong_name")]

    file.write_bytes(b"\xff")
    spool.read()
    assert lines(caplog) == [("bad.prom", me, "not_utf8")]

    file.write_text(GOOD.replace("r1", "r2"))
    assert spool.read().rejected_files == ()
    file.write_bytes(b"\xff")
    spool.read()
    assert lines(caplog) == [("bad.prom", me, "not_utf8")]


def test_an_unforeseen_error_costs_the_file_that_causes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.prom").write_text(GOOD)
    (tmp_path / "odd.prom").write_text(GOOD.replace("r1", "odd"))

    def parse_or_fail(content: bytes) -> SpoolContent:
        if b"odd" in content:
            raise ZeroDivisionError
        return parse(content)

    monkeypatch.setattr("rankscope.exporter.spool.reading.parse", parse_or_fail)

    sample = spool_of(tmp_path).read()

    assert (sample.ok_files, sample.rejected) == (1, {"exporter_defect": 1})


def test_many_rejected_files_fill_neither_log_nor_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    spool = spool_of(tmp_path, monotonic=lambda: now_s[0])
    for reading in range(5):
        for number in range(40):
            (tmp_path / f"{reading}-{number}.prom").write_bytes(b"\xff")
        sample = spool.read()

    assert len(sample.rejected_files) == MAX_NAMED
    assert sample.rejected == {"not_utf8": 200}
    assert len(caplog.records) == MAX_LINES_PER_HOUR + 1
    assert len(lines(caplog)) == MAX_LINES_PER_HOUR

    now_s[0] = 3601.0
    (tmp_path / "late.prom").write_bytes(b"\xff")
    spool.read()
    assert "late.prom" in {name for name, *_ in lines(caplog)}


def test_the_limit_of_lines_is_of_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    log = RejectionLog(lambda: now_s[0])
    for minute in range(180):
        now_s[0] = 60.0 * minute
        log.report([RejectedFile(f"{minute}.prom", 1, "empty")])

    assert len(lines(caplog)) == 3 * MAX_LINES_PER_HOUR

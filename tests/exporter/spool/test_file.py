"""One spool file: read completely, or rejected with the reason, which is logged once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporter.spool.spool_files import GOOD, INFO, LABELS, gauge, spool_of
from tests.rank_file import rank_text

from rankscope.exporter.spool.file import MAX_BYTES, MAX_SERIES, parse
from rankscope.exporter.spool.incremental_parse import SpoolTemplate
from rankscope.exporter.spool.rejections import MAX_LINES_PER_HOUR, MAX_NAMED, RejectedFile, RejectionLog
from rankscope.exporter.spool.series import RejectedError, SpoolContent


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"rank_x{" + LABELS.encode() + b"} 1\n", "wrong_type"),
        (gauge(name="rank_x_total"), "wrong_type"),
        (f"# TYPE rank_h histogram\nrank_h_sum{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (gauge() + f"# TYPE rank_x_total counter\nrank_x_total{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (gauge('run="r1",slot="0"'), "no_identity"),
        (gauge('run="",rank="1",slot="0"'), "no_identity"),
        (gauge('run="r1",rank="one",slot="0"'), "no_identity"),
        (gauge('run="r1",rank="1"'), "no_identity"),
        (gauge('run="r1",rank="1",slot="00"'), "no_identity"),
        (gauge(), "no_identity"),
        (gauge() + INFO.replace("id-r1", "").encode(), "no_identity"),
        (gauge() + (INFO + INFO.partition("\n")[2].replace("id-r1", "id-r2")).encode(), "no_identity"),
        (gauge() + gauge('run="r1",rank="4",slot="0"', name="rank_y"), "several_ranks"),
        (gauge() + gauge('run="r1",rank="3",slot="1"', name="rank_y"), "several_ranks"),
        (INFO.encode() + gauge() + gauge().partition(b"\n")[2], "repeated_series"),
        (gauge(name="rank_x_duration_seconds"), "wrong_type"),
        (gauge(name="rank_x_count"), "wrong_type"),
        (f"# TYPE rank_x_sum_total counter\nrank_x_sum_total{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (f"# TYPE rank_x_duration_seconds_total counter\nrank_x_duration_seconds_total{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (gauge(value="1 1700000000000"), "timestamp"),
        (gauge(LABELS + ',__name__="rank_y"'), "not_prometheus_text"),
        (gauge(LABELS + ',__own="x"'), "not_prometheus_text"),
        (gauge(LABELS + ',"sp ace"="x"'), "wrong_labels"),
        (gauge(LABELS + "".join(f',l{i}="x"' for i in range(20))), "wrong_labels"),
        (gauge(LABELS + f',l="{"x" * 600}"'), "wrong_labels"),
        (gauge(LABELS + f',l="{"x" * 5000}"'), "not_prometheus_text"),
        (gauge(LABELS, value="one"), "not_prometheus_text"),
        (gauge(LABELS + ',l="\x1b[2J"'), "not_prometheus_text"),
        (b"# TYPE rank_x\n", "not_prometheus_text"),
        (b"\n" * 5000, "too_many_series"),
        (b"# TYPE rank_x gauge\n" + b"".join(gauge(f'{LABELS},l="{i}"') for i in range(MAX_SERIES + 1)), "too_many_series"),
    ],
)
def test_invalid_file_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(RejectedError) as refused:
        parse(content)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("{%s} 1", {}, 1.0),
        ('{%s,a="1",} 2e3', {"a": "1"}, 2000.0),
        ('{ %s , a = "2" }\t-.5  ', {"a": "2"}, -0.5),
        ('{a="} 1",%s} 2', {"a": "} 1"}, 2.0),
        (r'{%s,a="\\n\n\""} +Inf', {"a": '\\n\n"'}, math.inf),
    ],
)  # fmt: skip
def test_valid_line_is_parsed(line: str, labels: dict[str, str], value: float) -> None:
    _, family = parse(f"{INFO}# TYPE rank_x gauge\nrank_x{line % LABELS}\n".encode()).families

    ((name, read, number),) = [(series.metric, dict(series.labels), series.value) for series in family.series]
    assert (name, read, number) == ("rank_x", {"run": "r1", "rank": "3", "slot": "0"} | labels, value)


@pytest.mark.parametrize(
    "line",
    [
        '{%s,a="1" b="2"} 1', '{%s,a="1",a="2"} 1', "{%s,a='1'} 1", '{%s,a="1} 1', "{%s} 0x10", "{%s} 1_000", "{%s}", "{%s",
    ],
)  # fmt: skip
def test_invalid_line_rejects_the_file(line: str) -> None:
    with pytest.raises(RejectedError) as refused:
        parse(f"# TYPE rank_x gauge\nrank_x{line % LABELS}\n".encode())
    assert refused.value.reason == "not_prometheus_text"


@given(text=st.text(max_size=300))
def test_arbitrary_text_is_rejected(text: str) -> None:
    with pytest.raises(RejectedError):  # such a text has no identity of a rank
        parse(text.encode())


def histogram(*buckets: tuple[str, str], total: str = "3.5", count: str = "3", labels: str = "") -> str:
    name, common = "rank_x_duration_seconds", LABELS + labels
    lines = [f'{name}_bucket{{{common},le="{bound}"}} {value}\n' for bound, value in buckets]
    return "".join([*lines, f"{name}_sum{{{common}}} {total}\n", f"{name}_count{{{common}}} {count}\n"])


def histogram_file(text: str) -> bytes:
    return f"{INFO}# TYPE rank_x_duration_seconds histogram\n{text}".encode()


SOUND = (("0.5", "1"), ("1.0", "1"), ("+Inf", "3"))


@pytest.mark.parametrize(
    "text", [histogram(*SOUND), histogram(("+Inf", "3")), histogram(*SOUND, labels=',l="a"') + histogram(*SOUND, labels=',l="b"')]
)
def test_valid_histogram_is_read(text: str) -> None:
    families = parse(histogram_file(text)).families

    assert [(family.name, family.type) for family in families][1:] == [("rank_x_duration_seconds", "histogram")]
    assert len(families[1].series) == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        histogram(),  # no bucket
        histogram(("1.0", "3")),  # no +Inf bucket
        histogram(("1.0", "1"), ("0.5", "1"), ("+Inf", "3")),  # out of order
        histogram(("1", "1"), ("1.0", "1"), ("+Inf", "3")),  # duplicate bound
        histogram(("0.5", "2"), ("1.0", "1"), ("+Inf", "3")),  # counts decrease
        histogram(("0.5", "-1"), ("+Inf", "3")),
        histogram(("0.5", "0.5"), ("+Inf", "3")),
        histogram(("0.5", "NaN"), ("+Inf", "3")),
        histogram(("0.5", "+Inf"), ("+Inf", "+Inf"), count="+Inf"),
        histogram(("NaN", "1"), ("+Inf", "3")),
        histogram(("half", "1"), ("+Inf", "3")),
        histogram(*SOUND, count="4"),
        histogram(*SOUND, total="-1"),
        histogram(*SOUND, total="NaN"),
        histogram(*SOUND).replace("_sum", "_count"),
        histogram(*SOUND).partition("rank_x_duration_seconds_sum")[0],
        histogram(*SOUND, labels=',l="a"') + histogram(*SOUND, labels=',l="b"').partition("rank_x_duration_seconds_count")[0],
        histogram(*SOUND) + histogram(*SOUND, labels=',l="b"') + histogram(("2.0", "1"), ("+Inf", "3")),
    ],
)
def test_invalid_histogram_rejects_the_file(text: str) -> None:
    with pytest.raises(RejectedError) as refused:
        parse(histogram_file(text))
    assert refused.value.reason in {"wrong_histogram", "repeated_series"}


@given(text=st.text('0123456789.eE+-NaInf_ \t{}"#\n', max_size=12), position=st.integers(0, 10_000))
def test_template_reading_equals_full_parsing(text: str, position: int) -> None:
    good = (INFO + gauge(value="1").decode() + gauge(value="NaN", name="rank_y").decode()).encode()
    file = parse(good)
    template = SpoolTemplate.of(good, file)
    assert template is not None
    changed = bytearray(good)
    at = position % len(changed)
    changed[at : at + 1] = text.encode()

    def outcome(read: Callable[[], SpoolContent | None]) -> Any:
        try:
            result = read()
        except RejectedError as error:
            return error.reason
        return result and repr(result)

    quick = outcome(lambda: template.read(bytes(changed), file))
    assert quick is None or quick == outcome(lambda: parse(bytes(changed)))


def test_every_series_of_the_recorder_is_relayed(tmp_path: Path) -> None:
    text = rank_text()
    (tmp_path / "a.prom").write_text(text)

    sample = spool_of(tmp_path).read()

    lines = [line for line in text.splitlines() if not line.startswith("#")]
    relayed = [item for family in sample.families for item in family.series]
    assert sorted(item.metric for item in relayed) == sorted(line.partition("{")[0] for line in lines)
    assert len(lines) <= MAX_SERIES / 2
    assert len(text) < MAX_BYTES / 2
    (duration,) = (family for family in sample.families if family.type == "histogram")
    assert [dict(item.labels).get("le") for item in duration.series][-3:] == ["+Inf", None, None]


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """Return file, uid and reason of each logged file since the last call."""
    logged = [vars(record) for record in caplog.records if "file" in vars(record)]
    caplog.clear()
    return [(fields["file"], fields["uid"], fields["reason"]) for fields in logged]


def test_rejected_file_is_logged_once_per_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_unexpected_error_rejects_only_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.prom").write_text(GOOD)
    (tmp_path / "odd.prom").write_text(GOOD.replace("r1", "odd"))

    def parse_or_fail(content: bytes) -> SpoolContent:
        if b"odd" in content:
            raise ZeroDivisionError
        return parse(content)

    monkeypatch.setattr("rankscope.exporter.spool.reading.parse", parse_or_fail)

    sample = spool_of(tmp_path).read()

    assert (sample.ok_files, sample.rejected) == (1, {"exporter_defect": 1})


def test_many_rejected_files_do_not_flood_log_or_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_rejection_log_is_limited_per_hour(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    log = RejectionLog(lambda: now_s[0])
    for minute in range(180):
        now_s[0] = 60.0 * minute
        log.report([RejectedFile(f"{minute}.prom", 1, "empty")])

    assert len(lines(caplog)) == 3 * MAX_LINES_PER_HOUR

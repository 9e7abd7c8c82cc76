"""Logs: a record is one line, a stalled reader costs lines, and a problem that lasts is reported once."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.command_line import logging_kept
from tests.full_pipe import SMALLEST_PIPE, fill_pipe

from rankscope.base import logs
from rankscope.base.line_writer import LineWriter
from rankscope.base.logs import LogFormat
from rankscope.base.problems import ProblemLog

HOSTILE = 'a\nlevel=error msg="forged" \x1b[31m \u202e \\ "'


@pytest.fixture
def written() -> Iterator[Callable[[LogFormat], str]]:
    def write(style: LogFormat) -> str:
        stream = io.StringIO()
        logs.set_up("info", style, stream)
        logging.getLogger("rankscope.exporter.fleet.nvml_fleet").warning(
            "down: %s", HOSTILE, extra={"gpu": "GPU-1", "age_s": 1.5}
        )
        logging.getLogger("rankscope.exporter.fleet.nvml_fleet").debug("nobody asked")
        logging.getLogger("somebody.else").info("nobody asked")
        return stream.getvalue()

    with logging_kept():
        yield write


def test_new_log_format_is_applied_by_the_writer_thread(
    written: Callable[[LogFormat], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written("text")
    reader, writer = os.pipe()
    with open(writer, "w") as stderr:  # noqa: PTH123  a descriptor
        monkeypatch.setattr(sys, "stderr", stderr)
        logs.set_nonblocking()
        handlers = list(logging.getLogger().handlers)

        logs.set_up("info", "json")
        logging.getLogger("rankscope.exporter.web").info("reloaded")
        logs.flush()

        assert logging.getLogger().handlers == handlers
        assert json.loads(os.read(reader, 4096))["msg"] == "reloaded"
    os.close(reader)


@pytest.mark.parametrize(
    ("name", "component"),
    [
        ("rankscope.exporter.fleet.nvml_fleet", "fleet"),
        ("rankscope.alerts.receive.web.app", "receive"),
        ("rankscope.base.http_server.protocol", "http_server"),
        ("asyncio", "asyncio"),
    ],
)
def test_log_record_names_its_component(written: Callable[[LogFormat], str], name: str, component: str) -> None:
    stream = io.StringIO()
    written("json")
    logs.set_up("info", "json", stream)
    logging.getLogger(name).error("what happened")
    assert json.loads(stream.getvalue())["component"] == component


def test_json_log_line_preserves_hostile_message_and_fields(written: Callable[[LogFormat], str]) -> None:
    (line,) = written("json").splitlines()
    record = json.loads(line)

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("ts"))
    assert record == {"level": "warn", "component": "fleet", "msg": f"down: {HOSTILE}", "gpu": "GPU-1", "age_s": 1.5}


def test_logfmt_fields_cannot_be_forged_by_a_message(written: Callable[[LogFormat], str]) -> None:
    (line,) = written("logfmt").splitlines()

    # without quoted values, only the real fields are left
    assert re.findall(r"(\w+)=", re.sub(r'"(?:\\.|[^"\\])*"', '""', line)) == ["ts", "level", "component", "msg", "gpu", "age_s"]
    assert line.isprintable()


def test_text_log_line_has_no_control_characters(written: Callable[[LogFormat], str]) -> None:
    (line,) = written("text").splitlines()

    assert line.isprintable()
    assert re.match(r"\d\d:\d\d:\d\d WARN  fleet: down: a", line)
    assert line.endswith("gpu=GPU-1  age_s=1.5")


def test_dropped_lines_are_counted_once_the_pipe_drains() -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
    fill_pipe(writer)
    lines = LineWriter(writer, dropped=lambda count: f"dropped: {count}", max_lines=3)
    for number in range(10):
        lines.write(f"line {number}")

    text = ""
    while "dropped" not in text:
        text += os.read(reader, 65536).decode()

    shown = text.replace("x", "").splitlines()
    kept = [line for line in shown if re.fullmatch(r"line \d", line)]
    assert kept == [f"line {number}" for number in range(len(kept))]
    assert 3 <= len(kept) <= 4  # one may be in the writer when the queue fills
    assert shown[len(kept) :] == [f"dropped: {10 - len(kept)}"]
    lines.write("all is well")
    lines.flush(60)
    assert os.read(reader, 65536) == b"all is well\n"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("each_reason", "reasons", "lines"),
    [
        (True, ["full", "full", "gone", None, None, "gone"], ["full", "gone", "over", "gone"]),
        (False, ["full", "gone", None, "gone", "full"], ["full", "over", "gone"]),
        (True, [None], []),
    ],
)
def test_problem_is_reported_once_and_again_after_recovery(
    each_reason: bool, reasons: list[str | None], lines: list[str]
) -> None:
    reported: list[str] = []
    problems = ProblemLog(reported.append, lambda: reported.append("over"), each_reason=each_reason)
    for reason in reasons:
        problems.report(reason)
        assert problems.reason == reason
    assert reported == lines


def test_reason_shared_by_several_subjects_is_reported_once() -> None:
    reported: list[str] = []
    problems = ProblemLog(reported.append)
    for about in ("a", "b"):
        problems.report("the disk is full", about)
    problems.report("no such host", "c")
    problems.report("the disk is full", "a")
    assert (reported, len(problems), "b" in problems, "d" in problems) == (["the disk is full", "no such host"], 3, True, False)
    for about in ("a", "b", "d"):
        problems.report(None, about)
    problems.report("the disk is full", "b")
    assert reported[2:] == ["the disk is full"]
    assert problems.reason == "no such host"


def test_replaced_problem_set_reports_only_new_reasons_and_the_end() -> None:
    reported: list[str] = []
    problems = ProblemLog(reported.append, lambda: reported.append("over"))
    for present in ({"a": "empty", "b": "damaged"}, {"b": "damaged"}, {"a": "empty", "b": "empty"}):
        problems.replace(present)
    assert (reported, "a" in problems) == (["empty", "damaged", "over", "empty"], True)

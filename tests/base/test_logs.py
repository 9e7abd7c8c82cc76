"""A log record is one line, whatever it contains."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.command_line import logging_kept

from rankscope.base import logs
from rankscope.base.logs import LogFormat

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


def test_another_format_is_taken_over_by_the_thread_that_writes(
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
def test_a_record_names_its_part_of_the_program(written: Callable[[LogFormat], str], name: str, component: str) -> None:
    stream = io.StringIO()
    written("json")
    logs.set_up("info", "json", stream)
    logging.getLogger(name).error("what happened")
    assert json.loads(stream.getvalue())["component"] == component


def test_json_gives_back_what_was_said(written: Callable[[LogFormat], str]) -> None:
    (line,) = written("json").splitlines()
    record = json.loads(line)

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("ts"))
    assert record == {"level": "warn", "component": "fleet", "msg": f"down: {HOSTILE}", "gpu": "GPU-1", "age_s": 1.5}


def test_logfmt_cannot_be_forged(written: Callable[[LogFormat], str]) -> None:
    (line,) = written("logfmt").splitlines()

    # without quoted values, only the real fields are left
    assert re.findall(r"(\w+)=", re.sub(r'"(?:\\.|[^"\\])*"', '""', line)) == ["ts", "level", "component", "msg", "gpu", "age_s"]
    assert line.isprintable()


def test_text_is_for_a_terminal_that_stays_as_it_was(written: Callable[[LogFormat], str]) -> None:
    (line,) = written("text").splitlines()

    assert line.isprintable()
    assert re.match(r"\d\d:\d\d:\d\d WARN  fleet: down: a", line)
    assert line.endswith("gpu=GPU-1  age_s=1.5")

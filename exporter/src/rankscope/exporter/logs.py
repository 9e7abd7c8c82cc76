"""The log: one line per event on stderr, as logfmt, JSON, or for the eyes of a person.

A record's fields come from ``logger.info("message", extra={"gpu": uuid})``. Whatever they hold, a record is one line and cannot
look like another.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from rankscope.exporter.log_writer import NeverWaitingHandler
from rankscope.exporter.settings import LogFormat, LogLevel

ROOT: Final = "rankscope.exporter"

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS: Final = {"WARNING": "warn", "CRITICAL": "error"}
_BARE: Final = re.compile(r"[A-Za-z0-9_./:+@%,\[\]()-]+", re.ASCII)
_MAX_VALUE: Final = 4000


def set_up(level: LogLevel, style: LogFormat, stream: TextIO | None = None) -> None:
    """Log to ``stream`` (stderr) from now on; again to change it, which leaves ``never_wait`` in force."""
    root = logging.getLogger()
    if stream is not None or not any(isinstance(handler, NeverWaitingHandler) for handler in root.handlers):
        root.handlers[:] = [logging.StreamHandler(stream or sys.stderr)]
    for handler in root.handlers:
        handler.setFormatter(_FORMATTERS[style]())
    # Libraries speak up only for what a person has to know.
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())
    logging.raiseExceptions = False  # a full disk or a closed pipe behind stderr must not end in more output there


def never_wait() -> None:
    """Write to stderr in a thread from now on: who does not read it must not stop who logs. For after the last fork."""
    if sys.stderr is None:  # closed by who started this; its number may be anybody's by now
        return
    root = logging.getLogger()
    handler = NeverWaitingHandler(sys.stderr.fileno())
    handler.setFormatter(root.handlers[0].formatter)
    root.handlers[:] = [handler]


def flush() -> None:
    """Give the last lines a moment to be written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def default_style(stream: TextIO | None = None) -> LogFormat:
    """Text on a terminal, logfmt for whoever collects it."""
    return "text" if (stream or sys.stderr).isatty() else "logfmt"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Time, level, component, message, and what the caller added."""
    component = record.name.removeprefix(ROOT).strip(".").partition(".")[0] or "main"
    fields: dict[str, Any] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": _LEVELS.get(record.levelname, record.levelname.lower()),
        "component": component if record.name.startswith(ROOT) else record.name,
        "msg": record.getMessage(),
    }
    fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}
    if record.exc_info:
        fields["error"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _text(value: object) -> str:
    """A value as one line; what is not printable, and quotes, escaped as JSON does."""
    text = str(value)
    if len(text) > _MAX_VALUE:
        text = text[:_MAX_VALUE] + "…"
    # Also what turns a line around or moves the cursor: everything that is not printable.
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


class _Logfmt(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record).items())


def _quoted(value: object) -> str:
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    return '"' + _text(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        return json.dumps({name: value if isinstance(value, int | float) else str(value) for name, value in fields.items()})


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        time, level, component, message = (_text(fields.pop(name)) for name in ("ts", "level", "component", "msg"))
        rest = "".join(f"  {name}={_quoted(value)}" for name, value in fields.items())
        return f"{time[11:19]} {level.upper():<5} {component}: {message}{rest}"


_FORMATTERS: Final[dict[LogFormat, type[logging.Formatter]]] = {"text": _Text, "logfmt": _Logfmt, "json": _Json}

"""The log of a daemon: one line per event on stderr, as logfmt, JSON, or plain text.

A record's fields come from ``logger.info("message", extra={"gpu": uuid})``. Values are escaped: a record is always one line and
cannot imitate another field or record.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from rankscope.base.line_writer import LineWriter
from rankscope.base.text import shortened

LogFormat = Literal["text", "logfmt", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error")
FORMATS: Final[tuple[LogFormat, ...]] = ("text", "logfmt", "json")

ROOT: Final = "rankscope"

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS: Final = {"WARNING": "warn", "CRITICAL": "error"}
_BARE: Final = re.compile(r"[A-Za-z0-9_./:+@%,\[\]()-]+", re.ASCII)
_MAX_VALUE: Final = 4000


class _NonBlockingHandler(logging.Handler):
    """Handler that writes through a ``LineWriter``, so that a blocked pipe does not block the process."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._writer = LineWriter(fd, dropped=self._dropped)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001  as in logging's own handlers
            self.handleError(record)

    def flush(self) -> None:
        self._writer.flush()

    def _dropped(self, count: int) -> str:
        text = "log lines were dropped, because the pipe was full: %d"
        return self.format(logging.LogRecord(__name__, logging.WARNING, "", 0, text, (count,), None))


def set_up(level: LogLevel, style: LogFormat, stream: TextIO | None = None) -> None:
    """Configure logging to ``stream`` (default: stderr).

    A later call without ``stream`` changes level and format only; a handler installed by ``set_nonblocking`` stays.
    """
    root = logging.getLogger()
    if stream is not None or not any(isinstance(handler, _NonBlockingHandler) for handler in root.handlers):
        root.handlers[:] = [logging.StreamHandler(stream or sys.stderr)]
    for handler in root.handlers:
        handler.setFormatter(_FORMATTERS[style]())
    # Libraries log warnings and errors only.
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())
    logging.raiseExceptions = False  # a full disk or a closed pipe behind stderr must not cause more output there


def set_nonblocking() -> None:
    """Write to stderr in a thread from now on, so that a blocked pipe does not block the process. Call after the last fork."""
    if sys.stderr is None:  # closed by the parent process; descriptor 2 may be another file by now
        return
    root = logging.getLogger()
    handler = _NonBlockingHandler(sys.stderr.fileno())
    handler.setFormatter(root.handlers[0].formatter)
    root.handlers[:] = [handler]


@contextmanager
def daemon_log(level: LogLevel, style: LogFormat | None) -> Iterator[None]:
    """Log to stderr without blocking; write what is queued at the end. ``style`` None: ``default_style``."""
    set_up(level, style or default_style())
    set_nonblocking()
    try:
        yield
    finally:
        flush()


def flush() -> None:
    """Wait briefly for queued lines to be written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def default_style(stream: TextIO | None = None) -> LogFormat:
    """Return ``text`` on a terminal, else ``logfmt``."""
    return "text" if (stream or sys.stderr).isatty() else "logfmt"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return time, level, component, message, and the caller's ``extra`` fields of a record."""
    part, _, name = record.name.removeprefix(f"{ROOT}.").partition(".")
    fields: dict[str, Any] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": _LEVELS.get(record.levelname, record.levelname.lower()),
        "component": (name.partition(".")[0] or part) if record.name.startswith(f"{ROOT}.") else record.name,
        "msg": record.getMessage(),
    }
    fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}
    if record.exc_info:
        fields["error"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _text(value: object) -> str:
    """Return a value as one line of at most ``_MAX_VALUE`` characters; unprintable characters are escaped as in JSON."""
    text = shortened(str(value), _MAX_VALUE)
    # Includes characters that change the writing direction or move the cursor.
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


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        time, level, component, message = (_text(fields.pop(name)) for name in ("ts", "level", "component", "msg"))
        fields_text = "".join(f"  {name}={_quoted(value)}" for name, value in fields.items())
        return f"{time[11:19]} {level.upper():<5} {component}: {message}{fields_text}"


_FORMATTERS: Final[dict[LogFormat, type[logging.Formatter]]] = {"text": _TextFormatter, "logfmt": _Logfmt, "json": _Json}

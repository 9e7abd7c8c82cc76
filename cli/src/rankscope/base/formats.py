"""Formats of files, named ``rankscope.NAME/NUMBER``: the reason why a file of another number is not read."""

from __future__ import annotations

from rankscope.base.version import VERSION


def unread_format(version: str, supported: str) -> str:
    """Return why a file of format ``version`` is not read by this version, which reads ``supported``, and what to do."""
    advice = "upgrade rankscope" if _number(version) > _number(supported) else "use the version of rankscope that wrote it"
    return f"written by another version, in format {version[:100]!r}; rankscope {VERSION} reads {supported!r}: {advice}"


def _number(schema: str) -> int:
    number = schema.rpartition("/")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0

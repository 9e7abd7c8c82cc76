"""State of a page, kept in its address, so that the selection survives reloading, sharing and the back button."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self
from urllib.parse import parse_qs, quote, unquote, urlencode

DEFAULT_METRIC: Final = "own_us"

_NUMBER: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_RANGE: Final = re.compile(r"([0-9]{1,15})-([0-9]{1,15})", re.ASCII)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_PRICE: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,4})?", re.ASCII)
_CURRENCY: Final = re.compile(r"[A-Za-z]{3}", re.ASCII)
MOST_COMPARED: Final = 12
"""Most runs in one comparison."""

_LONGEST: Final = 256
_MOST: Final = 64
"""Most items of a list."""


@dataclass(frozen=True, slots=True)
class PageState:
    """Selection on a page; a page leaves fields that it does not use unchanged."""

    rank: int | None = None
    """Rank highlighted in every view."""
    metric: str = DEFAULT_METRIC
    """Metric of the heat map."""
    steps: tuple[int, int] | None = None
    """First and last shown step; ``None``: all."""
    sort: str = "rank"
    """Sort key of the heat map's rows."""
    rows: str | None = None
    """Unit of the rows of heat map, bars and tables of ranks: ``rank`` or ``host``; ``None``: as in the verdict."""
    group: str | None = None
    """Name of a process group."""
    window: int | None = None
    """First step of a captured window."""
    span: tuple[int, int] | None = None
    """Part of the window, in microseconds since its begin."""
    collective: str | None = None
    """Key of a collective of the window, ``GROUP:SEQUENCE``."""
    without: tuple[str, ...] = ()
    """Items removed in the what-if: ``rank:3``, ``host:n1``, ``stage:1``, ``cause:input``."""
    gpu: str | None = None
    """UUID of a GPU."""
    gauge: str = "temperature_celsius"
    """Gauge of the GPUs that is shown over time."""
    step: int | None = None
    """Highlighted step."""
    price: float | None = None
    """Price of a GPU-hour; ``None``: as recorded with the run."""
    currency: str | None = None
    """Three-letter code of the currency; ``None``: as recorded with the run."""
    runs: tuple[str, ...] = ()
    """Compared runs."""
    at: int | None = None
    """Step at which one run is divided, to compare what was before and after."""
    pair: str | None = None
    """Label of the run whose comparison with the first is shown; ``None``: the second."""
    by: str = "host"
    """Unit of the shown changes: ``host`` or ``rank``."""
    since: int | None = None
    """Only runs that started in the last so many days; ``None``: all."""
    q: str | None = None
    """Text that the rows of a list contain; ``None``: all rows."""
    picked: str | None = None
    """Id of the row of a list that is shown in full below it; ``None``: the first."""

    @property
    def search(self) -> str:
        """Query part of the address, ``""`` or starting with ``?``; fields at their defaults are omitted."""
        parts = {
            name: _CODECS[name].text(value) for name, default in _DEFAULTS.items() if (value := getattr(self, name)) != default
        }
        return f"?{urlencode(parts, safe=',:')}" if parts else ""

    @classmethod
    def parse(cls, search: str | None) -> Self:
        """Parse a query part. Missing and malformed fields get their defaults, so that links never break."""
        state = cls()
        if not isinstance(search, str):  # a client other than a browser may send anything
            return state
        try:
            query_fields = parse_qs(search.removeprefix("?"), max_num_fields=32)
        except ValueError:
            return state
        for name in _DEFAULTS:
            if name in query_fields:
                state = state.with_field(name, query_fields[name][-1])
        return state

    def with_field(self, name: str, text: str | None) -> Self:
        """Return the state with one field parsed from ``text``; invalid text or ``None`` gives the default."""
        value = None if text is None or len(text) > _LONGEST * _MOST else _CODECS[name].value(text)
        change: dict[str, Any] = {name: _DEFAULTS[name] if value is None else value}
        return replace(self, **change)

    def text(self, name: str) -> str | None:
        """Return the text of a field in the address; ``None`` if nothing is selected."""
        value = getattr(self, name)
        return None if value is None or value == () else _CODECS[name].text(value)


@dataclass(frozen=True, slots=True)
class _Codec:
    text: Callable[[Any], str]
    value: Callable[[str], Any]
    """``None`` for invalid text."""


def _range(text: str) -> tuple[int, int] | None:
    match = _RANGE.fullmatch(text)
    return (first, last) if match and (first := int(match[1])) <= (last := int(match[2])) else None


def host_item(host: str) -> str:
    """Return the name of a host among the items of ``PageState.without``, which commas separate."""
    return f"host:{quote(host, safe='')}"


def _items(text: str) -> tuple[str, ...]:
    """Return the distinct items, without empty and overlong ones, at most ``_MOST``."""
    return tuple(dict.fromkeys(item for item in text.split(",") if 0 < len(item) <= _LONGEST))[:_MOST]


def _ids(text: str) -> tuple[str, ...]:
    """Return ids, each of which is quoted, since an id may contain a comma."""
    return tuple(dict.fromkeys(id_ for item in text.split(",") if 0 < len(id_ := unquote(item)) <= _LONGEST))[:_MOST]


_INTEGER: Final = _Codec(str, lambda text: int(text) if _NUMBER.fullmatch(text) else None)
_SPAN: Final = _Codec(lambda value: f"{value[0]}-{value[1]}", _range)
_WORD: Final = _Codec(str, lambda text: text if _NAME.fullmatch(text) else None)
_TEXT: Final = _Codec(str, lambda text: text if 0 < len(text) <= _LONGEST else None)
_AMOUNT: Final = _Codec(lambda value: f"{value:.10g}", lambda text: float(text) if _PRICE.fullmatch(text) else None)
_LETTERS: Final = _Codec(str, lambda text: text.upper() if _CURRENCY.fullmatch(text) else None)
_LIST: Final = _Codec(",".join, _items)
_IDS: Final = _Codec(lambda ids: ",".join(quote(run_id, safe="") for run_id in ids), _ids)
_UNIT: Final = _Codec(str, lambda text: text if text in ("host", "rank") else None)
_DAYS: Final = _Codec(lambda days: f"{days}d", lambda text: int(text[:-1]) or None if re.fullmatch("[0-9]{1,4}d", text) else None)

_CODECS: Final[dict[str, _Codec]] = {
    "rank": _INTEGER,
    "metric": _WORD,
    "steps": _SPAN,
    "sort": _WORD,
    "rows": _UNIT,
    "group": _TEXT,
    "window": _INTEGER,
    "span": _SPAN,
    "collective": _TEXT,
    "without": _LIST,
    "gpu": _TEXT,
    "gauge": _WORD,
    "step": _INTEGER,
    "price": _AMOUNT,
    "currency": _LETTERS,
    "runs": _IDS,
    "at": _INTEGER,
    "pair": _TEXT,
    "by": _UNIT,
    "since": _DAYS,
    "q": _TEXT,
    "picked": _TEXT,
}
_DEFAULTS: Final = {field.name: field.default for field in fields(PageState)}


def run_path(run_id: str, view: str = "") -> str:
    """Return the path of a page of a run; ``rankscope.runs.links.overview_url`` gives the first page with a host."""
    return f"/run/{quote(run_id, safe='', errors='surrogateescape')}{f'/{view}' if view else ''}"


def compare_path(run_ids: Sequence[str], at: int | None = None) -> str:
    """Return the address of a comparison."""
    return f"/compare{PageState(runs=tuple(run_ids), at=at).search}"


def run_of(pathname: str | None) -> tuple[str, str] | None:
    """Return run id and view in the path of a run's page; ``None`` for another page."""
    parts = (pathname or "/").strip("/").split("/")
    if len(parts) in (2, 3) and parts[0] == "run" and parts[1]:
        return unquote(parts[1], errors="surrogateescape"), parts[2] if len(parts) == 3 else ""
    return None

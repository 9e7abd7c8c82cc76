"""Thresholds of the rules: the shipped ``thresholds.toml``, overridden by the operator's file."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import msgspec

from rankscope.alerts.watcher_alerts import WATCHER_ALERTS
from rankscope.base.config_files import read_toml
from rankscope.base.errors import InputError
from rankscope.base.text import did_you_mean

Value = bool | int | float | str
Tables = Mapping[str, Mapping[str, Value]]

SEVERITIES: Final = ("critical", "warning", "info")
SHARED: Final = ("price", "gpu_states")
"""Tables of settings that several alerts share."""

_WITHOUT_DEFAULT: Final[dict[str, dict[str, Value]]] = {"price": {"per_gpu_hour": 1.0}}
"""Settings without a default, each with an example value of its type."""
_DURATION: Final = re.compile(r"(?=\d)(\d{1,4}w)?(\d{1,4}d)?(\d{1,6}h)?(\d{1,6}m)?(\d{1,6}s)?(\d{1,6}ms)?")
_MAY_BE_ZERO: Final = ("for", "keep_firing_for")
_MOST: Final = 1e15
_ABOUT_A_GPU: Final = re.compile(r"(?!GpuMissing|GpuXidManyUnits)(Gpu|Nvlink|Pcie).+")
"""Alerts with ``except_hosts`` and ``except_models``."""
_EXCEPT: Final = ("except_hosts", "except_models")
_PLAIN_REGEX: Final = re.compile(r"[A-Za-z0-9 ._|()\[\]*+?,/-]*")
_NOT_OF_RE2: Final = re.compile(r"\(\?|[*+?][*+]")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


def default_text() -> str:
    """Return the text of the shipped file, with its comments."""
    return (files("rankscope.alerts") / "rules" / "thresholds.toml").read_text(encoding="utf-8")


def load_thresholds(path: Path | None = None) -> Tables:
    """Return every setting by table and name: the defaults, overridden by the file ``path``. Raises ``InputError``."""
    tables = {name: dict(settings) for name, settings in DEFAULTS.items()}
    if path is not None:
        for name, settings in _read(path).items():
            if name in WATCHER_ALERTS:
                raise InputError(path, "an alert of the watcher, adjusted by `rankscope alerts watch`", place=f"[{name}]")
            if name not in tables:
                raise InputError(path, f"no such alert or table; {_instead(name, tables)}", place=f"[{name}]")
            settable = DEFAULTS[name] | _WITHOUT_DEFAULT.get(name, {})
            for key, value in settings.items():
                place = f"[{name}] {key}"
                if key not in settable:
                    raise InputError(path, f"no such setting; {_instead(key, settable)}", place=place)
                if wrong := _wrong(key, value, settable[key]):
                    raise InputError(path, f"{reprlib.repr(value)} is not {wrong}", place=place)
                tables[name][key] = cast("Value", value)
    return MappingProxyType(tables)


def duration_seconds(text: str) -> int | float | None:
    """Parse a duration in Prometheus' syntax into seconds; return ``None`` for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    parts = zip(match.groups(), (604800, 86400, 3600, 60, 1, 0.001), (1, 1, 1, 1, 1, 2), strict=True)
    return sum(int(part[:-letters]) * unit for part, unit, letters in parts if part)


def duration_text(seconds: float) -> str:
    """Format a duration as text: ``600`` is ``10 minutes``, ``5400`` is ``1 hour 30 minutes``."""
    parts = []
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count, seconds = divmod(seconds, length)
        parts += [f"{count:.0f} {unit}{'' if count == 1 else 's'}"] if count else []
    return " ".join([*parts, f"{seconds:g} second{'' if seconds == 1 else 's'}"] if seconds or not parts else parts)


def _read(path: Path) -> dict[str, dict[str, object]]:
    tables = read_toml(path)
    for name, settings in tables.items():
        if not isinstance(settings, dict):
            raise InputError(path, "not in a table: settings belong below [NAME OF AN ALERT]", place=name)
    return tables


def _with_common_settings(tables: dict[str, dict[str, Value]]) -> Mapping[str, dict[str, Value]]:
    def common(name: str) -> dict[str, Value]:
        if name in SHARED:
            return {}
        return {"enabled": True, **(dict.fromkeys(_EXCEPT, "") if _ABOUT_A_GPU.fullmatch(name) else {})}

    return MappingProxyType({name: common(name) | settings for name, settings in tables.items()})


def _instead(name: str, names: Mapping[str, object]) -> str:
    return did_you_mean(name, names, otherwise="`rankscope alerts rules thresholds` prints those there are")


def _wrong(key: str, value: object, example: Value) -> str | None:  # noqa: PLR0911  one line for each kind
    """Return the kind of value that ``key`` needs, or ``None`` if ``value`` is valid. ``example`` is the default value."""
    if isinstance(example, bool):
        return None if isinstance(value, bool) else "true or false"
    if key == "severity":
        return None if value in SEVERITIES else f"one of {', '.join(SEVERITIES)}"
    if key == "currency":
        return None if isinstance(value, str) and _CURRENCY.fullmatch(value) else 'three capital letters, as "USD"'
    if key in _EXCEPT:
        return None if isinstance(value, str) and _is_regex(value) else 'a regular expression of names, as "gpu-0[1-4]|lab-.*"'
    if isinstance(example, str):
        is_duration = isinstance(value, str) and _DURATION.fullmatch(value) and (key in _MAY_BE_ZERO or re.search("[1-9]", value))
        return None if is_duration else 'a duration with its unit in quotes, as "5m" or "1h30m"'
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return "a number that is not negative"
    if key.endswith("_ratio") and value > 1:
        return "a share of 1: 15 % is 0.15"
    if isinstance(example, int) and not isinstance(value, int):
        return "a whole number"
    return None


def _is_regex(text: str) -> bool:
    """Return True for a regular expression that Prometheus understands, too, and that is plain text in a rule."""
    try:
        re.compile(text)
    except re.error:
        return False
    return _PLAIN_REGEX.fullmatch(text) is not None and _NOT_OF_RE2.search(text) is None


DEFAULTS: Final = _with_common_settings(msgspec.toml.decode(default_text(), type=dict[str, dict[str, Value]]))
SEVERITY_OF: Final[dict[str, str]] = {
    **{name: alert.severity for name, alert in WATCHER_ALERTS.items()},
    **{name: str(settings["severity"]) for name, settings in DEFAULTS.items() if name not in SHARED},
}
"""Severity of every alert, of the watcher and of the rules, by its name. Operators may change that of a rule."""

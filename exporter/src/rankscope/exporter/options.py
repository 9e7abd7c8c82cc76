"""Kinds of command-line values, and options that know their section of the help and their environment variable."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

ENVIRONMENT_PREFIX: Final = "RANKSCOPE_EXPORTER_"

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

C = TypeVar("C", bound=Callable[..., Any])


def parse_duration(text: str) -> float:
    """Seconds of ``500ms``, ``1s``, ``5m``, ``24h``, ``2d`` or a bare number of seconds; raises ``ValueError``, also for zero."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", text, re.ASCII)
    if match is None or float(match[1]) == 0:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 1s, 5m or 24h")
    return float(match[1]) * _SECONDS[match[2] or "s"]


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """A duration; the value is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        try:
            return value if isinstance(value, float) else parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ListenAddress(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """``HOST:PORT``, ``:PORT`` for all addresses, ``[IPV6]:PORT``."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Host and port."""
        if isinstance(value, tuple):
            return value[0], value[1]
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^%\[\]]+)?)\]|([^:\[\]]*)):([0-9]{1,5})", value, re.ASCII)
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, :PORT or [IPV6]:PORT", param, ctx)
        return match[1] or match[2] or "0.0.0.0", int(match[3])  # noqa: S104  a node exporter is there to be reached


class SimulatedGpus(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """``8`` or ``8xH100``: how many, and of which model."""

    name = "gpus"

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, which is one."""
        match = re.fullmatch(r"([0-9]{1,4})(?:x[A-Za-z0-9_.-]+)?", value, re.ASCII)
        if match is None or not 1 <= int(match[1]) <= self._most:
            self.fail(f"{value!r} is not a number from 1 to {self._most}, or that and a model such as 8xH100", param, ctx)
        return str(value)


class SectionOption(click.Option):
    """An option under a heading of the help, with an environment variable named after it."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.key = next(name for name in self.opts if name.startswith("--")).removeprefix("--")
        if self.envvar is None:
            self.envvar = ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", self.key).upper()


class SectionGroup(click.Group):
    """A command with sub-commands whose help shows its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per heading, in the order in which the headings appear first."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        self.format_commands(ctx, formatter)


def section(title: str) -> Callable[..., Callable[[C], C]]:
    """Declares options of one section of the help; otherwise like ``click.option``."""

    def option(*names: str, **kwargs: Any) -> Callable[[C], C]:
        return click.option(*names, cls=SectionOption, section=title, **kwargs)

    return option

"""Kinds of command-line values, and options that know their section of the help and their environment variable."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

ENVIRONMENT_PREFIX: Final = "RANKSCOPE_EXPORTER_"

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

C = TypeVar("C", bound=Callable[..., Any])


def parse_duration(text: str) -> float:
    """Seconds of ``500ms``, ``1s``, ``5m``, ``24h``, ``2d`` or a bare number of seconds; raises ``ValueError``, also for zero."""
    seconds = _seconds(text)
    if seconds == 0:
        raise ValueError(f"{text} is too small: more than 0 is needed")
    return seconds


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)?", text, re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 1s, 5m or 24h")
    return float(match[1]) * _SECONDS[match[2] or "s"]


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """A duration within bounds, which are durations, too; the value is seconds."""

    name = "duration"

    def __init__(self, at_least: str | None = None, at_most: str | None = None) -> None:
        self._at_least = at_least
        self._at_most = at_most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        try:
            seconds = _seconds(value) if self._at_least is not None else parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._at_least is not None and seconds < _seconds(self._at_least):
            self.fail(f"{value} is too small: {self._at_least} at least", param, ctx)
        if self._at_most is not None and seconds > _seconds(self._at_most):
            self.fail(f"{value} is too large: {self._at_most} at most", param, ctx)
        return seconds


class ListenAddress(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """``HOST:PORT``, ``:PORT`` for all IPv4 and IPv6 addresses, ``[IPV6]:PORT``."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """Host and port."""
        if isinstance(value, tuple):
            return value[0], value[1]
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[^%\[\]]+)?)\]|([^:\[\]]*)):([0-9]{1,5})", value, re.ASCII)
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r} is not HOST:PORT, :PORT or [IPV6]:PORT", param, ctx)
        return match[1] or match[2] or "::", int(match[3])


class SimulatedGpus(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """``8`` or ``8xH100``: how many, and of which model."""

    name = "gpus"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, which is one."""
        from rankscope.exporter.simulated import parse_simulation

        try:
            parse_simulation(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class SectionOption(click.Option):
    """An option under a heading of the help, with an environment variable named after it."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.key = next(name for name in self.opts if name.startswith("--")).removeprefix("--")
        if self.envvar is None:
            self.envvar = ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", self.key).upper()

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """The value; a mistake in it is told in words rather than in types."""
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            message = error.message.replace("a valid integer range", "a whole number")
            if isinstance(self.type, click.types.BoolParamType):
                message = f"{value!r} is not true or false"
            raise click.BadParameter(message, ctx, self) from error

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """As click does; a mistake names the variable where it was made in one."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT:
                error.param_hint = str(self.envvar)
            raise


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


def unknown_variables(command: click.Command, environment: Mapping[str, str]) -> list[str]:
    """What to say about each variable that begins like an option's and is none: somebody meant something by it."""
    known = [param.envvar for param in command.params if isinstance(param.envvar, str)]
    remarks = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remarks.append(f"{name} is no option of the exporter" + (f"; did you mean {near[0]}?" if near else ""))
    return remarks


def section(title: str) -> Callable[..., Callable[[C], C]]:
    """Declares options of one section of the help; otherwise like ``click.option``."""

    def option(*names: str, **kwargs: Any) -> Callable[[C], C]:
        return click.option(*names, cls=SectionOption, section=title, **kwargs)

    return option

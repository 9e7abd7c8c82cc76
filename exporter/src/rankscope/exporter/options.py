"""Types and checks of command-line values, and options with a section in the help and an environment variable."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from rankscope.exporter.settings import DCGM_PATH

ENVIRONMENT_PREFIX: Final = "RANKSCOPE_EXPORTER_"

C = TypeVar("C", bound=Callable[..., Any])


class SimulatedGpus(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # as above
    """Number of simulated GPUs and their model: ``8`` or ``8xH100``."""

    name = "gpus"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the text and return it unchanged."""
        from rankscope.exporter.simulated import parse_simulation

        try:
            parse_simulation(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class SectionOption(click.Option):
    """Option under a heading of the help, with an environment variable named after the option."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.key = next(name for name in self.opts if name.startswith("--")).removeprefix("--")
        if self.envvar is None:
            self.envvar = ENVIRONMENT_PREFIX + re.sub(r"[.-]", "_", self.key).upper()

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert the value as click does, with plainer messages for whole numbers and booleans."""
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter as error:
            message = error.message.replace("a valid integer range", "a whole number")
            if isinstance(self.type, click.types.BoolParamType):
                message = f"{value!r} is not true or false"
            raise click.BadParameter(message, ctx, self) from error

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Process the value as click does; an error names the environment variable if the value comes from one."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT:
                error.param_hint = str(self.envvar)
            raise


class SectionGroup(click.Group):
    """Command group whose help shows its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per heading, in the order of their first option."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        self.format_commands(ctx, formatter)


def telemetry_path(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """Check the path of the metrics, as a callback of its option, and return it."""
    if not re.fullmatch(r"/[A-Za-z0-9_./-]*", value):
        raise click.BadParameter(f"{value!r} is not a path such as /metrics")
    if value in ("/", "/-", DCGM_PATH) or value.startswith("/-/"):
        raise click.BadParameter(f"{value} is taken by another page of the exporter; choose one such as /metrics")
    return value


def unknown_variables(command: click.Command, environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable with the exporter's prefix that belongs to no option, probably a typing error."""
    variables = [param.envvar for param in command.params if isinstance(param.envvar, str)]
    remarks = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in variables:
            close_matches = difflib.get_close_matches(name, variables, n=1)
            remarks.append(
                f"{name} is no option of the exporter" + (f"; did you mean {close_matches[0]}?" if close_matches else "")
            )
    return remarks


def section(title: str) -> Callable[..., Callable[[C], C]]:
    """Return a decorator like ``click.option`` for options of one section of the help."""

    def option(*names: str, **kwargs: Any) -> Callable[[C], C]:
        return click.option(*names, cls=SectionOption, section=title, **kwargs)

    return option

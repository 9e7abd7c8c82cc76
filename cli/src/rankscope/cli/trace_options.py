"""Options of the commands that take Kineto traces."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import click

from rankscope.analysis.parallel.workers import Engine, LocalEngine, keep_freed_memory


def _pattern(_context: click.Context, _option: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    """Compile the regular expression. Raises ``click.BadParameter`` if it is invalid or matches the empty text."""
    if value is None:
        return None
    try:
        pattern = re.compile(value)
    except (re.error, RecursionError, OverflowError) as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error
    if pattern.search("") is not None:
        raise click.BadParameter(f"{value!r} finds the empty text, so every kernel would be communication")
    return pattern


pattern_option = click.option(
    "--communication-pattern",
    metavar="REGEX",
    callback=_pattern,
    help="Kernels of traces whose name this finds are communication, too: for a library that is not known by itself.",
)
cycle_option = click.option(
    "--cycle",
    type=click.IntRange(1),
    metavar="N",
    help="Take cycle N of the profiler's schedule, from 1, where ranks have traces of several (schedule(repeat=...)).  [default: "
    "the last that most ranks have]",
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of ``engine_of``: ``engine``, ``address`` and ``workers``."""
    for option in (
        click.option(
            "--workers",
            type=click.IntRange(1, 65536),
            help="Read so many ranks at a time. Default: one for each core; with Ray two for each CPU of the cluster.",
        ),
        click.option(
            "--address",
            metavar="ADDRESS",
            help="Where the head of the Ray cluster is, HOST:PORT; this machine has to be one of its nodes. Default: "
            "RAY_ADDRESS, else the cluster that this machine is a node of.",
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Where ranks are read: by processes of this machine, or by tasks on an existing Ray cluster whose nodes see the "
            "same files. The result is the same.",
        ),
    ):
        command = option(command)
    return command


def engine_of(name: str, address: str | None, workers: int | None) -> Engine:
    """Return the engine that the options name. Raises ``click.BadParameter``."""
    if name == "ray":
        from rankscope.analysis.parallel.ray_engine import RayEngine

        return RayEngine(address, workers)
    if address is not None:
        raise click.BadParameter("requires --engine ray", param_hint="--address")
    keep_freed_memory()
    return LocalEngine(workers or len(os.sched_getaffinity(0)))

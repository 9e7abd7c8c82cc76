"""What a node of a Ray cluster does for one item, after a look at whether it can; and what its answer means."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rankscope.analysis.locations import Location
from rankscope.base.errors import InputError, MissingError

Outcome = Literal["done", "failed", "version", "lacks", "unseen"]
Answer = tuple[Outcome, str, bytes]
"""An outcome, the node's name, and the pickle of what came of it."""

_SHARED = "it has to be on storage that all nodes share (or --engine local)"


class Here(NamedTuple):
    """What is the same for all items; a plain tuple when it travels."""

    version: str
    folder: str
    """From which relative paths are looked up."""
    function: bytes

    @classmethod
    def of(cls, function: Callable[[Any], Any]) -> Here:
        """This process."""
        return cls(metadata.version("rankscope"), os.fspath(Path.cwd()), pickle.dumps(function))


def node_task() -> Callable[[tuple[str, str, bytes], bytes, tuple[str, int] | None], Answer]:
    """What a node runs: of ``Here``, the pickle of an item, and path and size of its file, where one has to be there.

    Made here, rather than a function of this module, so that it travels by value: on a node without rankscope a function that
    travels by its name cannot even be read. Results are pickled by us: the arrays that Ray unpickles cannot be written to.
    """

    def unseen(file: Path, size: int) -> str | None:
        try:
            found = file.stat().st_size
        except OSError as error:
            return f"does not see it ({error.strerror})"
        if found != size:
            return "has another file there"
        return None if os.access(file, os.R_OK) else "may not read it"

    def run(here: tuple[str, str, bytes], item: bytes, file: tuple[str, int] | None) -> Answer:
        wanted, folder, function = here
        node = socket.gethostname()
        try:
            found = metadata.version("rankscope")
        except metadata.PackageNotFoundError:
            found = None
        if found != wanted:
            return "version", node, pickle.dumps(found)
        # Where there is no such folder, relative paths lead nowhere, which is noticed.
        with suppress(OSError):
            os.chdir(folder)
        if file is not None and (why := unseen(Path(file[0]), file[1])):
            return "unseen", node, pickle.dumps(why)
        try:
            from rankscope.base.errors import RankscopeError

            try:
                result = pickle.loads(function)(pickle.loads(item))  # noqa: S301  # from whom we run code for anyway
                return "done", node, pickle.dumps(result)
            except (RankscopeError, OSError) as error:
                return "failed", node, pickle.dumps(error)
        except ModuleNotFoundError as error:
            return "lacks", node, pickle.dumps(error.name)

    return run


def understood(answer: Answer, file: Location) -> Any:
    """The result in a node's answer. Raises what it stands for otherwise."""
    outcome, name, pickled = answer
    value = pickle.loads(pickled)  # noqa: S301  # from the cluster that our code runs on
    here = metadata.version("rankscope")
    node, install = f"node {name} of the Ray cluster", f"on all nodes: pip install 'rankscope[analysis]=={here}'"
    if outcome == "version":
        raise MissingError(f"{node} has {f'rankscope {value}, not {here}' if value else 'no rankscope'}; {install}")
    if outcome == "lacks":
        raise MissingError(f"{node} lacks the Python package {value!r}; {install}")
    if outcome == "unseen":
        raise InputError(file, f"{node} {value}: {_SHARED}")
    if isinstance(value, MissingError):
        raise MissingError(f"{node}: {value}")
    if outcome == "failed":
        raise value
    return value

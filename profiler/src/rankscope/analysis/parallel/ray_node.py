"""Task of a Ray node for one item, with checks that the node can run it; and the interpretation of its answer."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rankscope.analysis.trace.locations import Location
from rankscope.base.errors import InputError, MissingError

Outcome = Literal["done", "failed", "version", "lacks", "unseen"]
Answer = tuple[Outcome, str, bytes]
"""Outcome, name of the node, and the pickled result, error or detail."""

_SHARED = "it has to be on storage that all nodes share (or --engine local)"


class Here(NamedTuple):
    """Context of the calling process, common to all items; sent to nodes as a plain tuple."""

    version: str
    folder: str
    """Folder that relative paths start from."""
    function: bytes

    @classmethod
    def of(cls, function: Callable[[Any], Any]) -> Here:
        """Return the context of this process with the pickled ``function``."""
        return cls(metadata.version("rankscope"), os.fspath(Path.cwd()), pickle.dumps(function))


def node_task() -> Callable[[tuple[str, str, bytes], bytes, tuple[str, int] | None], Answer]:
    """Return the function that a node runs.

    Its arguments are ``Here``, the pickled item, and path and size of the item's file if the node must see one. The function is
    nested so that Ray sends it by value: a node without rankscope could not unpickle a module-level function. Results are
    pickled here, because arrays that Ray unpickles are read-only.
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
        # Without this folder, the check below reports files with relative paths as unseen.
        with suppress(OSError):
            os.chdir(folder)
        if file is not None and (why := unseen(Path(file[0]), file[1])):
            return "unseen", node, pickle.dumps(why)
        try:
            from rankscope.base.errors import RankscopeError

            try:
                result = pickle.loads(function)(pickle.loads(item))  # noqa: S301  # from the caller, whose code runs here anyway
                return "done", node, pickle.dumps(result)
            except (RankscopeError, OSError) as error:
                return "failed", node, pickle.dumps(error)
        except ModuleNotFoundError as error:
            return "lacks", node, pickle.dumps(error.name)

    return run


def understood(answer: Answer, file: Location) -> Any:
    """Return the result in a node's answer, or raise the error that the answer stands for."""
    outcome, name, pickled = answer
    value = pickle.loads(pickled)  # noqa: S301  # from the cluster that runs our code
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

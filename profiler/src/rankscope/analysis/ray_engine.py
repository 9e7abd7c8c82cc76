"""The ranks worked through on a Ray cluster that is there already; none is ever started here."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rankscope.analysis.locations import Location, one_line
from rankscope.analysis.ray_cluster import connected
from rankscope.analysis.workers import AHEAD, Item, Result
from rankscope.runs.errors import InputError, MissingError, RankscopeError

_PER_CPU: Final = 2
"""Tasks for each CPU of the cluster: the next one is there when one is done, and a cluster that grows on demand sees the demand."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    """A task for each rank on the Ray cluster at ``address``, up to ``workers`` at a time (``None``: two for each CPU).

    A program that is connected to a cluster already uses that one, with its runtime environment, and stays connected.
    """

    address: str | None = None
    workers: int | None = None

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, files: Sequence[Location], text_bytes: int
    ) -> Iterator[Result]:
        """See ``workers.Engine``.

        Raises:
            InputError: no cluster answers, it is of another version, or a node of it does not see a file.
            MissingError: no Ray here, or no rankscope of this version on a node.
            RankscopeError: a task was killed; nothing is tried twice.
        """
        del text_bytes
        with connected(self.address) as ray:
            yield from _in_tasks(ray, function, items, files, self.workers)


def _in_tasks(
    ray: Any, function: Callable[[Item], Result], items: Sequence[Item], files: Sequence[Location], workers: int | None
) -> Iterator[Result]:
    workers = workers or _PER_CPU * int(ray.cluster_resources().get("CPU", 0))
    if not workers:
        raise RankscopeError("the Ray cluster has no CPU for tasks; `ray status` shows what it has")
    # Spread: disks and network of all nodes read side by side. Not tried again: one that ran out of memory would for ever be.
    task = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(node_task())
    here = (version("rankscope"), os.getcwd(), pickle.dumps(function))
    todo = iter(zip(items, files, strict=True))
    waiting: deque[tuple[Any, Location]] = deque()
    running: list[Any] = []
    try:
        while True:
            while len(running) < workers and len(waiting) < (1 + AHEAD) * workers and (job := next(todo, None)):
                item, file = job
                running.append(task.remote(*here, pickle.dumps(item), *_seen_here(file)))
                waiting.append((running[-1], file))
            if not waiting:
                return
            _, running = ray.wait(running, num_returns=1)
            while waiting and waiting[0][0] not in running:
                yield _result(ray, *waiting.popleft())
    except ConnectionError as error:
        raise RankscopeError(f"the connection to the Ray cluster was lost: {one_line(error)}") from error
    finally:
        # On Ctrl-C, an error, or when nobody wants the rest; a connection that is gone has taken its tasks with it.
        with suppress(Exception):
            for task in running:
                ray.cancel(task, force=True)


def _seen_here(file: Location) -> tuple[str | None, int]:
    """A file that nodes are to see, and its size; ``None`` for a URL, and for what is not here either: reading it says so."""
    return (os.fspath(file), file.stat().st_size) if isinstance(file, Path) and file.is_file() else (None, 0)


def node_task() -> Callable[[str, str, bytes, bytes, str | None, int], tuple[str, str, bytes]]:
    """What a node runs for one item: returns an outcome, the node's name, and a pickle of what came of it.

    Made here, rather than a function of this module, so that it travels by value: on a node without rankscope a function that
    travels by its name cannot even be read. Results are pickled so that they are the same as from a local process: Ray's own
    arrays cannot be written to.
    """

    def run(wanted: str, folder: str, function: bytes, item: bytes, file: str | None, size: int) -> tuple[str, str, bytes]:
        import contextlib
        import importlib.metadata
        import os
        import pickle
        import socket

        node = socket.gethostname()
        try:
            found = importlib.metadata.version("rankscope")
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found != wanted:
            return "version", node, pickle.dumps(found)
        # For paths that are relative; where there is no such folder, they lead nowhere.
        with contextlib.suppress(OSError):
            os.chdir(folder)
        try:
            if file is not None and os.stat(file).st_size != size:
                return "unseen", node, pickle.dumps("has another file there")
            if file is not None and not os.access(file, os.R_OK):
                return "unseen", node, pickle.dumps("may not read it")
        except OSError as error:
            return "unseen", node, pickle.dumps(f"does not see it ({error.strerror})")
        try:
            from rankscope.runs.errors import RankscopeError

            try:
                return "done", node, pickle.dumps(pickle.loads(function)(pickle.loads(item)))
            except (RankscopeError, OSError) as error:
                return "failed", node, pickle.dumps(error)
        except ModuleNotFoundError as error:
            return "lacks", node, pickle.dumps(error.name)

    return run


def _result(ray: Any, task: Any, file: Location) -> Any:
    try:
        outcome, node, pickled = ray.get(task)
    except ray.exceptions.RayTaskError:
        raise  # a fault of ours, with the traceback from there
    except ray.exceptions.OutOfMemoryError as error:
        raise RankscopeError(
            f"a node of the Ray cluster ran out of memory with {file}: use fewer at a time (--workers)"
        ) from error
    except ray.exceptions.RayError as error:
        raise RankscopeError(
            f"the Ray cluster lost a task, which read {file} ({type(error).__name__}): was it killed, is memory short there, is a "
            "node gone?"
        ) from error
    return understood(outcome, node, pickle.loads(pickled), file)  # noqa: S301  # from the cluster that we sent our code to


def understood(outcome: str, node: str, value: Any, file: Location) -> Any:
    """The value that a node sent; raises what it stands for otherwise."""
    here = version("rankscope")
    match outcome:
        case "done":
            return value
        case "version":
            has = "no rankscope" if value is None else f"rankscope {value}, not {here}"
            raise MissingError(
                f"node {node} of the Ray cluster has {has}; on all nodes: pip install 'rankscope[analysis]=={here}'"
            )
        case "lacks":
            raise MissingError(
                f"node {node} of the Ray cluster lacks the Python package {value!r}; on all nodes: "
                f"pip install 'rankscope[analysis]=={here}'"
            )
        case "unseen":
            raise InputError(
                file, f"node {node} of the Ray cluster {value}: it has to be on storage that all nodes share (or --engine local)"
            )
        case _:
            if isinstance(value, MissingError):
                raise MissingError(f"node {node} of the Ray cluster: {value}")
            raise value

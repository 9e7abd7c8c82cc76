"""Engine that processes the ranks on an existing Ray cluster; it never starts one.

A node runs the function for one item, after a check that it has the same rankscope and can read the item's file.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from rankscope.analysis.parallel.ray_cluster import connected
from rankscope.analysis.parallel.workers import AHEAD, Item, Result
from rankscope.analysis.trace.locations import Location, one_line
from rankscope.base.errors import InputError, MissingError, RankscopeError

_PER_CPU: Final = 2
"""Tasks per CPU: a second one keeps each CPU busy, and shows an autoscaling cluster the demand."""

Caller = tuple[str, str, bytes]
"""Version of rankscope, the folder that relative paths start from, and the pickled function: the same for all items."""
FileSize = tuple[str, int]
"""Path and size of a file that a node must see."""
NodeOutcome = Literal["done", "failed", "version", "lacks", "unseen"]
NodeAnswer = tuple[NodeOutcome, str, bytes]
"""Outcome, name of the node, and the pickled result, error or detail."""


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Engine that runs one task per rank on the Ray cluster at ``address``.

    Up to ``workers`` tasks run at a time (``None``: two per CPU). A program that is already connected to a cluster uses that
    one, with its runtime environment, and stays connected.
    """

    address: str | None = None
    workers: int | None = None

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], *, files: Sequence[Location], text_bytes: int
    ) -> Iterator[Result]:
        """Implement ``workers.Engine.map``.

        Raises:
            InputError: no cluster answers, the cluster has another version, or one of its nodes does not see a file.
            MissingError: Ray is not installed here, or a node lacks rankscope of this version.
            RankscopeError: a task was killed; tasks are not retried.
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
    # SPREAD reads through the disks and networks of all nodes at once. No retries: Ray retries out-of-memory tasks forever.
    run = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(node_task())
    caller = caller_of(function)
    todo = iter(zip(items, files, strict=True))
    waiting: deque[tuple[Any, Location]] = deque()
    running: list[Any] = []
    try:
        while True:
            while len(running) < workers and len(waiting) < (1 + AHEAD) * workers and (job := next(todo, None)):
                item, file = job
                running.append(run.remote(caller, pickle.dumps(item), _seen_here(file)))
                waiting.append((running[-1], file))
            if not waiting:
                return
            _, running = ray.wait(running, num_returns=1)
            while waiting and waiting[0][0] not in running:
                yield _result(ray, *waiting.popleft())
    except ConnectionError as error:
        raise RankscopeError(f"the connection to the Ray cluster was lost: {one_line(error)}") from error
    finally:
        # After Ctrl-C, an error, or when the caller stops iterating. A lost connection has already ended its tasks.
        with suppress(Exception):
            for task in running:
                ray.cancel(task, force=True)


def _seen_here(file: Location) -> FileSize | None:
    """Return the path and size that nodes must see; ``None`` for a URL or a missing file, which fails when it is read."""
    return (os.fspath(file), file.stat().st_size) if isinstance(file, Path) and file.is_file() else None


def _result(ray: Any, task: Any, file: Location) -> Any:
    try:
        answer = ray.get(task)
    except ray.exceptions.RayTaskError:
        raise  # a bug of rankscope; the error has the node's traceback
    except ray.exceptions.OutOfMemoryError as error:
        raise RankscopeError(
            f"a node of the Ray cluster ran out of memory with {file}: use fewer at a time (--workers)"
        ) from error
    except ray.exceptions.RayError as error:
        raise RankscopeError(
            f"a task on the Ray cluster, with {file}, was lost ({type(error).__name__}): was it killed, is memory short there, "
            "or is a node gone?"
        ) from error
    return unwrap_answer(answer, file)


def caller_of(function: Callable[[Any], Any]) -> Caller:
    """Return what nodes need to know of this process and of the ``function`` that they run."""
    return metadata.version("rankscope"), os.fspath(Path.cwd()), pickle.dumps(function)


def node_task() -> Callable[[Caller, bytes, FileSize | None], NodeAnswer]:
    """Return the function that a node runs.

    Its arguments are the caller, the pickled item, and the item's file if the node must see one. The function is
    nested so that Ray sends it by value: a node without rankscope could not unpickle a module-level function. Results are
    pickled here, because arrays that Ray unpickles are read-only.
    """

    def unseen(file: Path, size: int) -> str | None:
        try:
            size_found = file.stat().st_size
        except OSError as error:
            return f"does not see it ({error.strerror})"
        if size_found != size:
            return "has another file there"
        return None if os.access(file, os.R_OK) else "may not read it"

    def run(caller: Caller, item: bytes, file: FileSize | None) -> NodeAnswer:
        wanted, folder, function = caller
        node = socket.gethostname()
        try:
            version = metadata.version("rankscope")
        except metadata.PackageNotFoundError:
            version = None
        if version != wanted:
            return "version", node, pickle.dumps(version)
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


def unwrap_answer(answer: NodeAnswer, file: Location) -> Any:
    """Return the result in a node's answer, or raise the error that the answer stands for."""
    outcome, name, pickled = answer
    value = pickle.loads(pickled)  # noqa: S301  # from the cluster that runs our code
    own_version = metadata.version("rankscope")
    node, install = f"node {name} of the Ray cluster", f"on all nodes: pip install 'rankscope[analysis]=={own_version}'"
    if outcome == "version":
        raise MissingError(f"{node} has {f'rankscope {value}, not {own_version}' if value else 'no rankscope'}; {install}")
    if outcome == "lacks":
        raise MissingError(f"{node} lacks the Python package {value!r}; {install}")
    if outcome == "unseen":
        raise InputError(file, f"{node} {value}: it has to be on storage that all nodes share (or --engine local)")
    if isinstance(value, MissingError):
        raise MissingError(f"{node}: {value}")
    if outcome == "failed":
        raise value
    return value

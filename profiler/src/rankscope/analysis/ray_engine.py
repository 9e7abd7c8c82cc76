"""The ranks worked through on a Ray cluster that is there already; none is ever started here."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankscope.analysis.locations import Location, one_line
from rankscope.analysis.ray_cluster import connected
from rankscope.analysis.ray_node import Here, node_task, understood
from rankscope.analysis.workers import AHEAD, Item, Result
from rankscope.base.errors import RankscopeError

_PER_CPU: Final = 2
"""Tasks for each CPU: the next one is there when one is done, and a cluster that grows on demand sees the demand."""


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
    # Spread: disks and networks of all nodes are read side by side. Not tried again: for want of memory Ray would for ever.
    run = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(node_task())
    here = tuple(Here.of(function))
    todo = iter(zip(items, files, strict=True))
    waiting: deque[tuple[Any, Location]] = deque()
    running: list[Any] = []
    try:
        while True:
            while len(running) < workers and len(waiting) < (1 + AHEAD) * workers and (job := next(todo, None)):
                item, file = job
                running.append(run.remote(here, pickle.dumps(item), _seen_here(file)))
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


def _seen_here(file: Location) -> tuple[str, int] | None:
    """What nodes are to see; ``None`` for a URL, and for what is not here either: reading it says so."""
    return (os.fspath(file), file.stat().st_size) if isinstance(file, Path) and file.is_file() else None


def _result(ray: Any, task: Any, file: Location) -> Any:
    try:
        answer = ray.get(task)
    except ray.exceptions.RayTaskError:
        raise  # a fault of ours, with the traceback from there
    except ray.exceptions.OutOfMemoryError as error:
        raise RankscopeError(
            f"a node of the Ray cluster ran out of memory with {file}: use fewer at a time (--workers)"
        ) from error
    except ray.exceptions.RayError as error:
        raise RankscopeError(
            f"a task on the Ray cluster, with {file}, was lost ({type(error).__name__}): was it killed, is memory short there, "
            "or is a node gone?"
        ) from error
    return understood(answer, file)

"""Engine that processes the ranks on an existing Ray cluster; it never starts one."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rankscope.analysis.parallel.ray_cluster import connected
from rankscope.analysis.parallel.ray_node import Here, node_task, understood
from rankscope.analysis.parallel.workers import AHEAD, Item, Result
from rankscope.analysis.trace.locations import Location, one_line
from rankscope.base.errors import RankscopeError

_PER_CPU: Final = 2
"""Tasks per CPU: a second one keeps each CPU busy, and shows an autoscaling cluster the demand."""


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
        # After Ctrl-C, an error, or when the caller stops iterating. A lost connection has already ended its tasks.
        with suppress(Exception):
            for task in running:
                ray.cancel(task, force=True)


def _seen_here(file: Location) -> tuple[str, int] | None:
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
    return understood(answer, file)

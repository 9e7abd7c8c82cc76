"""Names of the node's pods by their uids, from the folder in which the kubelet keeps their logs.

Control groups have the uids of pods, and the kubelet's PodResources service their names; only this folder has both.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from rankscope.exporter.jobs.bounded_calls import BoundedCalls
from rankscope.exporter.jobs.environment import word

DEFAULT_FOLDER: Final = Path("/var/log/pods")

_DEADLINE_S: Final = 0.5
_MAX_FOLDERS: Final = 4096

PodName = tuple[str, str]
"""Namespace and name of a pod."""


class PodNames:
    """Cache of pod names; the folder is listed only while a wanted uid is unknown. Not thread-safe."""

    def __init__(self, folder: Path = DEFAULT_FOLDER) -> None:
        self._folder = folder
        self._bounded_calls = BoundedCalls(_DEADLINE_S)
        self._names: dict[str, PodName] = {}

    def names(self, uids: Collection[str]) -> dict[str, PodName]:
        """Return the names of those pods whose names are known. Does not fail, and waits at most half a second."""
        if not self._names.keys() >= set(uids):
            with contextlib.suppress(OSError):  # no kubelet runs here, or the disk does not answer
                self._names = self._bounded_calls.call(lambda: _listed(self._folder))
        return {uid: self._names[uid] for uid in uids if uid in self._names}


def _listed(folder: Path) -> dict[str, PodName]:
    """Read the names ``NAMESPACE_NAME_UID`` of the pods' folders; none of a folder that other users can write to."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return {}
        with os.scandir(fd) as entries:
            names = [entry.name.split("_") for entry in itertools.islice(entries, _MAX_FOLDERS)]
    finally:
        os.close(fd)
    return {
        uid: (namespace, name)
        for namespace, name, uid in (parts for parts in names if len(parts) == 3)
        if word(namespace) and word(name)
    }

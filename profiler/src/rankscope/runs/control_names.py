"""Names of requests and answers in ``RUN/control``, and the removal of old ones.

``ID.json`` is a request, ``ID.answer.json`` the answer for the whole job, ``ID.answers/RRRRR.json`` that of one rank: in a folder
of its own, so that a thousand ranks do not fill the one that is looked through for requests.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

REQUEST_ID: Final = r"[0-9]{19}-[0-9a-f]{8}"
MAX_ENTRIES: Final = 10_000
"""Names that one look at the folder goes through."""
KEPT: Final = 256
"""Void requests that are kept, as a log; the newest."""
KEPT_SECONDS: Final = 24 * 3600.0
"""How long they are."""
REMOVED_AT_ONCE: Final = 500
"""Names; a slow disk shall not keep who removes them from all else."""

_PART: Final = r"(?:\.[0-9]+-[0-9a-f]{12})?"
"""What a writer that was killed leaves behind ends with this, and begins with a dot."""
_OURS: Final = re.compile(rf"\.?({REQUEST_ID})(?:\.json|\.answer\.json|\.answers){_PART}")
_RANK_ANSWER: Final = re.compile(rf"\.?[0-9]{{5,10}}\.json{_PART}")
_IN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def request_name(request_id: str) -> str:
    """``ID.json``."""
    return f"{request_id}.json"


def answer_name(request_id: str, rank: int | None) -> str:
    """``ID.answer.json``, or ``ID.answers/RRRRR.json`` for one rank."""
    return f"{request_id}.answer.json" if rank is None else f"{request_id}.answers/{rank:05d}.json"


def made_ns(request_id: str) -> int:
    """When a request was made, unix nanoseconds."""
    return int(request_id.partition("-")[0])


def remove_old(folder: int, here_ns: int, *, void_ns: int) -> bool:
    """Remove what concerns old requests from the opened ``folder``; whatever else lies there stays, and no link is followed.

    Old is what is more than ``KEPT_SECONDS`` away from ``here_ns`` and, of what is at least ``void_ns`` away, all but the
    ``KEPT`` nearest. Returns whether all of it was looked at. Raises ``OSError`` where the folder cannot be listed.
    """
    with os.scandir(folder) as entries:
        names = [(entry.name, found[1]) for entry in islice(entries, MAX_ENTRIES) if (found := _OURS.fullmatch(entry.name))]
    away = {one: abs(here_ns - made_ns(one)) for _, one in names}
    void = sorted((one for one in away if away[one] >= void_ns), key=away.__getitem__)
    old = {one for place, one in enumerate(void) if place >= KEPT or away[one] > KEPT_SECONDS * 1e9}
    removals = _removals(folder, (name for name, one in names if one in old))
    for remove in islice(removals, REMOVED_AT_ONCE):
        with suppress(OSError):
            remove()
    return next(removals, None) is None


def _removals(folder: int, names: Iterable[str]) -> Iterator[Callable[[], None]]:
    for name in names:
        with suppress(OSError):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                yield lambda name=name: os.unlink(name, dir_fd=folder)  # type: ignore[misc]
            elif stat.S_ISDIR(mode) and name.endswith(".answers"):
                yield from _folder_removals(folder, name)


def _folder_removals(folder: int, name: str) -> Iterator[Callable[[], None]]:
    within = os.open(name, _IN_FOLDER, dir_fd=folder)
    try:
        with os.scandir(within) as entries:
            files = [
                entry.name
                for entry in islice(entries, MAX_ENTRIES)
                if _RANK_ANSWER.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        for file in files:
            yield lambda file=file: os.unlink(file, dir_fd=within)  # type: ignore[misc]
        yield lambda: os.rmdir(name, dir_fd=folder)  # not where something else is in it
    finally:
        os.close(within)

"""Names of requests and answers in ``RUN/control``, and the removal of old ones.

``ID.json`` is a request, ``ID.answer.json`` the answer for the whole job, ``ID.answers/RRRRR.json`` that of one rank. Answers of
ranks have a folder of their own: a thousand of them must not fill the folder that is scanned for requests.
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
"""Maximum names that one scan of the folder reads."""
MOST_VOID: Final = 256
"""Maximum void requests that are kept as a log; the newest are."""
KEPT_SECONDS: Final = 24 * 3600.0
"""Maximum age of the void requests that are kept."""
REMOVED_AT_ONCE: Final = 500
"""Maximum names removed per call: a slow disk must not hold up the caller."""

_PART: Final = r"(?:\.[0-9]+-[0-9a-f]{12})?"
"""Suffix of the temporary file of a writer that was killed; its name begins with a dot."""
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
    """Return the creation time of a request, unix nanoseconds."""
    return int(request_id.partition("-")[0])


def remove_old(folder: int, here_ns: int, *, void_ns: int) -> bool:
    """Remove old requests and their answers from the opened ``folder``; other files stay, and no link is followed.

    A request is old if it is more than ``KEPT_SECONDS`` away from ``here_ns``. Of those at least ``void_ns`` away, all but the
    ``MOST_VOID`` nearest are old, too. Returns whether no removal is left for another call. Raises ``OSError`` where the folder
    cannot be listed.
    """
    with os.scandir(folder) as entries:
        names = [(entry.name, match[1]) for entry in islice(entries, MAX_ENTRIES) if (match := _OURS.fullmatch(entry.name))]
    distance_ns = {file_name: abs(here_ns - made_ns(file_name)) for _, file_name in names}
    void = sorted((file_name for file_name in distance_ns if distance_ns[file_name] >= void_ns), key=distance_ns.__getitem__)
    old = {file_name for place, file_name in enumerate(void) if place >= MOST_VOID or distance_ns[file_name] > KEPT_SECONDS * 1e9}
    removals = _removals(folder, (name for name, file_name in names if file_name in old))
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
        yield lambda: os.rmdir(name, dir_fd=folder)  # fails where other files are in it
    finally:
        os.close(within)

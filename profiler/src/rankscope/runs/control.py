"""Requests to a running job and their answers, as files in ``RUN/control``.

``ID.json`` is a request; ``ID.answer.json`` answers it for the whole job, ``ID.answers/RRRRR.json`` for one rank. Every process
with write permission on the folder may request. So its contents are untrusted: every read is bounded in time and memory.
"""

from __future__ import annotations

import errno
import getpass
import heapq
import math
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from rankscope.base.atomic_files import replace_file
from rankscope.base.problems import ProblemLog
from rankscope.base.text import one_line
from rankscope.runs.control_names import MAX_ENTRIES, REQUEST_ID, answer_name, made_ns, remove_old, request_name
from rankscope.runs.paths import control_dir

CONTROL_SCHEMA: Final = "rankscope.control/1"

MAX_STEPS: Final = 50
"""Maximum steps of one request: a longer trace does not fit in local memory."""
MAX_AGE_SECONDS: Final = 600.0
"""Maximum age of a request; an older one is void, as its sender no longer waits. A request dated further than this in the
future (clock skew) is void, too."""
MAX_REQUESTS: Final = 256
"""Maximum request files read within ``MAX_AGE_SECONDS``; further ones wait, or become too old."""
MAX_BYTES: Final = 256 * 1024
"""Maximum size of a request or answer; a larger file is rejected."""
POLL_SECONDS: Final = 1.0
CLEAR_SECONDS: Final = 60.0
"""Interval between removals of old requests."""
_SETTLE_SECONDS: Final = 3.0
"""Time after its last seen change from which an unchanged folder is skipped. Earlier, a coarse mtime may hide another change."""

_REQUEST_NAME: Final = re.compile(rf"({REQUEST_ID})\.json")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Kind = Literal["capture", "dump"]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Ranks = Annotated[list[Number], msgspec.Meta(min_length=1, max_length=65_536)]
RequestId = Annotated[str, msgspec.Meta(pattern=rf"^{REQUEST_ID}$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``control/ID.json``: one request to the running job."""

    schema: Literal["rankscope.control/1"] = CONTROL_SCHEMA
    id: RequestId
    """Creation time (unix nanoseconds) and eight random hexadecimal digits: sorts by time and names the request's file."""
    kind: Kind
    """``capture``: profile some of the next steps, the same on all ranks. ``dump``: write the Flight Recorder's contents."""
    created_unix_ns: Count
    by: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Sender as the request states it, unverified: ``user@host``."""
    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] = 3
    """``capture``: number of steps."""
    ranks: Ranks | None = None
    """Ranks that the request is for; ``None``: all."""
    keep_trace: bool = False
    """``capture``: also keep the raw traces."""
    note: Annotated[str, msgspec.Meta(max_length=500)] | None = None
    """Reason for the request, for people."""


class ControlAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``control/ID.answer.json`` or ``control/ID.answers/RRRRR.json``: the outcome of a request."""

    schema: Literal["rankscope.control/1"] = CONTROL_SCHEMA
    id: RequestId
    accepted: bool
    reason: str | None = None
    """Reason for a refusal."""
    attempt: Number | None = None
    """Attempt that serves the request."""
    first_step: Count | None = None
    last_step: Count | None = None
    """``capture``: first and last step that will be profiled, both included."""
    ranks: Ranks | None = None
    """Ranks that serve the request; ``None``: all."""
    answered_unix_ns: Count


_Record = TypeVar("_Record", ControlRequest, ControlAnswer)


def new_request(
    kind: Kind, *, steps: int = 3, ranks: list[int] | None = None, keep_trace: bool = False, note: str | None = None
) -> ControlRequest:
    """Return a new request by the user of this process. Raises ``msgspec.ValidationError`` for values out of bounds."""
    now = time.time_ns()
    request = ControlRequest(
        id=f"{now:019d}-{secrets.token_hex(4)}",
        kind=kind,
        created_unix_ns=now,
        by=_asker(),
        steps=steps,
        ranks=ranks,
        keep_trace=keep_trace,
        note=note,
    )
    return msgspec.convert(msgspec.to_builtins(request), ControlRequest)


def _asker() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}".encode(errors="replace").decode()[:200]


def post(run: Path, request: ControlRequest) -> Path:
    """Write a request into the run and return the path of its file. Raises ``OSError``."""
    make_control_dir(run)
    with _opened(control_dir(run)) as folder:
        _write(folder, request_name(request.id), request)
    return control_dir(run) / request_name(request.id)


def answer(run: Path, control_answer: ControlAnswer, *, rank: int | None = None) -> None:
    """Answer a request, for the whole job or for one rank.

    Raises ``OSError``, also where ``control`` is missing: then the run was removed.
    """
    name = answer_name(control_answer.id, rank)
    with _opened(control_dir(run)) as folder:
        if rank is None:
            _write(folder, name, control_answer)
            return
        within, _, name = name.rpartition("/")
        _make_like(within, folder, os.fstat(folder))
        with _opened(within, folder) as answers:
            _write(answers, name, control_answer)


def _write(folder: int, name: str, record: ControlRequest | ControlAnswer) -> None:
    data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    replace_file(name, data, folder=folder, shared=True)


def read_answer(run: Path, request_id: str, *, rank: int | None = None) -> ControlAnswer | None:
    """Return the answer, or ``None`` while there is no readable one."""
    try:
        with _opened(control_dir(run)) as folder:
            control_answer = _read_answer(folder, request_id, rank)
    except (OSError, ValueError):
        return None
    return control_answer if control_answer.id == request_id else None


def _read_answer(folder: int, request_id: str, rank: int | None) -> ControlAnswer:
    name = answer_name(request_id, rank)
    if rank is None:
        return _read(folder, name, ControlAnswer)
    within, _, name = name.rpartition("/")
    with _opened(within, folder) as answers:
        return _read(answers, name, ControlAnswer)


def make_control_dir(run: Path) -> None:
    """Create ``control`` unless it exists, with the group and permissions of the run's folder. Raises ``OSError``."""
    _make_like(control_dir(run), None, run.stat())


def _make_like(folder: Path | str, parent: int | None, like: os.stat_result) -> None:
    """Create ``folder`` unless it exists, with the group and permissions of ``like``."""
    try:
        os.mkdir(folder, dir_fd=parent)  # relative to a descriptor
    except FileExistsError:
        return
    # Through a descriptor, because another user may put a link in its place.
    with _opened(folder, parent) as folder_fd:
        with suppress(OSError):
            os.fchown(folder_fd, -1, like.st_gid)
        mode = stat.S_IMODE(like.st_mode)
        if os.fstat(folder_fd).st_gid != like.st_gid:
            mode &= ~stat.S_IRWXG  # fchown failed: the permissions are not meant for this group
        os.fchmod(folder_fd, mode)


class ControlInbox:
    """Pending requests of one ``kind`` for a process that serves them; each request is returned once.

    Void are requests made before ``since_unix_ns`` (an earlier attempt's) or too long ago. So are requests that already have an
    answer, for the job or for the given ``rank``, such as from a helper that was killed. ``report`` receives a line for people
    about the first invalid request file, and one if there are too many files. ``clears``: also remove old requests.
    """

    def __init__(
        self,
        run: Path,
        kind: Kind,
        *,
        since_unix_ns: int,
        report: Callable[[str], None],
        rank: int | None = None,
        clears: bool = False,
    ) -> None:
        self._folder = control_dir(run)
        self._kind = kind
        self._since = since_unix_ns
        self._problems = ProblemLog(report, each_reason=False)
        self._rank = rank
        self._clear_at = 0.0 if clears else math.inf
        self._taken_names: set[str] = set()
        self._due = 0.0
        self._changed_ns: int | None = None
        self._settled = 0.0

    def pending(self, *, now: bool = False) -> list[ControlRequest]:
        """Return new requests, oldest first. Reads the folder at most every ``POLL_SECONDS``, unless ``now``. Never raises."""
        if not now and time.monotonic() < self._due:
            return []
        self._due = time.monotonic() + POLL_SECONDS
        try:
            with _opened(self._folder) as folder:
                self._clear(folder)
                return list(self._take(folder)) if self._may_hold_news(folder) else []
        except OSError:
            # There was no request yet; or the disk is unavailable, which the writers report.
            self._changed_ns = None
            return []

    def still_wanted(self, request: ControlRequest) -> bool:
        """Return whether a request that has waited is still valid: neither too old nor withdrawn. Never raises."""
        if abs(time.time_ns() - made_ns(request.id)) > MAX_AGE_SECONDS * 1e9:
            return False
        try:
            with _opened(self._folder) as folder:
                os.stat(request_name(request.id), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # the disk is unavailable: a withdrawal is not known
        return True

    def _clear(self, folder: int) -> None:
        if time.monotonic() >= self._clear_at:
            self._clear_at = time.monotonic() + CLEAR_SECONDS
            if not remove_old(folder, time.time_ns(), void_ns=int(MAX_AGE_SECONDS * 1e9)):
                self._clear_at = 0.0

    def _may_hold_news(self, folder: int) -> bool:
        changed, now_s = os.fstat(folder).st_mtime_ns, time.monotonic()
        if changed != self._changed_ns:
            self._changed_ns, self._settled = changed, now_s + _SETTLE_SECONDS
        return now_s <= self._settled

    def _take(self, folder: int) -> Iterator[ControlRequest]:
        now_ns, age = time.time_ns(), int(MAX_AGE_SECONDS * 1e9)
        first, last = max(self._since, now_ns - age), now_ns + age
        self._taken_names = {name for name in self._taken_names if first <= made_ns(name) <= last}
        new = (name for name in self._ids(folder) if first <= made_ns(name) <= last and name not in self._taken_names)
        chosen = heapq.nsmallest(MAX_REQUESTS - len(self._taken_names), new)
        self._taken_names.update(chosen)
        if len(self._taken_names) >= MAX_REQUESTS:
            self._changed_ns = None  # more requests may wait until the first of these are void
        for name in chosen:
            if any(_is_there(folder, answer_name(name, rank)) for rank in {None, self._rank}):
                continue
            try:
                request = _read(folder, request_name(name), ControlRequest)
            except FileNotFoundError:
                continue  # withdrawn
            except (OSError, ValueError) as error:
                self._malformed(name, _why(error))
                continue
            if request.id != name:
                self._malformed(name, f"it says to be {request.id}")
            elif request.kind == self._kind and (self._rank is None or request.ranks is None or self._rank in request.ranks):
                yield request

    def _malformed(self, name: str, why: str) -> None:
        self._problems.report(f"control/{name}.json is no request: {why}", "malformed")

    def _ids(self, folder: int) -> Iterator[str]:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_ENTRIES:
                    self._problems.report(f"control/ holds more than {MAX_ENTRIES} files; requests may go unseen", "too many")
                    return
                if name := _REQUEST_NAME.fullmatch(entry.name):
                    yield name[1]


@contextmanager
def _opened(folder: Path | str, parent: int | None = None) -> Iterator[int]:
    opened = os.open(folder, _FOLDER, dir_fd=parent)
    try:
        yield opened
    finally:
        os.close(opened)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _read(folder: int, name: str, kind: type[_Record]) -> _Record:
    """Decode a small regular file. Raises ``OSError``, and ``ValueError`` for invalid contents.

    Opens without blocking: opening a FIFO without a writer would block for ever.
    """
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _why(error: OSError | ValueError) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return one_line(text[:200])

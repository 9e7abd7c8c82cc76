"""Locations of traces: local paths, or URLs of any filesystem that fsspec knows (``s3://…``, ``gs://…``, ``memory://…``)."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from rankscope.base.errors import InputError, MissingError, RankscopeError
from rankscope.base.regular_files import open_regular
from rankscope.runs.run_files import open_run_file

Location = Path | str
"""Location of a file: a ``Path`` is local, a ``str`` is a URL."""

OPERATIONS_SUFFIX: Final = ".parquet"
"""Suffix of files of traced operations, which are not traces."""

_PATTERN: Final = frozenset("*?[")
_NOT_THERE: Final = (404, 410)
_DENIED: Final = (401, 403, 407)
_CREDENTIALS: Final = re.compile("Credential|Auth|Forbidden|Unauthorized|AccessDenied|SSO|TokenRetrieval")
_NETWORK: Final = re.compile("Connect|Timeout|Timed|Network|Resol|DNS|SSL")

_T = TypeVar("_T")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*://")


def location(written: str | os.PathLike[str]) -> Location:
    """Convert user input to a local path or a URL. Raises ``InputError`` for empty input, as from an unset shell variable."""
    text = os.fspath(written)
    if not text:
        raise InputError("''", "no path")
    return text if _URL.match(text) else Path(text)


def matching_paths(path: Path) -> list[Path]:
    """Return the paths that a pattern matches; the path itself where it exists or is no pattern.

    Raises ``InputError`` for a pattern without a match.
    """
    if path.exists() or not _PATTERN & set(str(path)):
        return [path]
    matching = [Path(name) for name in sorted(glob.glob(os.fspath(path), recursive=True))]  # noqa: PTH207  # Path.glob refuses absolute patterns
    if not matching:
        raise InputError(path, "no file matches this pattern")
    return matching


def local_path(written: str | os.PathLike[str]) -> Path:
    """Convert user input to a local path. Raises ``InputError`` for a URL, which would otherwise be reported as missing."""
    place = location(written)
    if isinstance(place, str):
        raise InputError(place, "read from folders only, not from a URL: mount it (mountpoint-s3, rclone) or copy it here")
    return place


def base_name(place: Location) -> str:
    """Return the file's name without its folders."""
    return os.fspath(place).rstrip("/").rpartition("/")[2]


def common_folder(places: Sequence[Location]) -> str:
    """Return the deepest folder that contains all files, for messages; empty where there is none."""
    parts = [os.fspath(place.absolute() if isinstance(place, Path) else place).split("/") for place in places]
    same = takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))
    return "/".join(names[0] for names in same)


def open_location(place: Location, *, of_run: bool = False) -> BinaryIO:
    """Open a file for reading; ``of_run``: one in a run directory, without following links.

    Raises ``OSError``, ``InputError``, or ``MissingError`` where a package is not installed.
    """
    if isinstance(place, Path):
        return open_run_file(place) if of_run else open_regular(place)
    filesystem, inside = filesystem_of(place)
    file: BinaryIO = translate_errors(place, lambda: filesystem.open(inside, "rb"))
    return file


def list_remote(url: str, suffixes: Sequence[str]) -> tuple[list[str], bool]:
    """Return the files that the URL of a file, folder or pattern names, and whether the URL is that of one file.

    Raises ``InputError`` where there is no file, ``MissingError`` where a package is not installed.
    """
    filesystem, inside = filesystem_of(url)
    if _is_remote_file(url, filesystem, inside):
        return [url], True
    if set("*?[") & set(inside):
        names = translate_errors(url, lambda: [name for name in filesystem.glob(inside) if filesystem.isfile(name)])
        missing = "no file matches this pattern"
    else:
        names = translate_errors(url, lambda: [name for name in filesystem.find(inside) if name.endswith(tuple(suffixes))])
        missing = f"no such file, nor a folder with traces ({', '.join('*' + suffix for suffix in suffixes)})"
    if not names:
        raise InputError(url, missing)
    return [filesystem.unstrip_protocol(name) for name in sorted(names)], False


def _is_remote_file(url: str, filesystem: Any, inside: str) -> bool:
    """Return whether a URL is that of a file.

    Raises ``InputError`` where that cannot be determined; a filesystem's ``isfile`` returns false then.
    """
    try:
        return bool(filesystem.info(inside)["type"] == "file")
    except FileNotFoundError as error:
        # The HTTP filesystem raises FileNotFoundError for every failure, with the actual error as its cause.
        reason = error.__cause__
        status = getattr(reason, "status", None)
        if reason is None or isinstance(reason, FileNotFoundError) or status in _NOT_THERE:
            return False
        raise InputError(url, _refused(url, reason)) from error
    except Exception as error:
        raise _translated(url, error) from error


def translate_errors(url: str, ask: Callable[[], _T]) -> _T:
    """Return the result of ``ask``; translate the errors of a filesystem, which each has its own, to ``InputError``.

    Raises ``MissingError`` where a package is not installed.
    """
    try:
        return ask()
    except Exception as error:
        raise _translated(url, error) from error


def _translated(url: str, error: Exception) -> RankscopeError:
    if isinstance(error, RankscopeError):
        return error
    if isinstance(error, ImportError):
        # The message of fsspec names the package that provides the filesystem.
        return MissingError(f"{url}: {one_line(error)}: pip install it beside fsspec")
    if isinstance(error, FileNotFoundError):
        return InputError(url, "no such file")
    return InputError(url, _refused(url, error))


def _refused(url: str, error: BaseException) -> str:
    """Return the reason why a filesystem failed, and what to do about it.

    Filesystems define their own errors in packages that may not be installed, so errors are recognised by class name.
    """
    name, status, reason = type(error).__name__, getattr(error, "status", None), one_line(error)
    if isinstance(error, PermissionError) or status in _DENIED or _CREDENTIALS.search(name):
        return f"access denied: {reason}; give credentials for {url.partition('://')[0]}:// that may read it"
    if isinstance(status, int):
        return f"the server does not give it: {reason}"
    if (isinstance(error, OSError) and not isinstance(error, IsADirectoryError | NotADirectoryError)) or _NETWORK.search(name):
        return f"cannot be reached: {reason}; check the address, the network and the proxy"
    return reason


def filesystem_of(url: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URL and the path inside it. Raises ``InputError``, ``MissingError``."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingError(
            f"{url}: what is not on this machine's disks is read with fsspec: pip install 'rankscope[remote]'"
        ) from error
    filesystem: tuple[Any, str] = translate_errors(url, lambda: url_to_fs(url))
    return filesystem


def one_line(error: BaseException) -> str:
    """Return the message of another package's error in one line, for use in our own messages."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(text.split())[:300].rstrip(".") or type(error).__name__

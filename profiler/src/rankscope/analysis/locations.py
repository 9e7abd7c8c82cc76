"""Where a trace may lie: a local path, or a URL of any filesystem that fsspec knows (``s3://…``, ``gs://…``, ``memory://…``)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from rankscope.runs.errors import InputError, MissingError
from rankscope.runs.segments import open_regular

Location = Path | str
"""A ``Path`` is local, a ``str`` is a URL."""

_T = TypeVar("_T")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*://")


def location(written: str | os.PathLike[str]) -> Location:
    """What a person wrote, as a local path or a URL. Raises ``InputError`` for nothing, as of a variable that is not set."""
    text = os.fspath(written)
    if not text:
        raise InputError("''", "no path")
    return text if _URL.match(text) else Path(text)


def base_name(place: Location) -> str:
    """The file's name without its folders."""
    return os.fspath(place).rstrip("/").rpartition("/")[2]


def common_folder(places: Sequence[Location]) -> str:
    """The deepest folder that all files lie in, for people; empty where there is none."""
    parts = [os.fspath(place.absolute() if isinstance(place, Path) else place).split("/") for place in places]
    same = takewhile(lambda names: len(set(names)) == 1, zip(*parts, strict=False))
    return "/".join(names[0] for names in same)


def open_location(place: Location) -> BinaryIO:
    """Open a file for reading. Raises ``OSError``, ``InputError``, or ``MissingError`` where a package is not installed."""
    if isinstance(place, Path):
        return open_regular(place)
    filesystem, inside = _filesystem(place)
    file: BinaryIO = asked(place, lambda: filesystem.open(inside, "rb"))
    return file


def list_remote(url: str, suffixes: Sequence[str]) -> tuple[list[str], bool]:
    """Files that the URL of a file, folder or pattern names, and whether it named one file by itself.

    Raises ``InputError`` where there is none, ``MissingError`` where a package is not installed.
    """
    filesystem, inside = _filesystem(url)
    if asked(url, lambda: filesystem.isfile(inside)):
        return [url], True
    if set("*?[") & set(inside):
        names = asked(url, lambda: [name for name in filesystem.glob(inside) if filesystem.isfile(name)])
        missing = "no file matches this pattern"
    else:
        names = asked(url, lambda: [name for name in filesystem.find(inside) if name.endswith(tuple(suffixes))])
        missing = f"no such file, nor a folder with traces ({', '.join('*' + suffix for suffix in suffixes)})"
    if not names:
        raise InputError(url, missing)
    return [filesystem.unstrip_protocol(name) for name in sorted(names)], False


def asked(url: str, ask: Callable[[], _T]) -> _T:
    """What ``ask`` returns. A filesystem's own errors, of which there are as many as filesystems, become ``InputError``."""
    try:
        return ask()
    except ImportError as error:
        # fsspec knows the filesystem, and the package that has it, by name.
        raise MissingError(f"{url}: {one_line(error)}: pip install it beside fsspec") from error
    except FileNotFoundError as error:
        raise InputError(url, "no such file") from error
    except Exception as error:
        raise InputError(url, one_line(error)) from error


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingError(
            f"{url}: what is not on this machine's disks is read with fsspec: pip install 'rankscope[remote]'"
        ) from error
    found: tuple[Any, str] = asked(url, lambda: url_to_fs(url))
    return found


def one_line(error: Exception) -> str:
    """What another package's error says, for a message of ours."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return " ".join(said.split())[:300].rstrip(".") or type(error).__name__

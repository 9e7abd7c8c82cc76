"""Resolution of a path that names a run (its folder, its ``run.json``, the folder of one of its attempts) or a folder of runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from rankscope.base.errors import InputError
from rankscope.runs.paths import RUN_FILE, run_file
from rankscope.runs.reader import ATTEMPTS, RunReader, is_headless_run, is_run, is_visible_run
from rankscope.runs.run_files import real_run

DEFAULT_FOLDER: Final = "rankscope-runs"
"""Folder into which ``rankscope run`` records by default."""
_SHOWN: Final = 8


class NamedRun(NamedTuple):
    """Run and the attempt that the path names; ``None`` for the last one."""

    path: Path
    attempt: int | None

    def chosen(self, attempts: Sequence[int]) -> int:
        """Return the named attempt, else the last of ``attempts``, else 0."""
        return self.attempt if self.attempt is not None else attempts[-1] if attempts else 0


def named_run(path: Path) -> NamedRun | None:
    """Return the run that ``path`` names, or ``None`` where it names something else.

    A folder of attempts without a ``run.json`` counts as a run: reading it reports the problem. Raises ``InputError`` for the
    ``attempts`` folder, for an attempt that does not exist, and for a path without read permission.
    """
    try:
        named = _named_run(path)
        return None if named is None else NamedRun(real_run(named.path), named.attempt)
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


def _named_run(path: Path) -> NamedRun | None:
    if _looks_like_run(path):
        return NamedRun(path, None)
    # Made absolute so that `.` in the folder of an attempt works.
    absolute = path if len(path.parts) > 2 and os.pardir not in path.parts else Path(os.path.abspath(path))  # noqa: PTH100  # `..` is resolved, links are not
    if absolute.name == run_file(absolute).name and _is_readable_run(absolute.parent):
        return NamedRun(absolute.parent, None)
    if absolute.name == ATTEMPTS and _looks_like_run(absolute.parent):
        raise InputError(
            path, f"the attempts of a run; name the run, {absolute.parent}, or one of them{_such_as(absolute.parent)}"
        )
    run = absolute.parent.parent
    if absolute.name.isdecimal() and absolute.parent.name == ATTEMPTS and _looks_like_run(run):
        number, attempts = int(absolute.name), RunReader(run).attempts()
        if number not in attempts:
            raise InputError(path, f"no such attempt of the run; there {_listed(attempts)}")
        return NamedRun(run, number)
    return None


def runs_in(path: Path) -> list[Path]:
    """Return ``path`` if it is a run, else the runs directly inside it, by name. Raises ``OSError`` if ``path`` is unreadable.

    An unreadable folder inside it does not count as a run.
    """
    if is_run(path):
        return [path]
    # Paths of thousands of runs take longer to make than to look at.
    names = [name for name in os.listdir(path) if os.path.isfile(f"{path}/{name}/{RUN_FILE}")]  # noqa: PTH113, PTH208
    return [path / name for name in sorted(names)]


def newest_run(folder: Path = Path(DEFAULT_FOLDER)) -> Path:
    """Return the run in ``folder`` that started last; unreadable ones do not count. Raises ``InputError`` if there is none."""
    started: list[tuple[int, Path]] = []
    with suppress(OSError):
        for path in runs_in(folder):
            with suppress(InputError):
                started.append((RunReader(path).info.start_unix_ns, path))
    if not started:
        raise InputError(folder, "no run in it; name another path, or record one: rankscope run -- torchrun … train.py")
    return max(started)[1]


def refuse_folder_of_runs(path: Path) -> None:
    """Raise ``InputError`` if ``path`` is a folder directly above runs; unreadable runs are ignored."""
    if path.is_dir() and (runs := sorted(child for child in path.iterdir() if is_visible_run(child))):
        raise InputError(path, f"a folder of runs; name one of them, such as {max(runs, key=_last_write)}")


def _last_write(run: Path) -> float:
    try:
        return run.stat().st_mtime
    except OSError:
        return 0.0


def _looks_like_run(path: Path) -> bool:
    return is_run(path) or is_headless_run(path)


def _is_readable_run(folder: Path) -> bool:
    """Return whether ``folder`` holds a run; a trace may be named ``run.json``, too."""
    if not is_run(folder):
        return False
    try:
        RunReader(folder)
    except InputError:
        return False
    return True


def _such_as(run: Path) -> str:
    attempts = RunReader(run).attempts()
    return f", such as {run / ATTEMPTS / f'{attempts[-1]:03d}'}" if attempts else ""


def _listed(numbers: list[int]) -> str:
    if not numbers:
        return "is none yet"
    shown = ", ".join(map(str, numbers[-_SHOWN:]))
    before = f"{len(numbers) - _SHOWN} earlier ones and " if len(numbers) > _SHOWN else ""
    return f"{'is' if len(numbers) == 1 else 'are'} {before}{shown}"

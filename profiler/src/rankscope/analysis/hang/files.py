"""Flight Recorder dumps on disk: find the files and their ranks, and read dumps of any writer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from rankscope.analysis.hang.flight_records import NEWEST, RecorderDump, newer_version, parse, text, unreadable_fields
from rankscope.analysis.hang.job_dumps import dumps_of_one_job, origin_of
from rankscope.analysis.hang.meetings import CLOCKS_NS
from rankscope.analysis.hang.pickles import MAX_CONTAINERS, PickleError, load_plain
from rankscope.analysis.result.text import counted, joined
from rankscope.analysis.trace.locations import matching_paths
from rankscope.base.errors import InputError
from rankscope.base.regular_files import open_regular
from rankscope.base.text import ranks_text
from rankscope.runs.named import NamedRun, named_run, refuse_folder_of_runs
from rankscope.runs.paths import attempt_dir, flight_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.run_files import open_run_file
from rankscope.runs.world_size import recorded_world_size

MAX_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of a dump file; a larger file is refused."""
MAX_VALUES: Final = 12_000_000
"""Maximum number of values in JSON; a record of a collective has about 25."""
_TIMEOUT_MS: Final = 1_800_000
"""Torch's default timeout, where a dump does not have it."""

_HEAD: Final = 1 << 16
_TRACE: Final = b'"traceEvents"'
_KEY: Final = re.compile(rb'"(?:entries|pg_config|pg_status|comm_lib_version|nccl_version)"\s*:')

_NEWEST_TEXT: Final = f"the newest known version is {'.'.join(map(str, NEWEST))}"

_OURS: Final = re.compile(r"rank-(\d{5,9})-(.+)-([a-z0-9_]{1,40})\.(?:pickle|json)")
"""File names of the recorder: rank, occasion of the dump, backend."""
_ANY: Final = re.compile(r"(?:.*\D)?(\d{1,9})(?:\.(?:pickle|pkl|json|bin|dump|trace))?")
"""File names of torch: a configurable prefix, and the rank."""
_AT_THE_END: Final = ("watchdog", "crash")


@dataclass(frozen=True, slots=True)
class DumpFile:
    """A file whose name marks it as a rank's dump."""

    path: Path
    rank: int
    occasion: str
    """Reason for the dump: the id of a request, ``end`` (watchdog or exception), or empty if unknown."""
    crashed: bool
    """True if an exception ended the rank."""
    backend: str | None
    written_ns: int
    of_run: bool = False
    """True in a run directory, where no link is followed."""


@dataclass(slots=True)
class LoadedDumps:
    """All dumps that could be read."""

    path: str
    ranks: dict[int, list[RecorderDump]] = field(default_factory=dict)
    taken_ns: dict[int, int] = field(default_factory=dict)
    """Time of each rank's dump in unix nanoseconds, where known."""
    crashed: dict[int, int | None] = field(default_factory=dict)
    """Ranks whose dumps were written because of an exception, with the time in unix nanoseconds where known."""
    hosts: dict[int, str] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    world_size: int | None = None
    attempt: int | None = None
    run: str | None = None
    warnings: list[str] = field(default_factory=list)


def read_dumps(paths: Sequence[Path]) -> LoadedDumps:
    """Read the dumps of a run directory, or of files, folders and patterns.

    A file that cannot be read is left out with a warning. If none can be read, raises the ``InputError`` of the first.
    """
    runs = [run for path in paths if (run := named_run(path)) is not None]
    if runs and len(paths) > 1:
        raise InputError(runs[0].path, "a run beside other paths; name a run, or dumps, not both")
    if runs:
        dumps, files = _of_run(runs[0])
    else:
        files, warnings = find_dumps(paths)
        dumps = LoadedDumps(os.fspath(paths[0]) if len(paths) == 1 else os.curdir, warnings=warnings)
    errors: list[InputError] = []
    read: dict[Path, tuple[DumpFile, RecorderDump]] = {}
    for file in files:
        try:
            read[file.path] = file, read_dump(file.path, backend=file.backend, of_run=file.of_run)
        except InputError as error:
            errors.append(error)
    for origin in dumps_of_one_job([origin_of(file.path, file.rank, dump) for file, dump in read.values()], dumps.warnings):
        file, dump = read[origin.path]
        _add(dumps, replace(file, rank=origin.rank), dump)
    if not dumps.ranks:
        raise errors[0]
    dumps.warnings += [f"left out: {error}" for error in errors]
    dumps.warnings += newer_versions(dump.newer_version for _, dump in read.values())
    empty = [rank for rank, parts in dumps.ranks.items() if not any(dump.records or dump.progress for dump in parts)]
    if 0 < len(empty) < len(dumps.ranks):
        dumps.warnings.append(
            f"no operation in the dumps of {ranks_text(sorted(empty))}: is the recorder off (TORCH_FR_BUFFER_SIZE)?"
        )
    return dumps


def newer_versions(versions: Iterable[str | None]) -> list[str]:
    """Return the warning about versions of dumps (``RecorderDump.newer_version``) that are newer than the newest known one."""
    newer = sorted({version for version in versions if version is not None})
    if not newer:
        return []
    return [f"dumps of version {joined(newer, 3)} of the format are read as far as their fields are known; {_NEWEST_TEXT}"]


def read_dump(path: Path, *, backend: str | None = None, whole_history: bool = False, of_run: bool = False) -> RecorderDump:
    """Read one file, pickle or JSON, without ever executing its content; see ``parse``. Raises ``InputError``.

    ``of_run``: it is in a run directory, where no link is followed.
    """
    try:
        with open_run_file(path) if of_run else open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(path, (error.strerror or str(error)).lower()) from error
    if len(data) > MAX_BYTES:
        raise InputError(path, f"more than {MAX_BYTES // 1024**2} MiB: no dump is that large")
    if not data:
        raise InputError(path, "the file is empty")
    document = _document(path, data)
    dump = parse(document, backend=backend, whole_history=whole_history)
    version = newer_version(document)
    if version is not None and dump is None:
        raise InputError(path, f"a Flight Recorder dump of version {version}, which cannot be read; {_NEWEST_TEXT}")
    if dump is not None and dump.damaged and not dump.records:
        about = f"version {_version(document)}, whose records cannot be read for their {joined(unreadable_fields(document), 3)}"
        raise InputError(path, f"a Flight Recorder dump of {about}; {_NEWEST_TEXT}")
    if dump is None:
        raise InputError(path, "not a Flight Recorder dump: there is no version with entries or process groups in it")
    return dump


def _version(document: object) -> str:
    return (text(document.get("version")) if isinstance(document, dict) else "") or "unknown"


def find_dumps(paths: Sequence[Path]) -> tuple[list[DumpFile], list[str]]:
    """Return the newest dump of each rank that files, folders and patterns name, and warnings.

    Raises ``InputError`` for a path that does not exist, and where no file has a rank in its name.
    """
    files, unnamed = _named_by(paths)
    if unnamed and not files:
        raise InputError(unnamed[0], "whose dump is this? There is no rank in its name, such as dump_3 or rank-00003.json")
    if not files:
        is_empty = paths[0].is_dir() and not any(paths[0].iterdir())
        before = "; a run writes nothing before its first step has ended (py-spy dump --pid PID shows where a rank is)"
        reason = "no Flight Recorder dumps here: no file with a rank at the end of its name"
        raise InputError(paths[0], reason + (before if is_empty else ""))
    warnings = [f"{path}: left out, no rank in its name" for path in unnamed]
    return _newest(files, warnings), warnings


def _document(path: Path, data: bytes) -> object:
    if data[:1] == b"\x80":
        try:
            return load_plain(data)
        except PickleError as error:
            raise InputError(path, str(error)) from error
    if data[:64].lstrip()[:1] != b"{":
        raise InputError(path, "not a Flight Recorder dump: neither a binary pickle nor a JSON object")
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS or data.count(b",") > MAX_VALUES:
        raise InputError(path, f"more than {MAX_CONTAINERS:,} lists and objects, or {MAX_VALUES:,} values: no dump has that many")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(path, f"damaged JSON: {error}") from error
    except RecursionError as error:
        raise InputError(path, "JSON that is nested too deeply") from error


def _add(dumps: LoadedDumps, file: DumpFile, dump: RecorderDump) -> None:
    dumped_ns = taken_ns(file, dump)
    if file.rank not in dumps.ranks and dumped_ns is not None:
        dumps.taken_ns[file.rank] = dumped_ns
    dumps.ranks.setdefault(file.rank, []).append(dump)
    if file.crashed:
        dumps.crashed[file.rank] = dumped_ns
    if dump.damaged:
        dumps.warnings.append(f"{file.path}: {counted(dump.damaged, 'record')} left out, which make no sense")


def taken_ns(file: DumpFile, dump: RecorderDump) -> int | None:
    """Return the time at which a dump was taken, in unix nanoseconds: the modification time of its file.

    ``None`` where it is too far from the newest time in the dump: the watchdog writes a dump when the timeout of an operation is
    over, so the file was copied later.
    """
    if dump.newest_ns is None:
        return file.written_ns
    delay = file.written_ns - dump.newest_ns
    timeout = max((record.timeout_ms for record in dump.records if record.timeout_ms is not None), default=_TIMEOUT_MS) * 10**6
    return max(file.written_ns, dump.newest_ns) if -CLOCKS_NS <= delay <= timeout + CLOCKS_NS else None


def _of_run(run: NamedRun) -> tuple[LoadedDumps, list[DumpFile]]:
    """Return what a run records of its job, without dumps yet, and the files with the dumps of its last attempt that has any."""
    path = run.path
    reader = RunReader(path)
    attempts = reader.attempts() if run.attempt is None else [run.attempt]
    files = {attempt: [replace(file, of_run=True) for file in _in_folder(flight_dir(path, attempt))] for attempt in attempts}
    attempt = next((attempt for attempt in reversed(attempts) if files[attempt]), None)
    if attempt is None:
        place = path if run.attempt is None else attempt_dir(path, run.attempt)
        hint = "a job that hangs writes them after `rankscope capture RUN --flight-recorder`"
        raise InputError(place, f"no Flight Recorder dumps in this run; {hint}")
    infos = reader.infos(attempt)
    dumps = LoadedDumps(
        os.fspath(path),
        hosts={rank: info.host for rank, info in infos.items()},
        pids={rank: info.pid for rank, info in infos.items()},
        world_size=recorded_world_size(reader.attempt(attempt), infos.values()),
        attempt=attempt,
        run=os.fspath(path),
    )
    if attempt != attempts[-1]:
        dumps.warnings.append(f"attempt {attempts[-1]}, the last, has no dumps; those of attempt {attempt} are read")
    return dumps, _newest(files[attempt], dumps.warnings)


def _named_by(paths: Sequence[Path]) -> tuple[list[DumpFile], list[Path]]:
    """Return the dumps among ``paths``, and the files named one by one that have no rank in their names."""
    files: dict[Path, DumpFile] = {}
    unnamed: list[Path] = []
    for path in paths:
        if path.is_dir():
            refuse_folder_of_runs(path)
            inside = _in_folder(path)
            if not inside:
                refuse_folder_of_dumps(path)
            files |= {file.path: file for file in inside}
            continue
        names = matching_paths(path)
        if names == [path] and not path.exists():
            raise InputError(path, "no such file or folder")
        for name in names:
            file = _dump_file(name)
            if file is not None:
                files[name] = file
            elif name.is_dir():
                files |= {inner.path: inner for inner in _in_folder(name)}
            else:
                unnamed.append(name)
    return list(files.values()), unnamed


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _in_folder(folder: Path) -> list[DumpFile]:
    return [file for path in _files(folder) if (file := _dump_file(path)) is not None]


def _dump_file(path: Path) -> DumpFile | None:
    if path.is_dir():
        return None
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        written = 0  # ``read_dump`` reports the error
    if own := _OURS.fullmatch(path.name):
        occasion = "end" if own[2] in _AT_THE_END else own[2]
        return DumpFile(path, int(own[1]), occasion, own[2] == "crash", own[3], written)
    match = _ANY.fullmatch(path.name)
    return None if match is None else DumpFile(path, int(match[1]), "", crashed=False, backend=None, written_ns=written)


def _newest(files: list[DumpFile], warnings: list[str]) -> list[DumpFile]:
    """Return the newest dump per rank and backend, of the newest occasion: dumps of different moments cannot be combined.

    Raises ``InputError`` where folders have dumps of the same moment.
    """
    newest: dict[str, int] = {}
    for file in files:
        newest[file.occasion] = max(newest.get(file.occasion, 0), file.written_ns)
    occasion = max(newest, key=lambda occasion: (newest[occasion], occasion))
    if len(newest) > 1:
        occasion_text = "those of its end" if occasion == "end" else f"the newest ({occasion})" if occasion else "the newest"
        warnings.append(f"dumps of {len(newest)} occasions; {occasion_text} are read")
    files = [file for file in files if file.occasion == occasion]
    chosen: dict[tuple[int, str | None], DumpFile] = {}
    for file in sorted(files, key=lambda file: (file.written_ns, file.path)):
        # A crashed rank may also have left a dump of the watchdog.
        before = chosen.get((file.rank, file.backend))
        if before is not None and looks_like_dump(before.path) and not looks_like_dump(file.path):
            warnings.append(f"left out: {file.path}: not a Flight Recorder dump")
            continue
        if before is not None:
            if before.path.parent != file.path.parent and file.written_ns - before.written_ns < CLOCKS_NS:
                text = (
                    f"a second dump of rank {file.rank}, beside {before.path}: name the files by global rank, or name one folder"
                )
                raise InputError(file.path, text)
            warnings.append(f"two dumps of rank {file.rank}; {file.path} is read, {before.path} is not")
        chosen[file.rank, file.backend] = file
    return sorted(chosen.values(), key=lambda file: (file.rank, file.backend or ""))


def looks_like_dump(path: Path) -> bool:
    """Return whether a file has a rank in its name, and the first bytes of a dump."""
    if _dump_file(path) is None:
        return False
    head = _head(path)
    return head[:1] == b"\x80" or (head.lstrip()[:1] == b"{" and _TRACE not in head and _KEY.search(head) is not None)


def dumps_among(files: Sequence[Path]) -> bool:
    """Return whether there are dumps, and no traces, among files."""
    has_dumps = False
    for file in files:
        if looks_like_dump(file):
            has_dumps = True
        elif file.suffix == ".json" and _TRACE in _head(file):
            return False
    return has_dumps


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def refuse_folder_of_dumps(path: Path) -> None:
    """Raise ``InputError`` if ``path`` is a folder directly above folders with dumps."""
    folders = [child for child in _files(path) if child.is_dir() and any(map(looks_like_dump, _files(child)))]
    if folders:
        names = joined([folder.name for folder in folders], 3)
        raise InputError(path, f"its folders {names} have Flight Recorder dumps; name them, such as {path}/*")

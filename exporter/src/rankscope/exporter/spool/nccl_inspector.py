"""Files of NCCL Inspector, NVIDIA's profiler plugin: bus bandwidth and execution time of collectives, one file per GPU.

The format is that of NCCL 2.30.7 with ``NCCL_INSPECTOR_PROM_DUMP=1`` (``plugins/profiler/inspector`` in NVIDIA's repository:
README.md and inspector_prom.cc). It has no ``# TYPE`` lines. The label ``gpu`` counts within ``CUDA_VISIBLE_DEVICES``, so only
the uuid in the name of the file identifies the GPU; the exporter adds it as the label ``uuid``. The plugin truncates and rewrites
the file in place every 30 seconds or more. Between two rewrites it appends, so of repeated series the last one counts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from rankscope.exporter.spool.file import check_labels, parsed_text
from rankscope.exporter.spool.histogram import HISTOGRAM_PARTS
from rankscope.exporter.spool.process_folders import Opened, ProcessFolder, mount_points
from rankscope.exporter.spool.series import InspectorFile, Labels, RejectedError, SpoolFamily, SpoolSeries

MAX_BYTES: Final = 512 * 1024
MAX_SERIES: Final = 1000
SETTLED_S: Final = 1.0
"""Age in seconds below which a file may be incomplete: the plugin writes a few kilobytes in place, in milliseconds."""
MAX_FOLDERS: Final = 256
MAX_FOLDERS_OF_USER: Final = 16

_FILE_NAME: Final = re.compile(r"nccl_inspector_metrics_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.prom")
_FOLDER_NAME: Final = re.compile(r"nccl-inspector-(?!.*\.prom$).+")
_METRIC_NAME: Final = re.compile(r"nccl_[a-zA-Z0-9_]+")
# Labels of NCCL 2.29's format, which creates a new series for each collective.
_PER_OPERATION: Final = frozenset({"coll_sn", "p2p_sn", "timestamp"})
_HELP: Final = {
    "nccl_bus_bandwidth_gbs": "Bus bandwidth of collectives in GB/s: geometric mean since the last dump (NCCL Inspector).",
    "nccl_collective_exec_time_microseconds": "Execution time of collectives: mean since the last dump (NCCL Inspector).",
    "nccl_p2p_bus_bandwidth_gbs": "Bus bandwidth of sends and receives in GB/s: geometric mean since the last dump (Inspector).",
    "nccl_p2p_exec_time_microseconds": "Execution time of sends and receives: mean since the last dump (NCCL Inspector).",
    "nccl_collectives_total": "Collectives that NCCL Inspector recorded.",
    "nccl_collectives_dropped_total": "Collectives that NCCL Inspector overwrote before it wrote them out.",
    "nccl_p2p_total": "Sends and receives that NCCL Inspector recorded.",
    "nccl_p2p_dropped_total": "Sends and receives that NCCL Inspector overwrote before it wrote them out.",
}


def gpu_of(file_name: str) -> str | None:
    """Return the uuid of the GPU that a file is about; None if it is not a file of NCCL Inspector."""
    match = _FILE_NAME.fullmatch(file_name)
    return f"GPU-{match[1]}" if match is not None else None


def is_complete(content: bytes) -> bool:
    """Return whether the content ends with a newline; the plugin truncates the file before it writes."""
    return content.endswith(b"\n")


def parse_inspector(content: bytes, uuid: str) -> InspectorFile:
    """Parse and check the text about one GPU; raises ``RejectedError``."""
    if not is_complete(content):
        raise RejectedError("incomplete")
    values: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    for metric in parsed_text(content, 4 * MAX_SERIES):
        for sample in metric.samples:
            name, kind = sample.name, _kind(sample.name)
            if not _METRIC_NAME.fullmatch(name) or name.endswith(HISTOGRAM_PARTS):
                raise RejectedError("wrong_name")
            if metric.type not in ("unknown", "untyped", kind):
                raise RejectedError("wrong_type")
            if sample.timestamp is not None:
                raise RejectedError("timestamp")
            values[name][_labels(sample.labels, uuid)] = _number(sample.value)
    if not values:
        raise RejectedError("empty")
    if sum(map(len, values.values())) > MAX_SERIES:
        raise RejectedError("too_many_series")
    if len({name.removesuffix("_total") for name in values}) != len(values):  # one metric to OpenMetrics
        raise RejectedError("wrong_type")
    return InspectorFile(
        uuid,
        tuple(
            SpoolFamily(
                name,
                _kind(name),
                _HELP.get(name, "From NCCL Inspector."),
                tuple(SpoolSeries(name, labels, value) for labels, value in series.items()),
            )
            for name, series in values.items()
        ),
    )


@contextlib.contextmanager
def inspector_folders(spool_fd: int, *, max_names: int) -> Iterator[Opened]:
    """Open the folders ``nccl-inspector-…`` in the spool; only files of the folder's owner count in it.

    At most ``MAX_FOLDERS_OF_USER`` per user are opened, the most recently modified ones.
    """
    with contextlib.ExitStack() as stack:
        result = Opened()
        found: list[tuple[float, int, int]] = []
        names, mounted = _folder_names(spool_fd, max_names)
        for name in names:
            try:
                if name in mounted or not stat.S_ISDIR(os.stat(name, dir_fd=spool_fd, follow_symlinks=False).st_mode):
                    result.refused["not_regular"] += 1
                    continue
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=spool_fd)
            except FileNotFoundError:
                continue
            except OSError:
                result.refused["unreadable"] += 1
                continue
            stack.callback(os.close, fd)
            status = os.fstat(fd)
            found.append((status.st_mtime, status.st_uid, fd))
        of_user: Counter[int] = Counter()
        for _, uid, fd in sorted(found, reverse=True):
            of_user[uid] += 1
            if of_user[uid] > MAX_FOLDERS_OF_USER or len(result.folders) == MAX_FOLDERS:
                result.refused["too_many_files"] += 1
            else:
                result.folders.append(ProcessFolder(fd, frozenset({uid})))
        yield result


def _folder_names(spool_fd: int, max_names: int) -> tuple[list[str], frozenset[str]]:
    """Return the names of possible Inspector folders, and which of them are mount points: a user's file system can hang."""
    with os.scandir(spool_fd) as entries:
        names = [one.name for one in itertools.islice(entries, max_names) if _FOLDER_NAME.fullmatch(one.name)]
    if not names:
        return [], frozenset()
    spool = Path(f"/proc/self/fd/{spool_fd}").readlink()
    mounted = mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"))
    return names, frozenset(name for name in names if str(spool / name) in mounted)


def _kind(name: str) -> Literal["gauge", "counter"]:
    return "counter" if name.endswith("_total") else "gauge"


def _labels(found: dict[str, str], uuid: str) -> Labels:
    if "uuid" in found or found.keys() & _PER_OPERATION:
        raise RejectedError("wrong_labels")
    labels = tuple(sorted({**found, "uuid": uuid}.items()))
    check_labels(labels)
    return labels


def _number(value: float) -> float:
    try:
        return float(value)  # the parser returns integers of any length
    except OverflowError as error:
        raise RejectedError("not_prometheus_text") from error

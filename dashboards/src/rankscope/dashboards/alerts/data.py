"""Active and past alerts about runs, from the files of their watchers and from a Prometheus.

No alert is both the watcher's (``rankscope.alerts.watcher_alerts``) and a Prometheus rule: the two never report the same one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from rankscope.alerts.alert import host_of
from rankscope.alerts.store.folders import watcher_state
from rankscope.alerts.watch.announcements import FindingRecord
from rankscope.alerts.watch.ledger import LedgerEntry, read_entries
from rankscope.analysis.evidence.hardware import bare_uuid
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.alerts.record import AlertRecord, AlertState, CollectedAlerts, alert_record
from rankscope.dashboards.data.background import BackgroundAnswers
from rankscope.dashboards.data.memory_cache import MemoryCache
from rankscope.runs.links import overview_url
from rankscope.runs.paths import findings_file
from rankscope.runs.run_files import open_run_file
from rankscope.runs.segments import decode_blocks, read_blocks

if TYPE_CHECKING:
    from rankscope.dashboards.alerts.prometheus import (
        Prometheus,  # needs a package that is installed only for queries to a Prometheus
    )
    from rankscope.dashboards.data.run_data import RunData
    from rankscope.dashboards.data.source import RunSummary
    from rankscope.dashboards.store.run_folder import RunFolder

READ_BYTES: Final = 8 * 2**20
"""Bytes read from the end of a ``findings.jsonl``: some thousand alerts."""


def findings_of(run: Path, *, over: bool) -> list[AlertRecord]:
    """Return the alerts in ``findings.jsonl`` of a run by start time; ``over``: the run has ended. Raises ``InputError``."""
    records: list[AlertRecord] = []
    open_: dict[str, int] = {}
    for line in _findings(findings_file(run)):
        place = open_.pop(line.fingerprint, None)
        if line.status == "resolved" and place is not None:
            records[place] = replace(records[place], state="resolved", ended_unix_ns=line.time_unix_ns)
        elif line.status == "firing":
            # A repeated firing record updates the same alert; it may come from another watcher that saw it later.
            alert = alert_record(
                line.labels,
                line.annotations,
                state="lost" if over else "firing",
                started_unix_ns=line.time_unix_ns if place is None else records[place].started_unix_ns,
                source="watcher",
            )
            if place is None:
                place = len(records)
                records.append(alert)
            else:
                records[place] = alert
            open_[line.fingerprint] = place
    return sorted(records, key=lambda alert: alert.started_unix_ns)


def revision_of(run: Path) -> str:
    """Return a revision that changes with the ``findings.jsonl`` of a run."""
    try:
        status = findings_file(run).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def alert_of(entry: LedgerEntry, *, seen_unix_ns: int) -> AlertRecord:
    """Return the record of an alert that a watcher follows. A pending one has no start time and gets ``seen_unix_ns``."""
    return alert_record(
        entry.alert.labels,
        entry.alert.annotations,
        state=entry.track.state,
        started_unix_ns=seen_unix_ns if entry.starts_at_unix_ns is None else entry.starts_at_unix_ns,
        ended_unix_ns=entry.ends_at_unix_ns,
        source="watcher",
    )


def _findings(path: Path) -> Iterator[FindingRecord]:
    """Yield the records in the last ``READ_BYTES`` of a file; invalid lines are skipped."""
    try:
        with open_run_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - READ_BYTES))
            decoder = msgspec.json.Decoder(FindingRecord)
            for records, _ in decode_blocks(read_blocks(file), decoder):
                yield from records
    except FileNotFoundError:
        return  # nothing was found, or no watcher ran
    except OSError as error:
        raise InputError(path, error.strerror or str(error)) from error


_OVER: Final = ("finished", "failed")
_ORDER: Final[tuple[AlertState, ...]] = ("firing", "pending", "lost", "resolved")


class Findings(Protocol):
    """Reader of the alerts that a watcher wrote into a run directory."""

    def __call__(self, run: Path, *, over: bool) -> list[AlertRecord]:
        """Return alerts by start time; ``over``: the run has ended. Raises ``InputError``."""


def alerts_of(
    runs: Sequence[RunSummary],
    *,
    root: Path | None,
    prometheus: Prometheus | None,
    span_unix_ns: tuple[int, int],
    findings: Findings = findings_of,
    prometheus_from_unix_ns: int = 0,
) -> CollectedAlerts:
    """Return alerts about ``runs`` between two times; a Prometheus also contributes alerts about hardware.

    ``root``: the folder of the runs, which a watcher may follow as a whole. Past alerts of a Prometheus are queried from
    ``prometheus_from_unix_ns`` on. Never raises: an unreadable source is listed in ``problems``.
    """
    problems: dict[str, None] = {}

    def read(source: Callable[[], Iterable[AlertRecord]]) -> list[AlertRecord]:
        try:
            return list(source())
        except RankscopeError as error:
            problems[str(error)] = None
            return []

    alerts: list[AlertRecord] = []
    for run in runs:
        alerts += read(partial(findings, Path(run.path), over=run.status in _OVER))
    # A firing alert is in the run's findings and in the state of every watcher that follows the run.
    active = {alert.identity for alert in alerts if alert.ended_unix_ns is None}
    folders = {str(Path(run.path).resolve()) for run in runs if run.status not in _OVER}
    for watched in dict.fromkeys([*([root] if root is not None else []), *map(Path, sorted(folders))]):
        new = [record for record in read(partial(_followed, watched, folders, span_unix_ns[1])) if record.identity not in active]
        active |= {alert.identity for alert in new}
        alerts += new
    if prometheus is not None:
        alerts += read(partial(_of_prometheus, prometheus, (max(span_unix_ns[0], prometheus_from_unix_ns), span_unix_ns[1])))
    run_ids = {run.run_id for run in runs}
    first, last = span_unix_ns
    shown = [
        _linked(alert, run_ids)
        for alert in alerts
        if alert.started_unix_ns <= last and (alert.ended_unix_ns is None or alert.ended_unix_ns >= first)
    ]
    return CollectedAlerts(sorted(shown, key=lambda alert: (_ORDER.index(alert.state), -alert.started_unix_ns)), list(problems))


def _linked(alert: AlertRecord, run_ids: set[str]) -> AlertRecord:
    if alert.run_id is None or alert.run_id not in run_ids:
        return alert
    return replace(alert, evidence=overview_url("", alert.run_id, rank=alert.rank))


def _followed(watched: Path, folders: set[str], now_unix_ns: int) -> list[AlertRecord]:
    entries = (entry for entry in read_entries(watcher_state(watched)) if entry.run in folders)
    return [alert_of(entry, seen_unix_ns=now_unix_ns) for entry in entries if entry.track.state != "resolved"]


def _of_prometheus(prometheus: Prometheus, span_unix_ns: tuple[int, int]) -> list[AlertRecord]:
    from rankscope.dashboards.alerts.prometheus import prometheus_alerts

    return prometheus_alerts(prometheus, span_unix_ns)


def alerts_about(run: RunData) -> CollectedAlerts:
    """Return the alerts about a run, its GPUs and its hosts; unreadable sources are in ``problems``."""
    try:
        ranks = run.analysis.ranks
    except RankscopeError:
        ranks = []  # GPUs and hosts of the run are not known (yet)
    gpus, hosts = {rank.gpu_uuid for rank in ranks if rank.gpu_uuid}, {rank.host for rank in ranks if rank.host}
    return about_run(run.alerts, run.summary.run_id, gpus=gpus | _parents(run, gpus), hosts=hosts)


def _parents(run: RunData, gpus: Collection[str]) -> set[str]:
    """Return the uuids of the GPUs whose MIG devices are among ``gpus``: heat, Xids and links are reported of the whole GPU."""
    devices = set(map(bare_uuid, gpus))
    try:
        sampled = run.hardware.gpus
    except RankscopeError:
        return set()  # not read (yet)
    return {gpu.parent_uuid for gpu in sampled if gpu.parent_uuid is not None and bare_uuid(gpu.gpu_uuid) in devices}


def about_run(collected: CollectedAlerts, run_id: str, *, gpus: Collection[str], hosts: Container[str]) -> CollectedAlerts:
    """Return the alerts about a run, or about its GPUs and MIG devices (uuids) and hosts."""
    devices = set(map(bare_uuid, gpus))

    def concerns(alert: AlertRecord) -> bool:
        if alert.run_id is not None:
            return alert.run_id == run_id
        labels = alert.labels
        return bare_uuid(labels.get("uuid", "")) in devices or ("uuid" not in labels and host_of(labels) in hosts)

    return CollectedAlerts([alert for alert in collected.alerts if concerns(alert)], collected.problems)


ALERTS_AFTER_S: Final = 3600.0
"""Time after the last record of a run during which alerts still belong to it; its watcher ends them after an hour."""
ALERTS_FOR_S: Final = 10.0
"""Lifetime of a cached answer."""
PROMETHEUS_ASKED_S: Final = 7 * 86_400.0
"""Time range of past alerts on the page of all runs; over a longer range, Prometheus's resolution misses short alerts."""


class FolderAlerts:
    """Alerts of watchers, and of a ``prometheus``, about the runs of ``folder``; at most ``ALERTS_FOR_S`` old.

    With a ``prometheus``, and of many runs ``in_background``, they are read in a thread beside the requests.
    """

    def __init__(
        self,
        folder: RunFolder,
        prometheus: Prometheus | None,
        cache: MemoryCache,
        *,
        clock_s: Callable[[], float],
        in_background: bool = False,
    ) -> None:
        self._folder = folder
        self._prometheus = prometheus
        self._cache = cache
        self._clock_s = clock_s
        source = "the runs for their alerts" if prometheus is None else prometheus.name
        self._answers = BackgroundAnswers(cache, "alerts", source) if in_background or prometheus is not None else None

    def of_run(self, run_id: str) -> CollectedAlerts:
        """Return alerts from the start of the run until ``ALERTS_AFTER_S`` after its last record."""
        run, now_s = self._folder.summary(run_id), self._clock_s()
        end_s = (run.last_write_unix_ns or 0) / 1e9 + ALERTS_AFTER_S
        last_ns = int(min(now_s, end_s) * 1e9)
        span = (min(run.start_unix_ns or last_ns, last_ns), last_ns)

        def read() -> CollectedAlerts:
            return alerts_of([run], root=self._folder.path, prometheus=self._prometheus, span_unix_ns=span)

        return self._read(run_id, f"{run.status} {last_ns}" if now_s > end_s else None, read)

    def of_all(self) -> CollectedAlerts:
        """Return alerts of all runs; the query to a Prometheus covers the last ``PROMETHEUS_ASKED_S``."""
        now_ns = int(self._clock_s() * 1e9)
        runs = [run for run in self._folder.runs() if run.problem is None]

        def read() -> CollectedAlerts:
            return alerts_of(
                runs,
                root=self._folder.path,
                prometheus=self._prometheus,
                span_unix_ns=(0, now_ns),
                findings=self._findings_of,
                prometheus_from_unix_ns=now_ns - int(PROMETHEUS_ASKED_S * 1e9),
            )

        return self._read("", None, read)

    def _read(self, key: str, settled: str | None, read: Callable[[], CollectedAlerts]) -> CollectedAlerts:
        """Return what ``read`` returns; ``settled``: revision of alerts that no longer change, unless a source failed."""
        interval = f"{self._clock_s() // ALERTS_FOR_S}"
        if self._answers is None or (self._prometheus is None and not self._folder.has_many):
            return self._cache.get("files of alerts", key, settled or interval, read)
        last: CollectedAlerts | None = self._answers.last(key)
        failed = last is not None and last.problems
        return self._answers.get(key, interval if settled is None or failed else settled, read)

    def _findings_of(self, run: Path, *, over: bool) -> list[AlertRecord]:
        """Return the findings of a run; the file is read again only when it has changed."""
        return self._cache.get("findings", str(run), f"{over} {revision_of(run)}", lambda: findings_of(run, over=over))

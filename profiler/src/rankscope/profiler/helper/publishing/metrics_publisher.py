"""Metrics of the rank as Prometheus text 0.0.4, and the task of the helper to publish them in the spool folder every second.

Order and help texts are those of the table in ``runs/metrics.py``. A metric without a signal is omitted, never written as zero.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rankscope.base.exposition import Family, Point, exposition_text
from rankscope.profiler.helper.publishing.totals import Totals
from rankscope.profiler.helper.tasks import HelperContext, HelperTask
from rankscope.profiler.phases import PhaseInterval
from rankscope.profiler.scratch import forget_spooled, note_spooled, spooled_before
from rankscope.profiler.spool import Claimant, SpoolFile, label_text
from rankscope.runs.metrics import RANK_METRICS, STEP_BUCKETS_SECONDS, STEP_TAGS
from rankscope.runs.records import RankActivity, RankInfo, RunInfo, StepBreakdown, StepRecord

_MICRO: Final = 1e-6
_TYPES: Final = {metric.name: metric for metric in RANK_METRICS}
_MAX_RUN_ID_BYTES: Final = 512
_WAITING: Final = {True: "yes", False: "no", None: "unknown"}


class MetricSample(NamedTuple):
    """One series: metric, labels in addition to the common ones, value; ``suffix`` names the part of a histogram."""

    metric: str
    labels: Mapping[str, str]
    value: float
    suffix: str = ""


def samples(run: RunInfo, rank: RankInfo, totals: Totals, activity: RankActivity | None = None) -> Iterator[MetricSample]:
    """Yield every sample that has a value. ``activity``: what the rank is doing, if it stands still."""
    identity = {
        "run_id": label_text(run.run_id, _MAX_RUN_ID_BYTES),
        "host": label_text(rank.host),
        "local_rank": "" if rank.local_rank is None else str(rank.local_rank),
        "world_size": str(rank.world_size),
        "gpu_uuid": rank.gpu_uuid or "",
        "attempt": str(rank.attempt),
        "simulated": "true" if run.simulated else "false",
    }
    yield MetricSample("rank_info", identity, 1)
    yield MetricSample("rank_steps_total", {}, totals.steps)
    yield from _durations(totals)
    yield from _by_label(totals, rank)
    yield from _numbers(totals, rank)
    for tag in STEP_TAGS:
        yield MetricSample("rank_steps_tagged_total", {"tag": tag}, totals.tags[tag])
    if activity is not None:
        labels = {"phase": activity.phase, "waiting": _WAITING[activity.waiting]}
        yield MetricSample("rank_standstill_seconds", labels, (activity.updated_unix_ns - activity.since_unix_ns) / 1e9)
    yield MetricSample("rank_profiled_steps_total", {}, totals.profiled)
    yield MetricSample("rank_recorder_dropped_total", {}, rank.dropped_records)
    yield MetricSample("rank_recorder_disabled", {}, int(rank.disabled_reason is not None))


def _durations(totals: Totals) -> Iterator[MetricSample]:
    name, durations = "rank_step_duration_seconds", totals.durations
    bounds = [*map(repr, STEP_BUCKETS_SECONDS), "+Inf"]
    for bound, count in zip(bounds, itertools.accumulate(durations.counts), strict=True):
        yield MetricSample(name, {"le": bound}, count, "_bucket")
    yield MetricSample(name, {}, durations.sum_s, "_sum")
    yield MetricSample(name, {}, totals.steps, "_count")


def _by_label(totals: Totals, rank: RankInfo) -> Iterator[MetricSample]:
    cost_us, windows_us = rank.recorder_cost_us, rank.window_cost_us
    cost = {
        "steps": None if cost_us is None else (cost_us - (windows_us or 0.0)) * _MICRO,
        "windows": None if windows_us is None else windows_us * _MICRO,
    }
    families: tuple[tuple[str, str, Mapping[str, float | None]], ...] = (
        ("rank_phase_seconds_total", "phase", {**totals.phases_s}),
        ("rank_blocked_seconds_total", "phase", {**totals.blocked_s}),
        ("rank_device_seconds_total", "phase", {**totals.device_s}),
        ("rank_device_blocked_seconds_total", "phase", {**totals.device_blocked_s}),
        ("rank_section_seconds_total", "section", {**totals.sections_s}),
        ("rank_script_metric", "name", {**totals.script_metrics}),
        ("rank_window_seconds_total", "state", {**totals.window_s}),
        ("rank_windows_total", "outcome", {"recorded": rank.windows, "missed": rank.missed_windows}),
        ("rank_recorder_seconds_total", "part", cost),
    )
    for metric, label, values in families:
        for content, value in values.items():
            if value is not None:
                yield MetricSample(metric, {label: content}, value)


def _numbers(totals: Totals, rank: RankInfo) -> Iterator[MetricSample]:
    sums, levels, window = totals.sums, totals.levels, totals.last_window
    values: dict[str, float | None] = {
        "rank_device_steps_total": totals.device_steps,
        "rank_last_step": totals.last_step,
        "rank_last_step_timestamp_seconds": totals.last_end_s,
        "rank_cpu_seconds_total": _seconds(sums.get("cpu_us")),
        "rank_run_queue_seconds_total": _seconds(sums.get("run_queue_us")),
        "rank_gc_seconds_total": _seconds(sums.get("gc_us")),
        "rank_samples_total": sums.get("samples"),
        "rank_tokens_total": sums.get("tokens"),
        "rank_input_elements_total": sums.get("input_elements"),
        "rank_flops_total": sums.get("flops"),
        "rank_device_memory_allocated_bytes": levels.get("allocated_bytes"),
        "rank_device_memory_reserved_bytes": levels.get("reserved_bytes"),
        "rank_device_memory_peak_bytes": levels.get("peak_allocated_bytes"),
        "rank_allocator_retries_total": levels.get("allocator_retries"),
        "rank_resident_memory_bytes": levels.get("resident_bytes"),
        "rank_overlap_ratio": None if window is None else window.overlap_ratio,
        "rank_exposed_communication_seconds": None if window is None else window.exposed_s / window.steps,
        "rank_recorder_budget_ratio": rank.budget,
    }
    for metric, value in values.items():
        if value is not None:
            yield MetricSample(metric, {}, value)


def _seconds(time_us: float | None) -> float | None:
    return None if time_us is None else time_us * _MICRO


def render(identity: Mapping[str, str], values: Iterable[MetricSample]) -> str:
    """Return the text; ``identity``: labels of every series."""
    common = tuple(identity.items())
    families = {name: Family(name, metric.type, metric.help) for name, metric in _TYPES.items()}
    for metric, labels, value, suffix in values:
        finite = value if math.isfinite(value) else math.nan
        families[metric].points.append(Point((*common, *labels.items()), finite, f"{metric}{suffix}"))
    return exposition_text(family for family in families.values() if family.points).decode()


PUBLISH_SECONDS: Final = 1.0


class MetricsPublisher(HelperTask):
    """Task that sums up the rank's records and keeps its spool file up to date."""

    def __init__(self, context: HelperContext) -> None:
        self._context = context
        self._totals = Totals()
        self._file: SpoolFile | None = None
        self._noted: Path | None = None
        self._due = 0.0
        self._failed = False

    def step(self, record: StepRecord, intervals: Sequence[PhaseInterval] = ()) -> None:  # noqa: ARG002
        """Add a step to the totals."""
        self._totals.add_step(record)

    def breakdown(self, breakdown: StepBreakdown) -> None:
        """Add a profiled step to the totals."""
        self._totals.add_window(breakdown)

    def tick(self) -> None:
        """Rewrite the file when it is due."""
        folder = self._context.handover.settings.spool_dir
        if folder is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PUBLISH_SECONDS
        run, rank = self._context.run(), self._context.info()
        file = self._file_of(Path(folder), Claimant(run.name or run.run_id, run.run_id, rank.rank, rank.attempt))
        try:
            file.write(lambda labels: render(labels, samples(run, rank, self._totals, self._context.activity())))
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._context.report(f"cannot write metrics to {folder} ({error.strerror or error}); will try again")
        self._note(file)

    def end(self, *, vanished: bool) -> None:
        """Remove the file at the end of the rank.

        The file of a rank that vanished stays until the end of its job, because alerts use the age of its last step. After a
        crash it is removed, because the launcher has reported the crash.
        """
        if self._file is not None and not vanished:
            self._give_back(self._file)

    def _file_of(self, folder: Path, claimant: Claimant) -> SpoolFile:
        """Return the file for the current identity of the run, which another launcher may have set first."""
        if self._file is not None and self._file.claimant != claimant:
            self._give_back(self._file)
            self._file = None
        if self._file is None:
            self._file = SpoolFile(folder, claimant, own=spooled_before(self._context.scratch))
        return self._file

    def _note(self, file: SpoolFile) -> None:
        """Record the file for the launcher, which removes leftovers, and for a replacement of this helper."""
        if file.path != self._noted:
            if self._noted is not None:
                forget_spooled(self._context.scratch, self._noted.name)
            if file.path is not None:
                note_spooled(self._context.scratch, file.path.name)
            self._noted = file.path

    def _give_back(self, file: SpoolFile) -> None:
        file.remove()
        if self._noted is not None:
            forget_spooled(self._context.scratch, self._noted.name)
            self._noted = None

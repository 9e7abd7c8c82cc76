"""Run directory as a source of an export: its last attempt, or the one that was named, as in the analysis."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rankscope.analysis.captured import captured_steps, step_records
from rankscope.analysis.collectives.clock import consistent, fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.perfetto import hardware_tracks
from rankscope.analysis.perfetto.chrome_json import TraceWriter
from rankscope.analysis.perfetto.hardware_tracks import gpu_name, write_hardware
from rankscope.analysis.perfetto.plan import Plan, Progress, clock_of, none_of_these, process_name, shared_by_names, widen
from rankscope.analysis.perfetto.raw_trace import RawTracks, read_raw_trace
from rankscope.analysis.perfetto.selection import Selection, fitting_steps
from rankscope.analysis.perfetto.step_tracks import write_steps
from rankscope.analysis.perfetto.survey import Survey
from rankscope.analysis.result.text import counted
from rankscope.base.errors import InputError
from rankscope.base.text import format_duration, step_range
from rankscope.runs.named import NamedRun
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.records import CollectiveRecord, HardwareSample, RankInfo
from rankscope.runs.run_files import list_run_folder
from rankscope.runs.world_size import recorded_world_size

_TRACE_FILE: Final = re.compile(r"window-(\d{1,18})\.json(?:\.gz)?")
"""File name of a raw trace that a rank has kept, with its first step."""

_MARGIN_NS: Final = 1_000_000_000
"""Time added after the last step: device work may continue after the step that launched it, and GPU samples are sparse."""


class RunExportSource:
    """Source that reads a run. ``raw``: merge in the kept raw traces; ``None``: only if the user chose steps."""

    def __init__(self, run: NamedRun, selection: Selection, *, raw: bool | None, progress: Progress) -> None:
        path = run.path
        self._reader = RunReader(path)
        attempts = self._reader.attempts()
        self._attempt = run.chosen(attempts)
        all_ranks = self._reader.ranks(self._attempt)
        ranks = [rank for rank in all_ranks if selection.has_rank(rank)]
        if not ranks:
            raise InputError(path, "no rank has left records in it" if not all_ranks else none_of_these(all_ranks))
        self._infos = self._reader.infos(self._attempt)
        others = "earlier attempt" if attempts[-1:] == [self._attempt] else "other attempt"
        left_out = [counted(len(attempts) - 1, others)] if len(attempts) > 1 else []
        steps = self._choose(all_ranks, set(ranks), selection, left_out, progress)
        self._steps = range(*steps)
        self._simulated = self._reader.info.simulated
        self._step_times: dict[int, tuple[int, int]] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        """Rank to the first start and last end of its exported steps, on its own clock."""
        self.plan = self._make_plan(all_ranks, ranks, left_out)
        self._raw_files = self._merged_files(
            ranks, left_out, ranks_given=selection.chose_steps if raw is None else raw, named=raw
        )
        free = selection.max_events - self._survey.events_of(self._steps)
        self._raw = RawTracks(max(0, free), sum(map(len, self._raw_files.values())))
        self._stride = self._sampling(left_out, selection.max_events)
        self._written = 0
        """Number of step records written."""

    def _choose(
        self, all_ranks: list[int], ranks: set[int], selection: Selection, left_out: list[str], progress: Progress
    ) -> tuple[int, int]:
        survey = self._survey = Survey(selection)
        for number, rank in enumerate(all_ranks):
            progress("Looking through", number, len(all_ranks))
            if rank in ranks:
                survey.add_steps(self._reader.step_rows(self._attempt, rank))
            survey.add_collectives(self._reader.collectives(self._attempt, rank))
        if self._reader.skipped_lines:
            left_out.append(f"{counted(self._reader.skipped_lines, 'damaged line')}: {self._reader.damage()}")
        if survey.damaged:
            left_out.append(f"{counted(survey.damaged, 'record')}: times that make no sense")
        weights = survey.all_weights()
        # A quarter of the events is reserved for hardware samples, if there are any.
        reserve = 4 if self._reader.hosts() else 0
        limit = selection.max_events - (selection.max_events // reserve if reserve else 0)
        steps = fitting_steps(weights, survey.profiled, limit, from_first=selection.chose_steps)
        if steps is None:
            recorded = survey.recorded
            text = (
                "no step was recorded" if recorded is None else f"no such steps were recorded; there are {step_range(recorded)}"
            )
            raise InputError(self._reader.path, text)
        recorded_range = (min(weights), max(weights) + 1)
        if steps != recorded_range:
            fitting, total = survey.events_of(range(*steps)), sum(weights.values())
            needed = -(-total * reserve // (reserve - 1)) if reserve else total
            others = (
                f"--steps {steps[1]}:{recorded_range[1]} exports the next"
                if selection.chose_steps
                else "--steps A:B chooses others"
            )
            left_out.append(
                f"all but {step_range(steps)} of {step_range(recorded_range)}: about {fitting:,} of {total:,} events"
                f" fit; {others}, --max-events {needed} all"
            )
        return steps

    def _make_plan(self, all_ranks: list[int], ranks: list[int], left_out: list[str]) -> Plan:
        steps = (self._steps.start, self._steps.stop)
        fitted_to = self._survey.clock_range(steps)
        collectives = {rank: captured_steps(self._reader, self._attempt, rank, self._steps).collectives for rank in all_ranks}
        world_size = recorded_world_size(self._reader.attempt(self._attempt), self._infos.values())
        if world_size is not None:
            world_size = max(world_size, len(all_ranks))
        names = {rank: info.clock_name for rank, info in self._infos.items()}
        matching = match_collectives(collectives, world_size=world_size)
        if fitted_to is None:
            fitted = matching.matches
        else:
            nearby = range(*fitted_to)
            nearest = {rank: captured_steps(self._reader, self._attempt, rank, nearby).collectives for rank in all_ranks}
            fitted = match_collectives(nearest, world_size=world_size).matches
        clocks = shared_by_names(fit_clocks(fitted, names), names)
        first, last = self._uncorrected(steps, collectives)
        least, largest = clocks.offset_range()
        base = first - largest
        self._extent = (base, last - least + _MARGIN_NS)
        info = self._reader.info
        return Plan(
            kind="run",
            identity={"run_id": info.run_id, "name": info.name, "attempt": self._attempt, "simulated": info.simulated},
            steps=steps,
            names={rank: self._name(rank) for rank in ranks},
            collectives={rank: collectives[rank] for rank in ranks},
            matching=consistent(matching, clocks),
            clocks=clocks,
            clock=clock_of(clocks, len(fitted), ranks, names, fitted_to=None if fitted_to is None else step_range(fitted_to)),
            base_ns=base,
            step_times=self._step_times,
            left_out=left_out,
        )

    def _uncorrected(self, steps: tuple[int, int], collectives: dict[int, list[CollectiveRecord]]) -> tuple[int, int]:
        """Return the first start and last end of ``steps``, each rank by its own clock.

        Retention may have left only their collectives. Raises ``InputError`` if there are no records.
        """
        times = [(row.enqueue_unix_ns, row.end_unix_ns) for rows in collectives.values() for row in rows]
        extent = self._survey.extent(steps)
        if extent is None:
            if not times:
                raise InputError(self._reader.path, f"no usable record of {step_range(steps)}")
            extent = (min(start for start, _ in times), max(end for _, end in times))
        return min([extent[0], *(start for start, _ in times if start > extent[0] - _MARGIN_NS)]), extent[1]

    def _name(self, rank: int) -> str:
        info = self._infos.get(rank)
        return process_name(rank, info.host if info else None, _gpu(info) if info else None, simulated=self._simulated)

    def write_rank(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write a rank's steps, phases, blocked time, garbage collection and profiled windows."""
        correct = self.plan.on_common_clock(rank)
        rows = {row.step: row for row in step_records(self._reader, self._attempt, rank, self._steps)}
        self._written += len(rows)
        write_steps(writer, pid, list(rows.values()), correct)
        for row in rows.values():
            start = correct(row.start_unix_ns)
            length = round(row.wall_us * 1000)
            widen(self._step_times, row.step, start, start + length)
            widen(self._spans, rank, row.start_unix_ns, row.start_unix_ns + length)
        self._write_windows(writer, pid, rank, correct)

    def _write_windows(self, writer: TraceWriter, pid: int, rank: int, correct: Callable[[int], int]) -> None:
        costliest: dict[int, list[str]] = {}
        for kernel in self._reader.kernels(self._attempt, rank):
            if kernel.step in self._steps:
                costliest.setdefault(kernel.step, []).append(
                    f"{format_duration(kernel.total_us)} in {kernel.calls} calls, {kernel.kind}: {kernel.name}"
                )
        track = writer.track(pid, "profiled steps", nest=False)
        windows = captured_steps(self._reader, self._attempt, rank, self._steps).breakdowns
        for row in sorted(windows, key=lambda row: (row.start_unix_ns, -row.window_us)):
            start = correct(row.start_unix_ns)
            args: dict[str, Any] = {
                name: value
                for name in row.__struct_fields__
                if (name.endswith("_us") or name in {"events", "window_basis", "truncated"})
                and (value := getattr(row, name)) not in (None, {})
            }
            if row.looked_wrong:
                args["looked_wrong"] = row.looked_wrong
            args["costliest"] = costliest.get(row.step, [])
            track.slice(f"profile of step {row.step}", start, start + round(row.window_us * 1000), args, kind="window")

    def write_raw(self, writer: TraceWriter, pid: int, rank: int) -> None:
        """Write the rank's kept raw traces, cut to its exported steps."""
        first, last = (self.plan.clocks.seen_at(rank, time) for time in self._extent)
        span = self._spans.get(rank, (first, last))  # retention may have left no record of the steps
        for file in self._raw_files.get(rank, []):
            try:
                trace = read_raw_trace(file, span, of_run=True)
            except InputError as error:
                self.plan.left_out.append(str(error))
            else:
                self._raw.write(writer, pid, trace, self.plan.on_common_clock(rank))

    def _merged_files(
        self, ranks: list[int], left_out: list[str], *, ranks_given: bool, named: bool | None
    ) -> dict[int, list[Path]]:
        """Return the raw traces to merge in, by rank. ``named``: true if the user asked for raw traces and for nothing else."""
        files_by_rank: dict[int, list[Path]] = {}
        for rank in ranks:
            try:
                files_by_rank[rank] = list(self._kept_files(rank))
            except OSError as error:
                left_out.append(f"{error.filename}: {error.strerror}")
        count = sum(map(len, files_by_rank.values()))
        if count and not ranks_given:
            left_out.append(f"raw traces: {count} were kept; --raw merges those of the exported steps in")
        elif named and not count:
            left_out.append("raw traces: none was kept")
        return files_by_rank if ranks_given else {}

    def _kept_files(self, rank: int) -> Iterator[Path]:
        folder = rank_dir(self._reader.path, self._attempt, rank) / "traces"
        with suppress(FileNotFoundError):
            for name in sorted(list_run_folder(folder)):
                match = _TRACE_FILE.fullmatch(name)
                if match is not None and int(match[1]) < self._steps.stop:
                    yield folder / name

    def _sampling(self, left_out: list[str], max_events: int) -> int:
        count = sum(1 for host in self._hosts() for _ in self._samples(host))
        stride = max(1, -(-count * hardware_tracks.WEIGHT // max(1, max_events // 4)))
        if stride > 1:
            left_out.append(f"hardware samples: one in {stride} of {count:,} is exported, of each GPU")
        return stride

    def _hosts(self) -> list[str]:
        exported = {info.host for rank, info in self._infos.items() if rank in self.plan.names}
        return [host for host in self._reader.hosts() if host in exported]

    def _samples(self, host: str) -> Iterator[HardwareSample]:
        correct = self._clock_of(host)
        for sample in self._reader.hardware(host):
            if self._extent[0] <= correct(sample.unix_ns) <= self._extent[1]:
                yield sample

    def _clock_of(self, host: str) -> Callable[[int], int]:
        """Return the correction of a host's clock, which all its ranks share."""
        return self.plan.on_common_clock(next(rank for rank, info in self._infos.items() if info.host == host))

    def finish(self, writer: TraceWriter, /) -> None:
        """Write one process per host with the counters of its GPUs; add to the plan what was left out.

        Readers treat a missing file as removed by retention, so whether the run is still there is checked in the end. Raises
        ``InputError`` if a rank disappeared.
        """
        for order, host in enumerate(self._hosts()):
            self._write_host(writer, host, len(self.plan.names) + order)
        path = self._reader.path
        removed = self.plan.names.keys() - set(RunReader(path).ranks(self._attempt))
        if removed:
            lost = rank_dir(path, self._attempt, min(removed))
            raise InputError(lost, "was there when the export began, and cannot be read any more")
        if files := sorted({os.fspath(file.relative_to(path)) for file in self._reader.unusable}):
            self.plan.left_out.append(f"{counted(len(files), 'file')} that cannot be read, such as {files[0]}")
        missing = self._survey.records_of(self._steps) - self._written
        if missing > 0:
            self.plan.left_out.append(f"{counted(missing, 'step record')}: removed while the run was exported")
        self.plan.left_out.extend(self._raw.sentences())

    def _write_host(self, writer: TraceWriter, host: str, order: int) -> None:
        numbers: Counter[str] = Counter()
        samples: list[HardwareSample] = []
        for sample in self._samples(host):
            if numbers[gpu_name(sample)] % self._stride == 0:
                samples.append(sample)
            numbers[gpu_name(sample)] += 1
        if samples:
            simulated = self._simulated or any(sample.simulated for sample in samples)
            pid = writer.process(f"host {host} · hardware" + (" · simulated" if simulated else ""), order=order)
            write_hardware(writer, pid, samples, self._clock_of(host))


def _gpu(info: RankInfo) -> str | None:
    if info.gpu_uuid is not None:
        return info.gpu_uuid if info.gpu_uuid.startswith("GPU") else f"GPU {info.gpu_uuid}"
    return None if info.local_rank is None else f"local rank {info.local_rank}"

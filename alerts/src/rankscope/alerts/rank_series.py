"""The metrics that the rules about ranks rest on, as an exporter would have shown them during a run: OpenMetrics text.

Names and labels are the recorder's (``rankscope.runs.metrics``) and, of ``rank_state``, the exporter's. A rank's file is there
from its start; a rank that ended or crashed removes it, that of one that was killed goes stale and stays until all are gone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TextIO

import numpy as np
from numpy.typing import NDArray

from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES, Phase, RankInfo, StepRecord

SCRAPE_S: Final = 15.0
STALE_S: Final = 300.0
"""The exporter's ``--spool-stale``, unless told otherwise."""
AFTER_S: Final = 900.0
"""What never said goodbye is looked at for so long after its last step: long enough for every rule about silence."""

SHOWN: Final = frozenset(
    {
        "rank_info",
        "rank_state",
        "rank_last_step_timestamp_seconds",
        "rank_steps_total",
        "rank_step_duration_seconds_count",
        "rank_step_duration_seconds_sum",
        "rank_phase_seconds_total",
        "rank_blocked_seconds_total",
        "rank_samples_total",
        "rank_tokens_total",
    }
)
"""All that is made; a rule that rests on others of the ranks' metrics cannot be replayed over a run."""

_Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankPast:
    """One rank in one attempt. Times are seconds since 1970; arrays are [steps], of steps by their end."""

    info: RankInfo
    until_s: float
    """Its series are gone by then."""
    ends_s: _Times
    walls_s: _Times
    """Sum so far."""
    sums: dict[tuple[str, str], _Times]
    """Metric and phase (``""`` where there are none) to the sum so far, NaN before its first signal."""

    @property
    def start_s(self) -> float:
        """When its file appeared."""
        return self.info.start_unix_ns / 1e9

    @property
    def last_written_s(self) -> float:
        """When its file was written last; as long as the rank is there it is written all the time."""
        return self.until_s if self.info.end_unix_ns is None else self.info.end_unix_ns / 1e9


def pasts_of(reader: RunReader, *, latest_s: float) -> list[RankPast]:
    """All ranks of all attempts that say who they are, the attempts in order. No step ended later than ``latest_s``."""
    attempts = reader.attempts()
    found: list[RankPast] = []
    following_s = float("inf")
    for attempt in reversed(attempts):
        ranks = [_past(info, reader.steps(attempt, rank), latest_s) for rank, info in reader.infos(attempt).items()]
        found = [*_until_over(ranks, following_s), *found]
        following_s = min([following_s, *(rank.start_s for rank in ranks)])
    return found


def span_of(pasts: Sequence[RankPast]) -> tuple[float, float]:
    """From the first start, in whole seconds since 1970, to when the last series is gone; there is at least one."""
    return math.floor(min(rank.start_s for rank in pasts)), max(rank.until_s for rank in pasts)


def write_series(file: TextIO, pasts: Sequence[RankPast], *, run: str, run_id: str, simulated: bool) -> None:
    """All series of all ranks, scraped every ``SCRAPE_S``. Raises ``OSError``."""
    began, ended = span_of(pasts)
    scrapes = np.arange(began, ended + SCRAPE_S, SCRAPE_S)
    for one in pasts:
        at = scrapes[(scrapes >= one.start_s) & (scrapes < one.until_s)]
        labels = {"job": "rankscope", "instance": one.info.host, "run": run, "rank": str(one.info.rank), "slot": "0"}
        for name, more, times, values in _samples(one, at, run_id=run_id, simulated=simulated):
            write_samples(file, name, {**labels, **more}, times, values)


def write_samples(file: TextIO, name: str, labels: Mapping[str, str], times_s: _Times, values: _Times) -> None:
    """The samples of one series. Raises ``OSError``."""
    series = f"{name}{{{','.join(f'{label}={_quoted(text)}' for label, text in labels.items())}}}"
    for time_s, value in zip(times_s.tolist(), values.tolist(), strict=True):
        number = repr(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
        file.write(f"{series} {number} {time_s:.3f}\n")


def _samples(one: RankPast, at: _Times, *, run_id: str, simulated: bool) -> Iterator[tuple[str, dict[str, str], _Times, _Times]]:
    """Name, labels, times and values of each series."""
    info = one.info
    identity = {
        "run_id": run_id,
        "host": info.host,
        "local_rank": "" if info.local_rank is None else str(info.local_rank),
        "world_size": str(info.world_size),
        "gpu_uuid": info.gpu_uuid or "",
        "attempt": str(info.attempt),
        "simulated": "true" if simulated else "false",
    }
    yield "rank_info", identity, at, np.ones(len(at))
    done = np.searchsorted(one.ends_s, at, side="right")
    stepped = done > 0
    if stepped.any():
        yield "rank_last_step_timestamp_seconds", {}, at[stepped], one.ends_s[done[stepped] - 1]
    ended = at >= one.last_written_s
    silent = at >= one.last_written_s + STALE_S
    fresh = ~silent
    off = ended & fresh & (info.end_reason == "disabled")
    for state, those in (("running", fresh & ~off), ("disabled", off), ("silent", silent)):
        if those.any():
            yield "rank_state", {"state": state}, at[those], np.ones(int(those.sum()))
    yield "rank_steps_total", {}, at[fresh], done[fresh].astype(np.float64)
    yield "rank_step_duration_seconds_count", {}, at[fresh], done[fresh].astype(np.float64)
    yield "rank_step_duration_seconds_sum", {}, at[fresh], np.concatenate([[0.0], one.walls_s])[done[fresh]]
    for (name, phase), sums in one.sums.items():
        values = np.concatenate([[np.nan], sums])[done[fresh]]
        known = np.isfinite(values)
        yield name, {"phase": phase} if phase else {}, at[fresh][known], values[known]


def _past(info: RankInfo, records: Iterable[StepRecord], latest_s: float) -> RankPast:
    steps = sorted((step for step in records if _end_s(step) <= latest_s), key=_end_s)
    ends = np.array([_end_s(step) for step in steps], dtype=np.float64)
    walls = np.array([step.wall_us for step in steps], dtype=np.float64)
    return RankPast(info, 0.0, ends, np.cumsum(walls) / 1e6, dict(_sums(steps)))


def _sums(steps: Sequence[StepRecord]) -> Iterator[tuple[tuple[str, str], _Times]]:
    each: list[tuple[tuple[str, str], list[float | None], float]] = []
    for phase in PHASES:
        each += [
            (("rank_phase_seconds_total", phase), [step.phases_us.get(phase) for step in steps], 1e-6),
            (("rank_blocked_seconds_total", phase), [_blocked_us(step, phase) for step in steps], 1e-6),
        ]
    each.append((("rank_samples_total", ""), [step.samples for step in steps], 1.0))
    each.append((("rank_tokens_total", ""), [step.tokens for step in steps], 1.0))
    for name, values, unit in each:
        amounts = np.array(values, dtype=np.float64)
        if (known := np.isfinite(amounts)).any():
            yield name, np.where(np.maximum.accumulate(known), np.cumsum(np.nan_to_num(amounts)) * unit, np.nan)


def _end_s(step: StepRecord) -> float:
    return step.start_unix_ns / 1e9 + step.wall_us / 1e6


def _blocked_us(step: StepRecord, phase: Phase) -> float:
    """NaN without a signal; where there is one at all, a phase without blocked time was not blocked."""
    if step.blocked_us is None:
        return math.nan
    waited = step.blocked_us.get(phase)
    if waited is None:
        return math.nan if step.phases_us.get(phase) is None else 0.0
    return waited


def _until_over(ranks: list[RankPast], following_s: float) -> list[RankPast]:
    """With the time at which each one's series are gone; at the latest when the next attempt takes them over."""
    ends = [rank.info.end_unix_ns for rank in ranks]
    last_s = max([rank.start_s for rank in ranks] + [float(rank.ends_s[-1]) for rank in ranks if len(rank.ends_s)], default=0.0)
    known = [end / 1e9 for end in ends if end is not None]
    over_s = max(known) if len(known) == len(ends) and known else max([last_s, *known]) + AFTER_S
    gone: list[RankPast] = []
    for rank in ranks:
        gone_itself = rank.info.end_unix_ns is not None and rank.info.end_reason in ("exit", "crash")
        until_s = min(following_s, (rank.info.end_unix_ns or 0) / 1e9 if gone_itself else over_s)
        gone.append(replace(rank, until_s=until_s))
    return gone


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

"""What limits the step when no rank stands out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.reduce import Reduction
from rankscope.analysis.result import Cause, Kind
from rankscope.analysis.step_order import of_blocks
from rankscope.analysis.steps import Matrix, StepTable
from rankscope.runs.records import DeviceKind, Phase


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the typical step goes, as shares of it; ``None``: not known. The shares may overlap, for input is idle time of a
    device.
    """

    input: float | None = None
    communication: float | None = None
    """Not hidden by compute, and without waiting for later ranks where that can be told apart."""
    waiting: float | None = None
    """For later ranks, in collectives."""
    compute: float | None = None
    idle: float | None = None
    """Of an accelerator that has nothing to do; on a CPU build idle says nothing."""
    bubble: float | None = None
    """Waiting of a pipeline's ranks; communication and waiting are parts of it and not known apart."""
    between_steps: float | None = None
    """On CPU ranks: between the steps, neither computing nor waiting for anybody, nor for a CPU."""
    stalled: float | None = None
    """On CPU ranks: the same in the other phases, without waiting for the data loader."""
    from_windows: bool = False
    """Communication, waiting, compute and idle are; the others are of step records, where there are any."""

    @property
    def idle_unexplained(self) -> float | None:
        """Idle where it is not known how much of it the device waits for input."""
        return self.idle if self.input is None else None

    @property
    def idle_for_host(self) -> float | None:
        """Idle, but not for want of input."""
        return None if self.idle is None or self.input is None else max(0.0, self.idle - self.input)


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One row of the table: the kind, the share that speaks for it, from how much on, what to say, and cause and phase where
    the share tells them.
    """

    kind: Kind
    share: str
    at_least: float
    says: str
    cause: Cause | None = None
    phase: Phase | None = None


LIMITS: Final[tuple[LimitRow, ...]] = (
    LimitRow("input_bound", "input", 0.25, "of the step goes into waiting for the data loader"),
    LimitRow("communication_bound", "communication", 0.30, "of the step goes into communication that no compute hides"),
    LimitRow("pipeline_bubble", "bubble", 0.25, "of the step the pipeline's ranks wait for each other"),
    LimitRow(
        "host_bound",
        "idle_unexplained",
        0.35,
        "of the step the device has nothing to do: the host, or the input it waits for, does not keep it busy",
    ),
    LimitRow("host_bound", "idle_for_host", 0.35, "of the step the device has nothing to do: the host does not keep it busy"),
    LimitRow(
        "host_bound",
        "between_steps",
        0.35,
        "of the step the ranks neither compute nor wait: the host code between the steps takes it",
        "host",
        "between_steps",
    ),
    LimitRow(
        "host_bound",
        "stalled",
        0.35,
        "of the step the ranks neither compute nor wait: their host code stalls inside the step",
        "host",
    ),
    LimitRow("compute_bound", "compute", 0.60, "of the step goes into compute"),
)


def limit_of(shares: Shares) -> tuple[LimitRow, float] | None:
    """The row whose share is the largest of those that reach their limit, and the share; ``None`` when none does."""
    reached = [(row, share) for row in LIMITS if (share := getattr(shares, row.share)) is not None and share >= row.at_least]
    return max(reached, key=lambda found: found[1], default=None)


def shares_of_windows(
    windows: Mapping[int, Reduction],
    wait_us: Mapping[int, float] | None,
    *,
    without: Collection[int] = (),
    input_us: Mapping[int, float] | None = None,
) -> Shares:
    """Shares over the windows of all ranks together, ``without`` some, and without truncated windows.

    ``wait_us``: how much of each rank's communication was waiting; ``None`` where no collective is matched. ``input_us``: of each
    rank's idle time, what its host spent in the data loader; ``None`` where windows do not tell.
    """
    ranks = [rank for rank in windows if rank not in without]
    breakdowns = [row for rank in ranks for row in windows[rank].breakdowns if not row.truncated]
    window = sum(row.window_us for row in breakdowns)
    if window <= 0:
        return Shares()
    device: set[DeviceKind] = {row.device_kind for row in breakdowns}
    exposed = sum(row.exposed_communication_us for row in breakdowns)
    # Waits of overlapping collectives add up to more than the time they take, so they can be no more than what was exposed.
    waiting = None if wait_us is None else min(sum(wait_us.get(rank, 0.0) for rank in ranks), exposed)
    return Shares(
        input=None if input_us is None else sum(input_us.get(rank, 0.0) for rank in ranks) / window,
        communication=(exposed - (waiting or 0.0)) / window,
        waiting=None if waiting is None else waiting / window,
        compute=sum(row.compute_us for row in breakdowns) / window,
        idle=None if device == {"cpu"} else sum(row.idle_us for row in breakdowns) / window,
        from_windows=True,
    )


def shares_of_steps(table: StepTable, *, on_cpu: bool, without: Collection[int] = ()) -> Shares:
    """Shares of the always-on records: the median over ranks, ``without`` some, of the mean over steps.

    What a rank is blocked while others still have own work to do is waiting; the rest of it is communication. What a thread on
    a CPU was neither running, nor blocked, nor runnable, nor in its data loader, it idled for reasons of the host; a rank with
    a device leaves the work to it, so there it says nothing. Profiled steps count where there are no others.
    """
    plain = np.logical_not(table.profiled.any(axis=0))
    if not plain.any():
        plain[:] = True

    def parts(steps: slice) -> dict[str, _Sums]:
        def of(name: str) -> Matrix:
            return table.some(name, steps)[:, plain[steps]].astype(np.float64)

        wall, own, blocked, cpu = (of(name) for name in ("wall_us", "own_us", "blocked_us", "cpu_us"))
        longest = np.where(np.isfinite(own), own, -np.inf).max(axis=0, initial=-np.inf)
        waiting = np.minimum(longest - own, blocked)
        found = {"input": of("data_us"), "waiting": waiting, "communication": blocked - waiting}
        if on_cpu:
            idle = np.maximum(own - np.nan_to_num(of("own_data_us")) - np.nan_to_num(of("run_queue_us")) - cpu, 0)
            between = np.minimum(idle, np.nan_to_num(of("own_between_steps_us")))
            found |= {"compute": cpu, "between_steps": between, "stalled": idle - between}
        return {name: _sums(values, wall) for name, values in found.items()}

    found = of_blocks(table.start_unix_ns.shape, parts)
    kept = ~np.isin(table.ranks, list(without))

    def share(name: str, *, of_all: bool = False) -> float | None:
        part, whole = np.sum([block[name] for block in found if name in block], axis=0) if found else (np.zeros(0), np.zeros(0))
        ranks = (whole > 0) & kept[: len(whole)]
        if not ranks.any():
            return None
        # Of two ranks the median is half of either: what one of them alone does is not what the ranks do.
        return float(np.quantile(part[ranks] / whole[ranks], 0.5, method="lower" if of_all else "linear"))

    return Shares(
        input=share("input", of_all=True),
        communication=share("communication"),
        waiting=share("waiting"),
        compute=share("compute") if on_cpu else None,
        between_steps=share("between_steps", of_all=True) if on_cpu else None,
        stalled=share("stalled", of_all=True) if on_cpu else None,
    )


_Sums = tuple[NDArray[np.float64], NDArray[np.float64]]


def _sums(values: Matrix, wall: Matrix) -> _Sums:
    """Of each rank, a part of its steps and the steps themselves, where both are known."""
    both = np.isfinite(values) & np.isfinite(wall)
    return values.sum(axis=1, where=both), wall.sum(axis=1, where=both)

"""Costs of a step from profiled windows and traces: means over their ranks and steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Final, Literal

import numpy as np

from rankscope.analysis.collectives.waits.blame import Blame
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.costs.waterfall import Amount, Costs, InnerName
from rankscope.analysis.result.costs import PartName, PartSource

NOT_MATCHED: Final = "collectives are not matched across the ranks: waiting for later ranks is in exposed_communication"
WITH_WAITING: Final = "includes waiting for later ranks, which cannot be separated"
IDLE: Final = "the device idles {share:.0%} of the time; whether it waits for input or for the host is not known"
NO_HOST: Final = "windows do not tell what a CPU rank does outside operators and collectives"


def costs_of_windows(
    windows: Mapping[int, Reduction],
    blame: Blame | None,
    *,
    world_size: int | None,
    source: PartSource,
    unit: Literal["step", "window"] = "step",
    input_us: float | None = None,
    extent_us: float | None = None,
    without: Collection[int] = (),
) -> Costs | None:
    """Return the costs of the mean window of all ranks ``without`` some; ``None`` if there is no window.

    ``blame``: waits in matched collectives; ``None`` if none are matched.
    ``input_us``: part of ``idle_us`` that the host spent in the data loader; ``None`` if unknown.
    ``extent_us``: time from the first start on any rank to the last end on any; ``None`` if unknown.
    """
    kept_parts = (part.breakdowns for rank, part in windows.items() if rank not in without)
    rows = [row for breakdowns in kept_parts for row in breakdowns if not row.truncated]
    if not rows:
        return None

    window, compute, exposed, copies, idle = np.mean(list(map(_parts_us, rows)), axis=0).tolist()
    waited = None if blame is None else _waited(blame, without) / len(rows)
    if world_size == 1 or exposed == 0:
        waited = 0.0
    amounts: dict[PartName, Amount] = {
        "compute": Amount(compute, source),
        "copies": Amount(copies, source),
        "exposed_communication": Amount(exposed - min(waited or 0.0, exposed), source),
    }
    notes: dict[PartName, str] = {}
    if waited is not None:
        amounts["straggler_wait"] = Amount(min(waited, exposed), source)
    else:
        notes |= {"straggler_wait": NOT_MATCHED, "exposed_communication": WITH_WAITING}
    accelerated = any(row.device_kind != "cpu" for row in rows)
    if not accelerated:
        notes["host"] = NO_HOST
    elif input_us is not None:
        amounts["input"] = Amount(min(input_us, idle), source)
        amounts["host"] = Amount(idle - min(input_us, idle), source)
    else:
        notes |= dict.fromkeys(("input", "host"), IDLE.format(share=idle / window if window > 0 else 0.0))
    steps = len({row.step for row in rows})
    inner: dict[InnerName, Amount] = {"idle": Amount(idle, source)} if accelerated else {}
    return Costs(window, steps, unit, amounts=amounts, notes=notes, inner=inner, extent_us=extent_us)


_parts_us = attrgetter("window_us", "compute_us", "exposed_communication_us", "exposed_memcpy_us", "idle_us")


def _waited(blame: Blame, without: Collection[int]) -> float:
    """Return the waiting that no compute hid, summed over all victims ``without`` some."""
    of_them = blame.pairs.exposed_us[np.isin(blame.pairs.victim, list(without))].sum()
    return max(0.0, float(sum(blame.exposed_us.values()) - of_them))

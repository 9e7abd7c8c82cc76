"""Costs of a step from profiled windows and traces: means over their ranks and steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final, Literal

import numpy as np

from rankscope.analysis.collectives.blame import Blame
from rankscope.analysis.collectives.windows import Reduction
from rankscope.analysis.costs.waterfall import Amount, Costs, InnerName
from rankscope.analysis.result.costs import PartName, PartSource

NOT_MATCHED: Final = "collectives are not matched across the ranks: waiting for later ranks is in exposed_communication"
WITH_WAITING: Final = "with waiting for later ranks, which is not told apart"
IDLE: Final = "the device idles {share:.0%} of the time; whether it waits for input or for the host is not known"
NO_HOST: Final = "windows do not tell what a CPU rank does outside operators and collectives"
_FROM_WINDOWS: Final[tuple[PartName, ...]] = ("exposed_communication", "straggler_wait")


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
    kept = (one.breakdowns for rank, one in windows.items() if rank not in without)
    rows = [row for breakdowns in kept for row in breakdowns if not row.truncated]
    if not rows:
        return None

    window, compute, exposed, copies, idle = np.mean(list(map(_parts_us, rows)), axis=0).tolist()
    waited = None if blame is None else _waited(blame, without) / len(rows)
    if world_size == 1 or exposed == 0:
        waited = 0.0
    known: dict[PartName, Amount] = {
        "compute": Amount(compute, source),
        "copies": Amount(copies, source),
        "exposed_communication": Amount(exposed - min(waited or 0.0, exposed), source),
    }
    notes: dict[PartName, str] = {}
    if waited is not None:
        known["straggler_wait"] = Amount(min(waited, exposed), source)
    else:
        notes |= {"straggler_wait": NOT_MATCHED, "exposed_communication": WITH_WAITING}
    accelerated = any(row.device_kind != "cpu" for row in rows)
    if not accelerated:
        notes["host"] = NO_HOST
    elif input_us is not None:
        known["input"] = Amount(min(input_us, idle), source)
        known["host"] = Amount(idle - min(input_us, idle), source)
    else:
        notes |= dict.fromkeys(("input", "host"), IDLE.format(share=idle / window if window > 0 else 0.0))
    steps = len({row.step for row in rows})
    inner: dict[InnerName, Amount] = {"idle": Amount(idle, source)} if accelerated else {}
    return Costs(window, steps, unit, known=known, notes=notes, inner=inner, extent_us=extent_us)


_parts_us = attrgetter("window_us", "compute_us", "exposed_communication_us", "exposed_memcpy_us", "idle_us")


def _waited(blame: Blame, without: Collection[int]) -> float:
    """Return the waiting that no compute hid, summed over all victims ``without`` some."""
    of_them = sum(row[1] for rows in blame.rows.values() for (_, victim), row in rows.items() if victim in without)
    return max(0.0, sum(blame.exposed_us.values()) - of_them)


def together(steps: Costs | None, windows: Costs | None, *, accelerated: bool) -> Costs | None:
    """Return the costs of a run, merged from the records of all ``steps`` and from its ``windows``.

    On a device only windows show compute and copies. Profiling slows the host, but not the kernels. So the rest of a step
    (neither compute, communication, copies nor input) is idle time caused by the host, up to the idle time that the windows
    saw. On CPUs the times of the training thread, known for all steps, are preferred.
    """
    if steps is None or windows is None:
        return steps or windows
    if accelerated and "idle" not in windows.inner:
        return steps  # the profiler did not see the ranks' devices
    known, notes = dict(steps.known), dict(steps.notes)
    if accelerated:
        for name in ("compute", "copies"):
            known[name] = windows.known[name]
            notes.pop(name, None)
    if "pipeline_bubble" not in known:
        missing = [name for name in _FROM_WINDOWS if name not in known]
        for name in missing:
            notes.pop(name, None)
            if name in windows.known:
                known[name] = windows.known[name]
            if name in windows.notes:
                notes[name] = windows.notes[name]
    if not accelerated and "compute" not in known:
        known["compute"] = windows.known["compute"]
        notes["compute"] = "operators on the training thread; in profiled steps"
        notes["host"] = NO_HOST
    # Amounts from windows are means over all stages.
    largest = {name: one for name, one in steps.largest.items() if name not in known or known[name].source == "steps"}
    merged = replace(steps, known=known, notes=notes, inner=steps.inner | windows.inner, largest=largest)
    return _host_of_device(merged) if accelerated else merged


def _host_of_device(costs: Costs) -> Costs:
    rest = max(0.0, costs.step_us - sum(amount.us for amount in costs.known.values()))
    idle = Amount(min(rest, costs.inner["idle"].us), "windows")
    if "input" not in costs.known:
        share = idle.us / costs.step_us if costs.step_us > 0 else 0.0
        notes = costs.notes | dict.fromkeys(("input", "host"), IDLE.format(share=share))
        return replace(costs, notes=notes, inner=costs.inner | {"idle": idle})
    return replace(
        costs,
        known=costs.known | {"host": idle},
        notes={name: note for name, note in costs.notes.items() if name != "host"},
        inner={name: amount for name, amount in costs.inner.items() if name != "idle"},
    )

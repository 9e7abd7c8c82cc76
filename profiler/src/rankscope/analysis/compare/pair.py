"""Compare one side with another."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from rankscope.analysis.compare.comparable_steps import Basis, ComparableSteps, WorkName
from rankscope.analysis.compare.compare_result import Comparison, Per, Quantity, Throughput
from rankscope.analysis.compare.compare_wording import summarise
from rankscope.analysis.compare.outcomes import Levels, single_quantity, tested_quantity, window_quantity
from rankscope.analysis.compare.quantities import INSIDE, PARTS, SINGLE, STEP, WINDOW, parts, single, windows, with_rest
from rankscope.analysis.compare.rank_shifts import comparable_ranks, rank_shifts, slower_hosts
from rankscope.analysis.compare.recording import Recording
from rankscope.analysis.compare.shift import Series
from rankscope.base.text import shortened

_LEAST_WORK_CHANGE: Final = 0.01
_LONGEST: Final = 200
"""Maximum length of a phrase in characters: a list of a thousand hosts is cut."""

_SAME_WORK: Final = 0.001
"""Relative difference in work up to which steps count as the same work."""


def compare_pair(a: ComparableSteps, b: ComparableSteps, *, min_change: float) -> Comparison:
    """Compare ``b`` with ``a``. If their steps differ in work, times are per token or sample instead of per step."""
    basis: Basis = "own" if a.has_own and b.has_own else "wall"
    per, work_a, work_b = _per(a, b)
    wall_a, wall_b = a.walls / work_a, b.walls / work_b
    step_us = float(wall_a.mean()) if len(wall_a) else 0.0
    pieces: dict[str, tuple[Series, Series]] = {}
    if len(wall_a) and len(wall_b):
        pieces = with_rest(_parts(a, basis, work_a), _parts(b, basis, work_b), wall_a, wall_b)
    inside = _inside(a, b, work_a, work_b)
    windows_a, windows_b = windows(a), windows(b)
    profiled = [name for name in WINDOW if name in windows_a and name in windows_b]
    ranks = comparable_ranks(a, b)
    levels = Levels.over(inside=len(pieces) + len(inside) + len(profiled), ranks=len(ranks))

    step = tested_quantity("wall_us", STEP, "step", wall_a, wall_b, level=levels.step, min_change=min_change, step_us=step_us)
    quantities = [
        step,
        *(
            tested_quantity(name, PARTS[name], "part", *pair, level=levels.inside, min_change=min_change, step_us=step_us)
            for name, pair in pieces.items()
        ),
        *(
            tested_quantity(name, INSIDE[name], "inside", *pair, level=levels.inside, min_change=min_change, step_us=step_us)
            for name, pair in inside.items()
        ),
        *_window_quantities(
            profiled, windows_a, windows_b, work_a=work_a, work_b=work_b, level=levels.inside, min_change=min_change
        ),
        *(
            single_quantity(name, kind, of_a, of_b)
            for name, kind in SINGLE.items()
            for of_a, of_b in [(single(a, name), single(b, name))]
            if of_a is not None or of_b is not None
        ),
    ]
    shifts = rank_shifts(a, b, ranks, work=(work_a, work_b), level=levels.ranks, least_difference=min_change * step_us)
    hosts = slower_hosts(shifts)
    sentence, summary = summarise(a, b, step, quantities, ranks=shifts, hosts=hosts, per=per, min_change=min_change)
    return Comparison(
        a=a.label,
        b=b.label,
        outcome=step.outcome,
        sentence=sentence,
        summary=summary,
        per=per,
        basis=basis,
        quantities=quantities,
        throughput=_throughput(a, b, step),
        ranks=shifts,
        slower_hosts=hosts,
        differs=differs(a, b),
    )


def _per(a: ComparableSteps, b: ComparableSteps) -> tuple[Per, float, float]:
    """Return the unit of work for which times are given, and the amount of it in a step of either side."""
    units: tuple[tuple[Per, WorkName], ...] = (("token", "tokens"), ("sample", "samples"))
    for per, name in units:
        of_a, of_b = a.work[name], b.work[name]
        if of_a is not None and of_b is not None and abs(of_b / of_a - 1) > _SAME_WORK:
            return per, of_a, of_b
    return "step", 1.0, 1.0


def _parts(side: ComparableSteps, basis: Basis, work: float) -> dict[str, Series]:
    return {name: series / work for name, series in parts(side, basis).items()}


def _inside(a: ComparableSteps, b: ComparableSteps, work_a: float, work_b: float) -> dict[str, tuple[Series, Series]]:
    """Return the series within the parts that all ranks have in all steps: a missing value is not in any other series."""
    complete_parts = [name for name in INSIDE if name in a.means and name in b.means and name not in a.partial | b.partial]
    return {name: (a.means[name] / work_a, b.means[name] / work_b) for name in complete_parts}


def _window_quantities(
    names: list[str],
    of_a: dict[str, list[Series]],
    of_b: dict[str, list[Series]],
    *,
    work_a: float,
    work_b: float,
    level: float,
    min_change: float,
) -> list[Quantity]:
    if "window_us" not in names:
        return []
    step_us = float(np.concatenate(of_a["window_us"]).mean()) / work_a
    quantities = []
    for name in names:
        kind = WINDOW[name]
        scale_a, scale_b = (work_a, work_b) if kind.unit == "us" else (1.0, 1.0)
        series_a, series_b = [block / scale_a for block in of_a[name]], [block / scale_b for block in of_b[name]]
        quantities.append(window_quantity(name, kind, series_a, series_b, level=level, min_change=min_change, step_us=step_us))
    return quantities


def _throughput(a: ComparableSteps, b: ComparableSteps, step: Quantity) -> list[Throughput]:
    """Return the work per second from the average step; its interval is the inverted interval of the step time."""
    throughputs = []
    units: tuple[Literal["samples", "tokens"], ...] = ("samples", "tokens")
    for unit in units:
        of_a, of_b = per_second(a, unit), per_second(b, unit)
        if of_a is None or of_b is None:
            continue
        relative = of_b / of_a - 1
        low = high = None
        shift = step.average
        bounds = None if shift is None else (shift.relative, shift.relative_low, shift.relative_high)
        if bounds is not None and all(bound is not None and bound > -1 for bound in bounds):
            middle, fastest, slowest = (1 + (bound or 0.0) for bound in bounds)
            # Change due to the work per step, which the compared time does not contain.
            more = (1 + relative) * middle
            low, high = more / slowest - 1, more / fastest - 1
        throughputs.append(Throughput(unit=unit, a=of_a, b=of_b, relative=relative, relative_low=low, relative_high=high))
    return throughputs


def per_second(side: ComparableSteps, unit: WorkName) -> float | None:
    """Return the work of the whole job per second of its average step; ``None`` if unknown."""
    work, wall = side.work[unit], step_time(side)
    return None if work is None or wall is None else work / wall * 1e6


def step_time(side: ComparableSteps) -> float | None:
    """Return the mean step time in microseconds over ranks and steps; ``None`` without a usable step."""
    return float(side.walls.mean()) if len(side.walls) else None


def typical_step_time(side: ComparableSteps) -> float | None:
    """Return the median step time in microseconds, of the mean over the ranks; ``None`` without a usable step."""
    return float(np.median(side.walls)) if len(side.walls) else None


def differs(a: ComparableSteps, b: ComparableSteps) -> list[str]:
    """Return one phrase per difference: ``what: of A -> of B``."""
    old, new = a.recording, b.recording
    facts: list[tuple[str, str | None, str | None]] = [(fact, _facts(old)[fact], _facts(new)[fact]) for fact in _facts(old)]
    versions = (old.about.versions if old.about else {}, new.about.versions if new.about else {})
    facts += [(name, versions[0].get(name), versions[1].get(name)) for name in sorted({*versions[0], *versions[1]})]
    differences = [f"{fact}: {before} -> {after}" for fact, before, after in facts if before and after and before != after]
    per_step = [side.work["input_elements"] for side in (a, b)]
    if per_step[0] is not None and per_step[1] is not None and abs(per_step[1] / per_step[0] - 1) > _LEAST_WORK_CHANGE:
        differences.append(f"input elements per step: {per_step[0]:,.0f} -> {per_step[1]:,.0f}")
    return [shortened(text, _LONGEST) for text in differences]


def _facts(recording: Recording) -> dict[str, str]:
    """Return the facts of a recording by name; an unknown fact is empty."""
    about = recording.about
    return {
        "world size": str(recording.world_size),
        "backend": (about.backend or "") if about else "",
        "layout": ", ".join(f"{name}={size}" for name, size in about.layout.items()) if about else "",
        "devices": ", ".join(sorted({info.gpu_name or info.device_kind for info in recording.infos.values()})),
        "hosts": ", ".join(sorted({info.host for info in recording.infos.values()})),
    }

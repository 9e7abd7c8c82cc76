"""Stragglers in profiled windows: ranks that were last at the matched collectives more often than chance explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.collectives.blame import Blame
from rankscope.analysis.inference.cause import Signals, cause_of
from rankscope.analysis.inference.named import Named
from rankscope.analysis.inference.significance import (
    LIMIT,
    UNCLEAR,
    Scores,
    attainable_p,
    block_sums,
    chance_reaches,
    gap_p_value,
    looks,
    p_value,
    stability,
)
from rankscope.analysis.inference.slow import FIXED, MINIMUM_EFFECT, Slow
from rankscope.analysis.result.analysis import Evidence
from rankscope.runs.records import StepBreakdown

ENOUGH_STEPS: Final = 8
"""Minimum number of steps to use steps as units of the significance tests.

With fewer steps collectives are the units; those of one step are not independent of each other.
"""


def find_late(blame: Blame, window_us: float) -> Slow | None:
    """Return the rank that was late beyond chance and at a significant cost, or ``None``.

    Several ranks are returned where healing one alone makes no difference. ``window_us`` is the typical window over which
    ``blame`` was summed. Lags below the clocks' residual do not count, nor does waiting that compute hid.
    """
    units, ranks = blame.gain_us.shape
    if not units or ranks < 2 or window_us <= 0:
        return None
    together = _together(blame, window_us)
    row = int(blame.gain_us.sum(axis=0).argmax())
    rank = blame.ranks[row]
    gain = blame.saved_us[rank]
    if not _at_a_price(blame, rank, window_us) or (together is not None and together.gain_us > _MUCH_MORE * gain):
        return together
    scores = _scores(blame, blame.gain_us)
    chance = p_value(scores, row)
    # A few steps do not show how long noise lasts, so the check for lasting noise needs enough steps.
    lasting = len(blame.steps) >= ENOUGH_STEPS and not _beyond_noise(blame, [row], np.delete(np.arange(ranks), row))
    if chance > LIMIT or lasting:
        return together
    return _slow([rank], gain, chance, stability(scores, row, at_least=0.0), _led(blame, row))


_MUCH_MORE: Final = 1.5
"""Several ranks are named instead of one where healing them all saves more than this factor of what healing one saves."""


def _lags(blame: Blame) -> Scores | None:
    """Return how much later than the median each rank came, [units, ranks].

    Units are steps where there are ``ENOUGH_STEPS``, else collectives. ``None`` where not all collectives have the same ranks:
    the lags would then include waiting that is charged to other ranks.
    """
    if np.isnan(blame.waited_us).any():
        return None
    lags = np.median(blame.waited_us, axis=1, keepdims=True) - blame.waited_us
    return lags if len(blame.steps) < ENOUGH_STEPS else _by_step(blame, lags)


def _beyond_noise(blame: Blame, rows: Sequence[int], others: NDArray[np.intp]) -> bool:
    """Return whether each rank in ``rows`` has a mean lag that noise as lasting as that of ``others`` does not explain.

    Return true where there are no lags to compare, or fewer than two units.
    """
    lags = _lags(blame)
    if lags is None or len(lags) < 2:
        return True
    bound = chance_reaches(lags[:, others], lags.shape[1])
    return bool((lags[:, rows].mean(axis=0) > bound).all())


def _slow(ranks: list[int], gain_us: float, chance: float, certain: float, share: float) -> Slow:
    return Slow(
        ranks=ranks,
        pattern="fixed" if share >= FIXED else "intermittent",
        gain_us=gain_us,
        excess_us=gain_us,
        p_value=chance,
        stability=certain,
        last_share=share,
    )


def _together(blame: Blame, window_us: float) -> Slow | None:
    """Return ranks that are late at the same collectives, so that healing one alone saves little; ``None`` without any.

    These are the smallest set that costs enough and is later than all others beyond chance, at most half of the ranks.
    Requires that all collectives have the same ranks: a delay from another group is charged to the last rank alone.
    """
    if np.isnan(blame.waited_us).any():
        return None
    lag = np.maximum(np.median(blame.waited_us, axis=1, keepdims=True) - blame.waited_us, 0.0)
    order = np.argsort(-lag.sum(axis=0), kind="stable")
    scores = _scores(blame, lag)
    totals = scores.sum(axis=0)
    for count in range(2, min(_AT_MOST, len(order) // 2) + 1):
        late, rest = order[:count], order[count:]
        ranks = [blame.ranks[row] for row in late]
        # Time that the others would have saved: the shortest wait among them.
        gains = blame.waited_us[:, rest].min(axis=1)
        imposed = sum(blame.imposed_us[rank] for rank in ranks)
        exposed = sum(blame.exposed_us[rank] for rank in ranks) / imposed if imposed > 0 else 0.0
        if exposed * gains.sum() < MINIMUM_EFFECT * window_us:
            continue
        chance = looks(len(order)) * gap_p_value(scores, float(totals[late].min() - totals[rest].max()))
        if chance > LIMIT or not _beyond_noise(blame, list(late), rest):
            return None
        led = _by_step(blame, gains[:, None])[:, 0] if len(blame.steps) > 1 else gains
        share = float((led > 0.5 * led.max()).mean())
        certain = min(stability(scores[:, [row, *rest]], 0, at_least=0.0) for row in late)
        return _slow(ranks, exposed * float(gains.sum()), chance, certain, share)
    return None


_AT_MOST: Final = 8
"""Maximum number of ranks that are named together."""


def too_few(blame: Blame, window_us: float) -> int | None:
    """Return the rank that was late at a significant cost, but too rarely to exclude chance; ``None`` without one.

    One of three conditions must hold: the rank was the last in every unit with a clearly last rank; there are too few such
    units to name any rank; or its p-value is at most ``UNCLEAR``. Call it where ``find_late`` named no rank.
    """
    late = (blame.gain_us > 0).any(axis=1)
    if not late.any():
        return None
    row = int(blame.gain_us.sum(axis=0).argmax())
    if not _at_a_price(blame, blame.ranks[row], window_us):
        return None
    always = bool((blame.gain_us[late, row] > 0).all())
    scores = _scores(blame, blame.gain_us)
    powerless = attainable_p(int((scores > 0).any(axis=1).sum()), len(blame.ranks)) > LIMIT
    return blame.ranks[row] if always or powerless or p_value(scores, row) <= UNCLEAR else None


def _at_a_price(blame: Blame, rank: int, window_us: float) -> bool:
    """Return whether the rank's lateness costs ``MINIMUM_EFFECT`` of the window beyond the median cost of the other ranks."""
    usual = float(np.median([saved for other, saved in blame.saved_us.items() if other != rank]))
    return blame.saved_us[rank] - usual >= MINIMUM_EFFECT * window_us


def _led(blame: Blame, row: int) -> float:
    """Return the fraction of the delayed steps in which this rank delayed its peers most; of collectives with one step."""
    gains = blame.gain_us if len(blame.steps) < 2 else _by_step(blame, blame.gain_us)
    clear = gains[(gains > 0).any(axis=1)]
    return float((clear.argmax(axis=1) == row).mean())


def _by_step(blame: Blame, values: Scores) -> Scores:
    """Sum ``values`` [instances, any] per step, [steps, any]; instances need not be ordered by step."""
    steps, position = np.unique(blame.instance_step, return_inverse=True)
    total = np.zeros((len(steps), values.shape[1]))
    np.add.at(total, position, values)
    return total


def _scores(blame: Blame, values: Scores) -> Scores:
    """Return the scores for the significance tests from ``values`` [instances, ranks].

    These are sums over blocks of steps, [blocks, ranks], with ``ENOUGH_STEPS`` steps, else ``values``.
    """
    return values if len(blame.steps) < ENOUGH_STEPS else block_sums(_by_step(blame, values))


def device_signals(rank: int, gain_us: float, breakdowns: Mapping[int, Sequence[StepBreakdown]]) -> Signals:
    """Return the signals for the cause of a late rank, per window: ``gain_us`` and its device's excess work over its peers."""
    return Signals(own_us=gain_us, device_busy_us=busy_excess(rank, breakdowns))


def busy_excess(rank: int, breakdowns: Mapping[int, Sequence[StepBreakdown]]) -> float | None:
    """Return a rank's mean compute and exposed copies per window minus the median of its peers.

    ``None`` where the rank or all its peers lack complete windows.
    """
    busy = {
        one: float(np.mean(known))
        for one, rows in breakdowns.items()
        if (known := [row.compute_us + row.exposed_memcpy_us for row in rows if not row.truncated])
    }
    peers = [value for one, value in busy.items() if one != rank]
    return busy[rank] - float(np.median(peers)) if rank in busy and peers else None


def late_named(
    slow: Slow,
    blame: Blame,
    window_us: float,
    signals: Signals,
    *,
    steps: int = 1,
    seen: str = "step",
    explained: float | None = None,
) -> Named:
    """Describe a rank that was late in windows of ``window_us`` and ``steps`` steps each; times are per step.

    ``seen``: name of the unit that ``blame`` counts, for messages. ``explained``: the share of the communication that ``blame``
    rests on, where known.
    """
    few = len(blame.steps) < ENOUGH_STEPS
    victims = max(1, len(blame.ranks) - len(slow.ranks))
    imposed, exposed = (sum(each[rank] for rank in slow.ranks) for each in (blame.imposed_us, blame.exposed_us))
    total = sum(blame.imposed_us.values())
    share = imposed / total if total > 0 else None
    evidence = [
        Evidence(name="imposed_wait", value=imposed, unit="us", detail="summed over the victims"),
        Evidence(name="imposed_wait_exposed", value=exposed, unit="us", detail="the part that no compute hid"),
        Evidence(
            name="saved",
            value=slow.gain_us / steps,
            unit="us",
            detail=f"per {'window' if steps == 1 else 'step'}, had it come with the last of the others",
        ),
        Evidence(
            name="last",
            value=slow.last_share,
            unit="ratio",
            detail=f"of the {'collectives' if len(blame.steps) < 2 else 'steps'} in which anybody clearly was",
        ),
    ]
    if share is not None:
        evidence.append(Evidence(name="imposed_wait_share", value=share, unit="ratio", detail="of all imposed wait"))
    if slow.p_value is not None:
        evidence.append(Evidence(name="p_value", value=slow.p_value, unit="probability", detail="permutation test"))
    return Named(
        ranks=slow.ranks,
        pattern=slow.pattern,
        cause=cause_of(signals),
        phase=signals.phase,
        gain_us=slow.gain_us / steps,
        wait_us=exposed / victims / steps,
        step_us=window_us / steps,
        confidence=round(
            min(
                _lasts(len(blame.steps)) if few else 0.99,
                1.0 if explained is None else explained,
                slow.stability * (1 - (slow.p_value or 0.0)),
            ),
            3,
        ),
        group=_where(blame, slow.ranks[0]),
        at_hand=_at_hand(len(blame.steps), seen, steps) if few else "",
        note=_FEW.format(needed=ENOUGH_STEPS) if few else "",
        evidence=evidence,
    )


_FEW: Final = "Whether it lasts, {needed} steps or more tell."


def _lasts(seen: int) -> float:
    """Return the probability that the next step is like all ``seen`` steps before it (Laplace's rule of succession)."""
    return (seen + 1) / (seen + 2)


def _at_hand(count: int, what: str, steps: int) -> str:
    """Return the text for the ``count`` units, named ``what``, that a verdict rests on.

    With several ``steps`` per unit the text marks times as per unit.
    """
    if count < 2:
        return f"in the one {what} at hand"
    return f"per {what} in the {count} at hand" if steps > 1 else f"in the {count} {what}s at hand"


def _where(blame: Blame, rank: int) -> str | None:
    """Return the process group in which others waited most for a rank; ``None`` where there is only one group."""
    waits = {group: sum(row[1] for (origin, _), row in rows.items() if origin == rank) for group, rows in blame.rows.items()}
    return max(waits, key=lambda group: waits[group])[0] if len(waits) > 1 else None

"""Stragglers in profiled windows: who was last at the matched collectives, against chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from rankscope.analysis.blame import Blame
from rankscope.analysis.cause import Signals
from rankscope.analysis.own_time import FIXED, MINIMUM_EFFECT, Slow
from rankscope.analysis.significance import LIMIT, Scores, attainable_p, block_sums, p_value, stability
from rankscope.runs.records import StepBreakdown

ENOUGH_STEPS: Final = 8
"""From so many steps on, steps are the units of chance; below, collectives, which hang together within a step."""


UNCLEAR: Final = 0.1
"""Up to this p-value "nobody" would be said too confidently, though nobody can be named."""


def find_late(blame: Blame, window_us: float) -> Slow | None:
    """The rank that was late beyond chance and at a price, or ``None``.

    ``window_us`` is the typical window over which ``blame`` was summed. Lags below the clocks' residual do not count, nor does
    waiting that compute hid.
    """
    units, ranks = blame.gain_us.shape
    if not units or ranks < 2 or window_us <= 0:
        return None
    row = int(blame.gain_us.sum(axis=0).argmax())
    rank = blame.ranks[row]
    gain = blame.saved_us[rank]
    if not _at_a_price(blame, rank, window_us):
        return None
    scores = _scores(blame)
    chance = p_value(scores, row)
    if chance > LIMIT:
        return None
    share = _led(blame, row)
    return Slow(
        ranks=[rank],
        pattern="fixed" if share >= FIXED else "intermittent",
        gain_us=gain,
        excess_us=gain,
        p_value=chance,
        stability=stability(scores, row, at_least=0.0),
        last_share=share,
    )


def too_few(blame: Blame, window_us: float) -> int | None:
    """The rank that was late at a price, too seldom for chance to be excluded; ``None`` when there is none.

    Too seldom: it was last whenever anybody clearly was, or somebody clearly was so rarely that no rank at all could have been
    named, or chance would do the same now and then, but not often. To be asked where ``find_late`` named nobody.
    """
    late = (blame.gain_us > 0).any(axis=1)
    if not late.any():
        return None
    row = int(blame.gain_us.sum(axis=0).argmax())
    if not _at_a_price(blame, blame.ranks[row], window_us):
        return None
    always = bool((blame.gain_us[late, row] > 0).all())
    scores = _scores(blame)
    powerless = attainable_p(int((scores > 0).any(axis=1).sum()), len(blame.ranks)) > LIMIT
    return blame.ranks[row] if always or powerless or p_value(scores, row) <= UNCLEAR else None


def _at_a_price(blame: Blame, rank: int, window_us: float) -> bool:
    """Whether its lateness costs ``MINIMUM_EFFECT`` of the window beyond what being last now and then costs any rank."""
    usual = float(np.median([saved for other, saved in blame.saved_us.items() if other != rank]))
    return blame.saved_us[rank] - usual >= MINIMUM_EFFECT * window_us


def _led(blame: Blame, row: int) -> float:
    """Share of the steps in which it delayed the others more than anybody else did, of those in which anybody did; of the
    collectives where there is one step.
    """
    gains = blame.gain_us if len(blame.steps) < 2 else _by_step(blame)
    clear = gains[(gains > 0).any(axis=1)]
    return float((clear.argmax(axis=1) == row).mean())


def _by_step(blame: Blame) -> Scores:
    """[steps, ranks]. The instances of several groups are in no order of steps."""
    steps, position = np.unique(blame.instance_step, return_inverse=True)
    total = np.zeros((len(steps), len(blame.ranks)))
    np.add.at(total, position, blame.gain_us)
    return total


def _scores(blame: Blame) -> Scores:
    """[units of chance, ranks]."""
    if len(blame.steps) < ENOUGH_STEPS:
        return blame.gain_us
    return block_sums(_by_step(blame))


def device_signals(rank: int, gain_us: float, breakdowns: Mapping[int, Sequence[StepBreakdown]]) -> Signals:
    """What a late rank's device did more than its peers', per window."""
    return Signals(own_us=gain_us, device_busy_us=busy_excess(rank, breakdowns))


def busy_excess(rank: int, breakdowns: Mapping[int, Sequence[StepBreakdown]]) -> float | None:
    """Mean compute and exposed copies per window of a rank minus the median of its peers'; ``None`` without windows."""
    busy = {
        one: float(np.mean([row.compute_us + row.exposed_memcpy_us for row in rows]))
        for one, rows in breakdowns.items()
        if len(rows)
    }
    peers = [value for one, value in busy.items() if one != rank]
    return busy[rank] - float(np.median(peers)) if rank in busy and peers else None

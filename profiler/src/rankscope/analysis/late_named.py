"""Description of a rank that profiled windows show to be late, with evidence and confidence."""

from __future__ import annotations

from typing import Final

from rankscope.analysis.blame import Blame
from rankscope.analysis.cause import Signals, cause_of
from rankscope.analysis.late import ENOUGH_STEPS
from rankscope.analysis.named import Named
from rankscope.analysis.result import Evidence
from rankscope.analysis.slow import Slow


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

"""Several ranks named together: how long the others wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankscope.analysis.engine import analyze

LONGEST_US, SHORTER_US = 100_000, 60_000


def test_waits_of_named_ranks_for_each_other_are_not_those_of_the_others(synthetic: Callable[..., Any]) -> None:
    """Ranks 0 and 2 are slow in every step, and take turns in being last."""

    def plan(rank: int, step: int) -> dict[str, int] | None:
        if rank not in (0, 2):
            return None
        return {"us": LONGEST_US if (rank == 0) == (step % 2 == 0) else SHORTER_US}

    analysis = analyze([synthetic(steps=120, plan=plan, noise=0.01).write()])
    assert sorted(analysis.verdict.ranks) == [0, 2]
    wait_us = next(row.value for row in analysis.findings[0].evidence if row.name == "imposed_wait")
    blocked = [rank.blocked_us for rank in analysis.ranks if rank.rank in (1, 3)]
    assert wait_us == pytest.approx(LONGEST_US, rel=0.05)
    assert wait_us <= np.mean([us for us in blocked if us is not None]) * 1.01
    assert "make the other 2 ranks wait" in analysis.verdict.summary
    assert f"for the worst of them, rank {analysis.verdict.rank}, " in analysis.verdict.summary

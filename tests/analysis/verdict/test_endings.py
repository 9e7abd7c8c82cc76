"""First rank that ended."""

from __future__ import annotations

import pytest

from rankscope.analysis.verdict.endings import endings
from rankscope.runs.records import EndReason, RankInfo

MS = 1_000_000


def ended(*how: tuple[EndReason | None, int | None], hosts: str = "aaaa", boot: str | None = None) -> dict[int, RankInfo]:
    """Return the infos of ranks 0, 1, … with the given (reason, end in milliseconds)."""
    return {
        rank: RankInfo(
            rank=rank,
            world_size=len(how),
            host=hosts[rank],
            boot_id=boot,
            pid=1,
            start_unix_ns=1,
            end_unix_ns=None if end_ms is None else end_ms * MS,
            end_reason=reason,
        )
        for rank, (reason, end_ms) in enumerate(how)
    }


@pytest.mark.parametrize(
    ("infos", "first"),
    [
        (ended(("exit", 1), ("exit", 2)), None),
        (ended((None, None), ("killed", 5)), 1),
        (ended(("killed", 9085), ("killed", 9000)), 1),  # the launcher ends the others when one has ended
        (ended(("killed", 9008), ("killed", 9000)), None),  # all at once, from outside
        (ended(("killed", 9008), ("crash", 9000)), 1),
        (ended(("crash", 9008), ("crash", 9000)), None),
        (ended(("crash", 9008), ("killed", 9000)), None),  # the survivor's error is not the cause
        (ended(("crash", 9800), ("crash", 9000)), 1),
        (ended(("killed", 9085), ("killed", 9000), hosts="ab"), None),  # two clocks
        (ended(("killed", 9085), ("killed", 9000), hosts="ab", boot="4be2"), 1),  # two containers, one clock
        (ended(("killed", 19_000), ("killed", 9000), hosts="ab"), 1),
        (ended(("killed", None), ("killed", 9000)), None),
    ],
)
def test_the_first_to_end_is_named_where_that_is_clear(infos: dict[int, RankInfo], first: int | None) -> None:
    assert endings(infos).first == first


def test_the_victims_of_the_launcher_are_not_called_like_the_one_that_died() -> None:
    first_end = endings(ended(("killed", 9100), ("killed", 9000), ("crash", 9090)))
    assert first_end.failure() == "; ".join(first_end.sentences())
    assert first_end.sentences() == [
        "rank 1 killed before the end of training, the first to end",
        "rank 2 crashed after rank 1",
        "rank 0 killed after rank 1",
    ]


def test_where_nobody_was_clearly_first_nobody_is_said_to_be() -> None:
    together = endings(ended(("killed", 9001), ("killed", 9000)))
    assert together.sentences() == ["ranks 0, 1 killed before the end of training"]
    assert together.failure() is None

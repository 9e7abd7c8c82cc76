"""Sentences that name ranks and hosts at fault, and what is known of their cost."""

from __future__ import annotations

import pytest

from rankscope.analysis.result.analysis import Verdict
from rankscope.analysis.result.text import excluded_text, joined, judged_text, saves_text, sentences, units_text

HOSTS = {rank: f"node{rank // 8:04}" for rank in range(64)}


@pytest.mark.parametrize(
    ("ranks", "whole", "text"),
    [
        ([*range(8)], ["node0000"], "host node0000 (all 8 of its ranks)"),
        ([*range(25, 32)], ["node0003"], "host node0003 (ranks 25 to 31, 7 of its 8 ranks)"),
        ([*range(16)], ["node0000", "node0001"], "hosts node0000 and node0001 (all 16 of their ranks)"),
        ([*range(15)], ["node0000", "node0001"], "hosts node0000 and node0001 (15 of their 16 ranks)"),
        ([40, *range(8)], ["node0000"], "host node0000 (all 8 of its ranks) and rank 40"),
        ([5], [], "rank 5"),
        ([5, 3], [], "ranks 3, 5"),
        ([], ["node0000"], "host node0000"),
        (
            [*range(48)],
            [*dict.fromkeys(HOSTS.values())][:6],
            "hosts node0000, node0001, node0002, node0003 and 2 more (all 48 of their ranks)",
        ),
    ],
)  # fmt: skip
def test_hosts_are_named_with_their_slow_ranks(ranks: list[int], whole: list[str], text: str) -> None:
    assert units_text(ranks, HOSTS, whole) == text


def test_a_host_with_one_rank_and_a_rank_without_a_host() -> None:
    assert units_text([3], {0: "a", 3: "b"}, ["b"]) == "host b (rank 3)"
    assert units_text([3, 9], {0: "a", 3: "b"}, ["b"]) == "host b (rank 3) and rank 9"


def test_names_are_joined_as_a_phrase() -> None:
    assert [joined("abcdef"[:count], 3) for count in (1, 2, 3, 5)] == ["a", "a and b", "a, b and c", "a, b, c and 2 more"]


def test_the_interval_names_what_is_healed_and_is_rounded_outwards() -> None:
    verdict = Verdict(kind="straggler", rank=3, ranks=[3], saves=(0.194, 0.2551), summary="")
    assert saves_text(verdict) == "healing it saves 19% to 26% of the typical step"
    several = Verdict(kind="straggler", rank=3, ranks=[3, 5], saves=(0.2, 0.3), summary="")
    assert "healing them saves" in saves_text(several)
    host = Verdict(kind="straggler", rank=3, ranks=[3, 5], hosts=["a"], saves=(0.2, 0.3), summary="")
    assert "healing it saves" in saves_text(host)
    assert saves_text(Verdict(kind="balanced", summary="")) == ""


def test_what_is_excluded_and_what_was_judged() -> None:
    verdict = Verdict(kind="balanced", costs_at_most=0.0251, judged_ranks=60, judged_steps=1000, summary="")
    assert "more than 2.6% of" in excluded_text(verdict)
    assert judged_text(verdict, 64) == "1,000 steps of 60 of 64 ranks"
    assert judged_text(verdict, 60) == judged_text(verdict, None) == "1,000 steps of 60 ranks"
    assert excluded_text(Verdict(kind="hang", summary="")) == judged_text(Verdict(kind="hang", summary=""), 8) == ""


def test_a_question_among_sentences_has_one_mark() -> None:
    assert sentences(["Load ahead", "What takes longer there?", "Compare"]) == "Load ahead. What takes longer there? Compare"

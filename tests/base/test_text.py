"""Text for people: bounds of shares, and ranges of ranks."""

from __future__ import annotations

import pytest

from rankscope.base.text import ranges_text, sentence_case, share_bound


@pytest.mark.parametrize(
    ("share", "lower", "upper"),
    [
        (0.19, "19%", "19%"),
        (0.256, "25%", "26%"),
        (0.0301, "3%", "3.1%"),
        (0.03, "3%", "3%"),
        (0.0, "0%", "0%"),
        (1.0, "100%", "100%"),
    ],
)
def test_bounds_of_a_share_are_rounded_outwards(share: float, lower: str, upper: str) -> None:
    assert (share_bound(share, upper=False), share_bound(share, upper=True)) == (lower, upper)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([3, 4], "3, 4"),
        ([25, 26, 27, 28, 29, 30, 31], "25 to 31"),
        ([0, 1, *range(8, 16), 40], "0, 1, 8 to 15, 40"),
        ([*range(0, 40, 2)], "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
        ([*range(0, 16, 2), *range(20, 28)], "0, 2, 4, 6, 8, 10, 12, 14 and 8 more"),
    ],
)
def test_rank_numbers_are_abbreviated_to_ranges(numbers: list[int], text: str) -> None:
    assert ranges_text(numbers) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rank 0 killed", "Rank 0 killed"),
        ("own: data loading", "Own: data loading"),
        ("what-if: simulating combinations", "What-if: simulating combinations"),
        ("it ended. later", "It ended. later"),
        ("rank-0.json: damaged", "rank-0.json: damaged"),
        ("torch.profiler ran", "torch.profiler ran"),
        ("p50 of the steps", "p50 of the steps"),
        ("GPUs", "GPUs"),
        ("", ""),
    ],
)
def test_sentences_begin_with_a_capital_letter_names_do_not(text: str, expected: str) -> None:
    assert sentence_case(text) == expected

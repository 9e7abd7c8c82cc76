"""Problems that last: what is reported when."""

from __future__ import annotations

import pytest

from rankscope.base.problems import ProblemLog


@pytest.mark.parametrize(
    ("each_reason", "reasons", "lines"),
    [
        (True, ["full", "full", "gone", None, None, "gone"], ["full", "gone", "over", "gone"]),
        (False, ["full", "gone", None, "gone", "full"], ["full", "over", "gone"]),
        (True, [None], []),
    ],
)
def test_a_problem_is_reported_once_and_again_after_its_end(
    each_reason: bool, reasons: list[str | None], lines: list[str]
) -> None:
    reported: list[str] = []
    problems = ProblemLog(reported.append, lambda: reported.append("over"), each_reason=each_reason)
    for reason in reasons:
        problems.report(reason)
        assert problems.reason == reason
    assert reported == lines


def test_subjects_are_apart_and_a_reason_that_they_share_is_reported_once() -> None:
    reported: list[str] = []
    problems = ProblemLog(reported.append)
    for about in ("a", "b"):
        problems.report("the disk is full", about)
    problems.report("no such host", "c")
    problems.report("the disk is full", "a")
    assert (reported, len(problems), "b" in problems, "d" in problems) == (["the disk is full", "no such host"], 3, True, False)
    for about in ("a", "b", "d"):
        problems.report(None, about)
    problems.report("the disk is full", "b")
    assert reported[2:] == ["the disk is full"]
    assert problems.reason == "no such host"


def test_all_present_problems_are_set_together() -> None:
    reported: list[str] = []
    problems = ProblemLog(reported.append, lambda: reported.append("over"))
    for present in ({"a": "empty", "b": "damaged"}, {"b": "damaged"}, {"a": "empty", "b": "empty"}):
        problems.replace(present)
    assert (reported, "a" in problems) == (["empty", "damaged", "over", "empty"], True)

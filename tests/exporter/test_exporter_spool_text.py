"""The spool's reader of the text format agrees with the reference implementation, where that is as strict."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rankscope.exporter.spool.text import TextError, metrics

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
VALUES = st.floats() | st.integers(min_value=-(10**18), max_value=10**18)
LABELS = st.dictionaries(NAMES.filter(lambda name: not name.startswith("__")), TEXTS, max_size=4)
FAMILIES = st.dictionaries(
    NAMES, st.tuples(TEXTS, st.lists(st.tuples(LABELS, VALUES), min_size=1, max_size=4, unique_by=repr)), max_size=4
)


class Registry:
    def __init__(self, families: list[Family]) -> None:
        self.families = families

    def collect(self) -> list[Family]:
        return self.families


@given(content=FAMILIES)
def test_what_the_reference_writes_and_reads_is_read_the_same(
    content: dict[str, tuple[str, list[tuple[dict[str, str], float]]]],
) -> None:
    families = []
    for name, (text, samples) in content.items():
        family = Family(f"rank_{name}", text, "gauge")
        for labels, value in samples:
            family.add_sample(f"rank_{name}", labels, value)
        families.append(family)
    written = generate_latest(Registry(families)).decode()

    ours = [(metric.name, metric.type, [(dict(one.labels), one.value) for one in metric.samples]) for metric in metrics(written)]
    theirs = [
        (family.name, family.type, [(one.labels, one.value) for one in family.samples])
        for family in text_string_to_metric_families(written)
    ]

    assert repr(ours) == repr(
        [(name, kind, [(dict(sorted(a.items())), float(v)) for a, v in some]) for name, kind, some in theirs]
    )
    blanks = " \t"
    assert [one.help.strip(blanks) for one in metrics(written)] == [one.documentation.strip(blanks) for one in families]


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("rank_x 1", {}, 1.0),
        ("rank_x{} 1", {}, 1.0),
        ('rank_x\t{a="1"} 2', None, None),
        ('rank_x{a="1",} 2e3', {"a": "1"}, 2000.0),
        ('rank_x{ a = "1" , b="2" }\t-.5  ', {"a": "1", "b": "2"}, -0.5),
        ('rank_x{a="} 1"} 2', {"a": "} 1"}, 2.0),
        (r'rank_x{a="\\n\n\""} +Inf', {"a": '\\n\n"'}, math.inf),
        ('rank_x{a="1"} -inf', {"a": "1"}, -math.inf),
        ('rank_x{a="1" b="2"} 1', None, None),
        ('rank_x{a="1",a="2"} 1', None, None),
        ("rank_x{a='1'} 1", None, None),
        (r'rank_x{a="\x"} 1', None, None),
        ('rank_x{a="1} 1', None, None),
        ('rank_x{"a"="1"} 1', None, None),
        ('{"rank_x",a="1"} 1', None, None),
        ("rank_x 1e999", None, None),
        ("rank_x 0x10", None, None),
        ("rank_x 1_000", None, None),
        ("rank_x infinity", None, None),
        ("rank_x", None, None),
        ("1rank 1", None, None),
        ("rank_x 1 2 3", None, None),
    ],
)  # fmt: skip
def test_one_line(line: str, labels: dict[str, str] | None, value: float | None) -> None:
    if labels is None:
        with pytest.raises(TextError):
            metrics(line)
        return
    ((sample,),) = [metric.samples for metric in metrics(line)]
    assert (dict(sample.labels), sample.value, sample.timed) == (labels, value, False)


def test_an_explicit_time_is_noticed_and_comments_are_none_of_our_business() -> None:
    (metric,) = metrics("# a comment\n#\n\n  \nrank_x 1 1700000000000\n# EOF\n")
    assert [sample.timed for sample in metric.samples] == [True]


@pytest.mark.parametrize(
    "text", ["# TYPE rank_x\n", "# TYPE rank_x thing\n", "# HELP\n", "# TYPE rank_x gauge\n# TYPE rank_x counter\n"]
)
def test_a_type_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TextError):
        metrics(text)


@given(text=st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(TextError):
        assert all(metric.name for metric in metrics(text))

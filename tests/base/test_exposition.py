"""Pages in both formats parse back to the families they were made from, for arbitrary texts."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from rankscope.base.exposition import (
    Family,
    Point,
    PointSource,
    exposition_text,
    has_unique_openmetrics_names,
    number,
    openmetrics,
    prefers_openmetrics,
)

# Every character except surrogates, with troublesome ones more often.
TEXTS = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('\\"\n\t\r\x00\x1b\x7f\x85\u2028\u202e{}=,# 👩‍🚀')),
    max_size=30,
)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,10}[a-z]", fullmatch=True)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
LABELS = st.dictionaries(NAMES, TEXTS, max_size=4).map(lambda labels: tuple(labels.items()))
VALUES = st.floats() | st.integers(-(2**53), 2**53).map(float)
COUNTS = st.floats(min_value=0, allow_nan=False)


@st.composite
def families(draw: st.DrawFn) -> list[Family]:
    collected = []
    for name in draw(st.lists(NAMES.map(lambda name: f"m_{name}_x"), unique=True, max_size=3)):
        kind = draw(st.sampled_from(["gauge", "counter"]))
        series = draw(st.dictionaries(LABELS, VALUES if kind == "gauge" else COUNTS, min_size=1, max_size=4))
        # Parsers ignore the order of labels.
        unique = {tuple(sorted(labels)): (labels, value) for labels, value in series.items()}
        full = f"{name}_total" if kind == "counter" else name
        collected.append(Family(full, kind, draw(TEXTS), points=[Point(*item) for item in unique.values()]))  # type: ignore[arg-type]
    return collected


def _expected(input_families: list[Family]) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    return {family.name: {frozenset(point.labels): point.value for point in family.points} for family in input_families}


def _assert_same(read: Any, input_families: list[Family]) -> None:
    expected = _expected(input_families)
    seen: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in read:
        for sample in family.samples:
            seen.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    assert seen.keys() == expected.keys()
    for name, series in expected.items():
        assert seen[name].keys() == series.keys()
        for labels, value in series.items():
            assert seen[name][labels] == value or (math.isnan(value) and math.isnan(seen[name][labels]))


@given(families())
@example([Family("m_x", "gauge", 'a \\ "quoted"\nhelp', points=[Point((("a", 'C:\\new\n"x"'), ("b", "\\")), 1.0)])])
def test_both_formats_parse_back_to_the_same_families(input_families: list[Family]) -> None:
    for _ in range(2):  # the second time with the labels cached in the points
        as_openmetrics = openmetrics(input_families).decode()
        _assert_same(parse_text(exposition_text(input_families).decode()), input_families)
        _assert_same(parse_openmetrics(as_openmetrics), input_families)  # type: ignore[no-untyped-call]
    documented = {parse_openmetric.name: parse_openmetric.documentation for parse_openmetric in parse_openmetrics(as_openmetrics)}  # type: ignore[no-untyped-call]
    for family in input_families:
        # The reference parser strips white space from the ends of a line.
        assert documented[family.name.removesuffix("_total")].strip() == family.help.strip()


@given(VALUES)
def test_numbers_are_exact_and_integers_have_no_fraction(value: float) -> None:
    written = number(value)

    assert float(written) == value or math.isnan(value)
    if abs(value) < 1e15 and value == int(value):
        assert re.fullmatch(r"-?\d+", written)


def test_types_units_and_end_marker_follow_each_format() -> None:
    input_families = [
        Family("gpu_energy_joules_total", "counter", "Energy.", "joules", [Point((("uuid", "a"),), 1e21)]),
        Family("gpu_io_bytes_per_second", "gauge", "Rate.", "bytes", [Point((), math.inf)]),
    ]

    assert exposition_text(input_families).decode() == (
        "# HELP gpu_energy_joules_total Energy.\n# TYPE gpu_energy_joules_total counter\n"
        'gpu_energy_joules_total{uuid="a"} 1e+21\n'
        "# HELP gpu_io_bytes_per_second Rate.\n# TYPE gpu_io_bytes_per_second gauge\ngpu_io_bytes_per_second +Inf\n"
    )
    # OpenMetrics has a UNIT only if the name ends in it
    assert openmetrics(input_families).decode() == (
        "# HELP gpu_energy_joules Energy.\n# TYPE gpu_energy_joules counter\n# UNIT gpu_energy_joules joules\n"
        'gpu_energy_joules_total{uuid="a"} 1e+21\n'
        "# HELP gpu_io_bytes_per_second Rate.\n# TYPE gpu_io_bytes_per_second gauge\ngpu_io_bytes_per_second +Inf\n"
        "# EOF\n"
    )


def test_label_value_with_invalid_unicode_is_replaced() -> None:
    body = exposition_text([Family("m", "gauge", "", points=[Point((("file", "a\udcffb"),), 1)])])

    assert 'm{file="a?b"} 1' in body.decode()


_SERIES = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 2)), max_size=6)


@given(st.lists(_SERIES, max_size=6))
@example([[("m", "a", 1)], [("m", "a", 2)]])
def test_cached_points_render_the_same_page_as_new_points(pages: list[list[tuple[str, str, int]]]) -> None:
    def point_of(value: tuple[str, str, int]) -> Point:
        metric, label, number_ = value
        return Point((("l", label),), number_, metric)

    source = PointSource(point_of)
    for values in pages:
        once = {(metric, label): value for metric, label, value in values}
        expected = [Point((("l", label),), value, metric) for (metric, label), value in once.items()]

        points = source.points(values)
        assert exposition_text([Family("m", "gauge", "", points=points)]) == exposition_text(
            [Family("m", "gauge", "", points=expected)]
        )
        if len(once) == len(values):  # unchanged points are not rendered again
            assert all(new is old and new.line for new, old in zip(source.points(values), points, strict=True))


def test_gauge_and_counter_of_one_name_conflict_in_openmetrics() -> None:
    both = [Family("x_total", "counter", ""), Family("x", "gauge", "")]

    assert not has_unique_openmetrics_names(both)
    assert has_unique_openmetrics_names(both[:1])


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8, text/plain", True),
        ("text/plain;q=0.9,application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("Application/OpenMetrics-Text;Version=1.0.0;Q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;q=nonsense;version", False),
        (PROMETHEUS_3, True),
    ],
)
def test_accept_header_selects_the_format(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


@given(st.text(max_size=80))
def test_any_accept_header_is_handled(accept: str) -> None:
    assert prefers_openmetrics(accept) in (True, False)


def test_promtool_accepts_hostile_label_values_and_help(require_program: Callable[[str], str]) -> None:
    hostile = '\\"\n\\n}{ \u202eevil 👩‍🚀\x1b[31m'
    page = exposition_text([Family("m_info", "gauge", hostile, points=[Point((("a", hostile), ("b", "")), 1)])])

    checked = subprocess.run([require_program("promtool"), "check", "metrics"], input=page, capture_output=True, check=False)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

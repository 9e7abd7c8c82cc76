"""Selections survive in the page's address."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankscope.analysis.evidence.step_table.steps import METRICS
from rankscope.dashboards.model.state import DEFAULT_METRIC, PageState, run_of, run_path
from rankscope.runs.links import overview_url

ranges = st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)).map(lambda pair: (min(pair), max(pair)))
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
states = st.builds(
    PageState,
    rank=st.none() | st.integers(0, 9_999_999),
    metric=st.sampled_from(sorted(METRICS)),
    steps=st.none() | ranges,
    sort=st.sampled_from(["rank", "host", "imposed"]),
    rows=st.sampled_from(["rank", "host"]),
    group=st.none() | words,
    window=st.none() | st.integers(0, 10**12),
    span=st.none() | ranges,
    without=st.lists(words.filter(lambda word: "," not in word), max_size=5, unique=True).map(tuple),
    gpu=st.none() | words,
    runs=st.lists(words, unique=True, max_size=5).map(tuple),
    at=st.none() | st.integers(0, 10**12),
    by=st.sampled_from(["host", "rank"]),
    since=st.none() | st.integers(1, 9999),
    q=st.none() | words,
    picked=st.none() | words,
)


@given(states)
def test_page_state_round_trips_through_the_url(state: PageState) -> None:
    assert PageState.parse(state.search) == state


@given(st.text() | st.integers() | st.text().map(lambda text: f"?runs={text}&at={text}&sort={text}&since={text}"))
@example("?rank=²&metric=own_us")
@example("?rank=" + "9" * 5000)
@example("&".join(["rank=1"] * 100))
def test_any_url_query_parses_to_a_writable_state(search: Any) -> None:
    state = PageState.parse(search)
    assert PageState.parse(state.search) == state


def test_default_state_has_an_empty_query() -> None:
    assert PageState().search == ""
    assert PageState.parse(None) == PageState.parse("") == PageState()


@pytest.mark.parametrize(
    "search",
    ["?rank=-1", "?rank=two", "?rank=", "?metric=<script>", "?metric=", "?rows=stage", "?steps=5-3", "?steps=5", "?steps=-1-3"],
)
def test_invalid_query_values_fall_back_to_defaults(search: str) -> None:
    assert PageState.parse(search) == PageState(rank=None, metric=DEFAULT_METRIC)


@given(st.text(min_size=1), st.none() | st.integers(0, 10_000))
def test_alert_links_lead_to_the_run_and_rank(run_id: str, rank: int | None) -> None:
    url = urlsplit(overview_url("http://host:1", run_id, rank=rank))
    assert url.path == run_path(run_id)
    assert run_of(url.path) == (run_id, "")
    assert run_of(run_path(run_id, "ranks")) == (run_id, "ranks")
    assert PageState.parse(url.query) == PageState(rank=rank)


@pytest.mark.parametrize("path", [None, "", "/", "/run", "/run/", "/runs/x", "/run/a/b/c", "/x"])
def test_unrelated_paths_are_not_parsed_as_a_run(path: str | None) -> None:
    assert run_of(path) is None

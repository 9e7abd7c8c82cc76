"""``rankscope report``: the pages of a run as one file."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.blocks import figure_names, page_text, run_of
from tests.dashboards.report.report_file import HOSTILE, MADE_NS, Parsed, made, unpacked

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.live.components import component
from rankscope.dashboards.model import page
from rankscope.dashboards.model.columns import number_column, text_column
from rankscope.dashboards.model.drawn import DrawnFigure, FigureData
from rankscope.dashboards.model.line import Badge, PageLink, Span
from rankscope.dashboards.model.page import Block
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.model.view import Help, View
from rankscope.dashboards.registry import VIEWS
from rankscope.dashboards.report import document
from rankscope.dashboards.report.document import MOST_CSV_ROWS, MOST_ROWS, Report, differences, report
from rankscope.dashboards.store.disk import DiskRuns


@pytest.fixture(scope="module")
def kept() -> dict[str, Report]:
    """Cache of the fixture ``plain``."""
    return {}


@pytest.fixture
def plain(kept: dict[str, Report], memory_runs: Any) -> Report:
    """Report of the unchanged straggler run, made once."""
    if not kept:
        kept["plain"] = made(memory_runs)
    return kept["plain"]


def one_view(monkeypatch: pytest.MonkeyPatch, *views: View) -> None:
    """Replace the registry by one with only these views."""
    monkeypatch.setattr(document, "VIEWS", views)


def view_with(blocks: Sequence[Block]) -> View:
    return View(slug="made-up", label="Made up", help=Help("a", "b", "c"), blocks=lambda _run, _state: blocks)


@pytest.fixture
def shown(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Parsed]:
    """Function ``shown(block, …)`` that returns the report of one view with these blocks."""

    def show(*blocks: Block) -> Parsed:
        one_view(monkeypatch, view_with(blocks))
        completed = made(memory_runs)
        assert completed.faults == []
        return Parsed(completed.file.decode())

    return show


# Blocks as HTML


def no_figure(_: Any) -> DrawnFigure:
    return DrawnFigure(go.Figure(), FigureData(("a",), [(HOSTILE,)]), HOSTILE)


EVERY_KIND: tuple[Block, ...] = (
    page.Text([HOSTILE, Span(HOSTILE, "code", HOSTILE), Badge(HOSTILE, "bad", HOSTILE)], "help", "note", live=True),
    page.Heading(HOSTILE, 2, name="heading"),
    page.Items([HOSTILE, [page.Text(HOSTILE)]], "warnings", ordered=True),
    page.Facts([page.Fact(HOSTILE, HOSTILE, HOSTILE, 0.38, HOSTILE), page.Fact("a", "not known")], "plain"),
    page.Terms([(HOSTILE, HOSTILE, True)]),
    page.Inline([PageLink(HOSTILE, "/run/run-1/ranks"), PageLink(HOSTILE, "javascript:alert(1)", elsewhere=True)]),
    page.AdviceItem(f"{HOSTILE}: rankscope analyze {HOSTILE} --format json"),
    page.Details(HOSTILE, [page.Text(HOSTILE)]),
    page.Group([page.Text(HOSTILE)], "card", "section", "alert", "group", "heading"),
    page.Rows([(HOSTILE, "head"), ("b", "number")], [(HOSTILE, HOSTILE)]),
    page.Legend([("compute", HOSTILE)]),
    page.Markdown(HOSTILE),
    page.Request([(HOSTILE, "capture", "/api")], ("steps", "Steps", 3, 9)),
    page.Button("button", HOSTILE),
    page.RedrawMark("again"),
    page.FigureBlock(name="one", label=HOSTILE, draw=no_figure, long=True),
    page.Table(
        name="two",
        columns=[text_column("a", HOSTILE, tooltip=HOSTILE), number_column("b", "b", "b")],
        rows=lambda: [{"id": "1", "a": HOSTILE, "b": 1.0}],
        file_name="two",
    ),
    page.SearchTable(name="three", columns=[], rows=list, file_name="three", q=None),
    page.Part("part", lambda: [page.Text(HOSTILE)]),
    page.Choice(field="metric", label="Metric", value=None, options=[{"value": "a", "label": HOSTILE}]),
    page.Choice(field="without", label="Without", value=[], options=[{"group": "a", "items": []}], many=True),
    page.Entry(field="rank", label="Rank", value=1, decimals=0),
    page.Section(name="section", title=HOSTILE, help=HOSTILE, blocks=[page.Text(HOSTILE)], tools=[]),
)
"""One block of every kind, with hostile text wherever it may have text."""


KINDS = {kind for kind in vars(page).values() if isinstance(kind, type) and issubclass(kind, Block)} - {Block, page.Control}


def test_both_renderers_support_every_block_kind_and_escape_text(shown: Callable[..., Parsed]) -> None:
    assert {type(block) for block in EVERY_KIND} == KINDS
    assert len([component(block) for block in EVERY_KIND]) == len(EVERY_KIND)
    page = shown(*EVERY_KIND)
    assert page.text.count(HOSTILE) >= 25
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_is_escaped_in_elements_and_attributes(text: str) -> None:
    template = document._environment().from_string("{{ text }}<p{{ {'title': text}|xmlattr }}>")
    page = Parsed(template.render(text=text))
    assert page.text == text
    assert page.tags == [("p", {"title": text})]


def test_report_omits_blocks_that_need_a_server(shown: Callable[..., Parsed]) -> None:
    select = page.Choice(field="metric", label="Metric of it", value=None, options=[])
    capture = page.Request([("Capture it", "capture", "/api")])
    result = shown(page.Section(name="s", title="t", help="h", blocks=[capture, page.Text("kept")], tools=[select]))
    assert "kept" in result.text
    assert "Capture it" not in result.text
    assert "Metric of it" not in result.text


def test_report_has_no_instructions_to_click_or_drag(plain: Report, memory_runs: Any) -> None:
    orders = re.compile(r"(?i)\b(click (a|another|bars)|drag (over|to)|double-click|choose it|pick a rank above|press )")
    written = re.sub(r"(?s)<script.*?</script>", "", plain.file.decode())
    assert orders.findall(written) == []
    assert "Click a cell" in page_text(memory_runs, "/run/run-1/ranks")


def test_links_out_of_the_report_become_plain_text(shown: Callable[..., Parsed], plain: Report) -> None:
    assert '<a href="#view-ranks">' in plain.file.decode().replace(' class="view-link"', "")
    elsewhere = ("/run/other", "http://elsewhere", "javascript:alert(1)", "//elsewhere", "data:text/html,x")
    result = shown(*(page.Text(PageLink("to it", address)) for address in elsewhere))
    assert result.text.count("to it") == len(elsewhere)
    assert {href for tag, attributes in result.tags if tag == "a" and (href := attributes.get("href"))} == {
        "#page",
        "#view-made-up",
    }


# Tables


def test_report_table_formats_numbers_and_shows_dashes_for_unknown(shown: Callable[..., Parsed]) -> None:
    columns = [text_column("name", HOSTILE), number_column("ms", "Time ms", "t", unit_field="unit")]
    rows: list[dict[str, Any]] = [{"name": HOSTILE, "ms": 1234.567, "unit": "USD"}, {"name": None, "ms": None}]
    result = shown(page.Table(name="one", columns=columns, rows=lambda: rows, file_name="one"))
    assert result.texts("td")[:3] == [HOSTILE, "1,234.57 USD", "-"]


def test_truncated_table_shows_its_total_number_of_rows(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a table with more rows than the limit of a file, and cells that a spreadsheet would read as formulas
    rows = [{"name": "=HYPERLINK(1)", "value": -number} for number in range(MOST_ROWS + 5)]
    columns = [text_column("name", "Name"), number_column("value", "Value", "v")]
    one_view(monkeypatch, view_with([page.Table(name="long", columns=columns, rows=lambda: rows, file_name="long")]))
    # when
    text = made(memory_runs).file.decode()
    # then
    assert text.count("<td") == 2 * MOST_ROWS
    assert f"The first {MOST_ROWS:,} of {MOST_ROWS + 5:,} rows" in text
    saved = list(csv.reader(io.StringIO(json.loads(unpacked(text, "figures"))["long"]["csv"])))
    assert saved[:3] == [["Name", "Value"], ["'=HYPERLINK(1)", "0"], ["'=HYPERLINK(1)", "-1"]]


# Two colour schemes


def changed(document: Any, changes: list[tuple[tuple[str | int, ...], Any]]) -> Any:
    """Apply changes to a figure as page.js does."""
    copy = json.loads(json.dumps(document))
    for path, value in changes:
        if not path:
            copy = value
            continue
        at = copy
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
    return copy


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), inner),
    max_leaves=12,
)


@given(light=_json, other=_json)
def test_figure_differences_applied_to_light_give_the_dark_figure(light: Any, other: Any) -> None:
    assert changed(light, differences(light, other)) == other
    assert differences(light, light) == []


def test_dark_scheme_differences_are_only_colours(plain: Report) -> None:
    figures = json.loads(unpacked(plain.file.decode(), "figures"))
    for name in ("step-heatmap", "imposed-bars", "breakdown-bars"):
        paths = [".".join(map(str, path)) for path, _ in figures[name]["dark"]]
        assert paths
        assert [path for path in paths if "color" not in path.lower()] == []


# The file


def test_report_has_every_view_with_text_figures_and_help(plain: Report, memory_runs: Any) -> None:
    page = Parsed(plain.file.decode())
    assert plain.faults == []
    assert "Rank 2 on host node-1 makes the other 3 ranks wait" in page.text
    assert "100%" in page.text
    for view in VIEWS:
        assert f"About {view.label}" in page.text
        assert view.help.formula in page.text
    placed: set[str] = set()
    for view in VIEWS:
        with suppress(RankscopeError):  # this run has no what-if
            placed |= set(figure_names(view, run_of(memory_runs), PageState()))
    assert {"step-heatmap", "breakdown-bars", "imposed-bars"} <= placed
    assert {attributes["data-figure"] for _, attributes in page.tags if attributes.get("class") == "plot"} == placed
    # the captions of figures are present without scripts
    assert "Rank 2 made the others wait most" in page.text


def test_identifiers_are_unique_and_every_link_has_a_target(plain: Report) -> None:
    page = Parsed(plain.file.decode())
    identifiers = page.values("id")
    assert len(set(identifiers)) == len(identifiers)
    targets = [href for tag, attributes in page.tags if tag == "a" and (href := attributes.get("href")) is not None]
    assert len(targets) > len(VIEWS)
    assert {target.removeprefix("#") for target in targets} <= set(identifiers)
    assert {name for value in page.values("aria-labelledby") for name in value.split()} <= set(identifiers)


def test_identifiers_shared_by_views_are_prefixed(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    same = view_with([page.Group([page.Heading("x", 2, name="t")], "", "section", name="s", labelled_by="t")])
    one_view(monkeypatch, same, replace(same, slug="other"))
    result = Parsed(made(memory_runs).file.decode())
    assert [attributes for tag, attributes in result.tags if tag == "section" and str(attributes.get("id")).endswith("s")] == [
        {"id": "s", "aria-labelledby": "t"},
        {"id": "view-other-s", "aria-labelledby": "view-other-t"},
    ]


def test_content_policy_allows_only_the_scripts_of_the_report(plain: Report) -> None:
    page = plain.file.decode()
    result = Parsed(page)
    policies = [
        attributes["content"] for _, attributes in result.tags if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(policies) == len(scripts) == 1
    hashes = [_hash(scripts[0]), _hash(unpacked(page, "plotly"))]
    assert policies[0] == (
        f"default-src 'none'; script-src '{hashes[0]}' '{hashes[1]}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    assert [
        tag for tag, attributes in result.tags if "src" in attributes or any(name.startswith("on") for name in attributes)
    ] == []
    assert {"iframe", "object", "embed", "form", "img", "base", "svg"}.isdisjoint({tag for tag, _ in result.tags})


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def test_report_is_deterministic_except_for_its_time(plain: Report, memory_runs: Any) -> None:
    run = run_of(memory_runs)
    later = report(run, PageState(), made_unix_ns=MADE_NS + 1_000_000_000, on_progress=lambda _: None).file
    assert later != plain.file
    assert later.replace(b"11:06:41 UTC", b"11:06:40 UTC") == plain.file


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("live", "The run had not ended: everything is as of 2026-11-18 11:06:40 UTC"),
        ("silent", "The run had not ended: everything is as of 2026-11-18 11:06:40 UTC"),
        ("finished", "The run was last written to 2026-11-18 11:06:40 UTC."),
    ],
)
def test_report_states_the_time_of_its_data(memory_runs: Any, monkeypatch: pytest.MonkeyPatch, status: Any, says: str) -> None:
    one_view(monkeypatch, view_with([]))
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], status=status, last_write_unix_ns=MADE_NS)
    assert says in Parsed(made(memory_runs).file.decode()).text


def test_report_shows_simulation_notice_and_selection(plain: Report, memory_runs: Any) -> None:
    before = Parsed(plain.file.decode()).text
    memory_runs.summaries["run-1"] = replace(memory_runs.summaries["run-1"], simulated=True)
    text = Parsed(made(memory_runs, PageState(rank=1, steps=(10, 20), metric="wall_us")).file.decode()).text
    assert "Selected: rank 1; metric wall_us; steps 10-20." in text
    assert "SIMULATED GPUS" in text
    assert "SIMULATED GPUS" not in before
    assert "Selected:" not in before


def test_failing_figure_does_not_affect_the_rest_of_the_report(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> DrawnFigure:
        raise RankscopeError("no window was captured: rankscope capture asks for one")

    def broken(*_: Any) -> DrawnFigure:
        raise ZeroDivisionError("by zero")

    def fine(*_: Any) -> DrawnFigure:
        return DrawnFigure(go.Figure(), FigureData(("a",), [(row,) for row in range(MOST_CSV_ROWS + 1)]), "All is well")

    makers = {"one": missing, "two": broken, "three": fine}
    one_view(monkeypatch, view_with([page.FigureBlock(name=name, label=name, draw=make) for name, make in makers.items()]))
    completed = made(memory_runs)
    text = Parsed(completed.file.decode()).text
    # missing data is explained in its place, and is no fault
    assert "no window was captured: rankscope capture asks for one" in text
    assert "This could not be drawn: an error in rankscope" in text
    assert "All is well" in text
    assert completed.faults == ["Made up, figure two: ZeroDivisionError: by zero"]
    # and truncated tables are marked as such
    assert f'title="the first {MOST_CSV_ROWS:,} of {MOST_CSV_ROWS + 1:,} rows"' in completed.file.decode()


def test_failing_view_is_reported_and_does_not_fail_the_report(memory_runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> list[Block]:
        raise KeyError("x")

    one_view(monkeypatch, replace(view_with([]), blocks=broken))
    completed = made(memory_runs)
    assert "an error in rankscope" in Parsed(completed.file.decode()).text
    assert completed.faults == ["Made up: KeyError: 'x'"]


def test_live_run_is_read_once_for_a_report(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    # given a live run that has been read once
    folder = write_run(tmp_path / "run", finished=False)
    source = DiskRuns(folder, look_again_s=math.inf)
    first = source.part("run-1", "analysis")
    # when the run grows, the report's state stays the same
    (folder / "run.json").touch()
    assert source.part("run-1", "analysis") is first
    assert DiskRuns(folder).summary("run-1").revision != source.summary("run-1").revision

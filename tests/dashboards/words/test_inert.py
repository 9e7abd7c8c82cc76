"""Hostile names are inert in text, in figures and in saved tables."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.blocks import page_text

from rankscope.analysis.result.analysis import Analysis
from rankscope.base.errors import InputError
from rankscope.dashboards.charts.frame import note
from rankscope.dashboards.charts.palette import palette
from rankscope.dashboards.model.drawn import FigureData, csv_of
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.words.inert import MAX_NAME, MAX_TEXT, inert_record, plotly_text, safe_cell, sanitize
from rankscope.runs.paths import rank_dir, run_file

HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.\u200bexe\n\x1b[31m" + "A" * 10_000
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
ZERO_WIDTH = "\u200b\u200c\u200d\u2060\ufeff"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node-1", "node-1"),
        ("Knoten Übergröße 節点", "Knoten Übergröße 節点"),
        ("a\u202eb", r"a\u202eb"),
        ("a\nb\tc\r\0", r"a\nb\tc\r\x00"),
        ("a\u200bb", r"a\u200bb"),
        ("\udce9", r"\udce9"),
        ("x" * 201, "x" * 199 + "…"),
        ("", ""),
    ],
)
def test_invisible_characters_are_escaped(text: str, expected: str) -> None:
    assert sanitize(text) == expected


@given(st.text() | st.text(alphabet=BIDI + ZERO_WIDTH + "\r\n\t<>&%{}"))
def test_sanitized_text_is_one_short_line_and_idempotent(text: str) -> None:
    once = sanitize(text)
    assert once.isprintable()
    assert len(once) <= MAX_NAME
    assert sanitize(once) == once
    assert not set(once) & set(BIDI + ZERO_WIDTH)


@given(st.text() | st.text(alphabet="<>&%{}bra ref=/\"'"))
def test_plotly_text_has_no_markup_and_no_template(text: str) -> None:
    drawn = plotly_text(text)
    assert "<" not in drawn
    assert ">" not in drawn
    assert "%{" not in drawn
    assert unescape(drawn).strip("\u2068\u2069") == sanitize(text)


def test_right_to_left_names_are_isolated() -> None:
    assert plotly_text("\u05d0\u05d1") == "\u2068\u05d0\u05d1\u2069"
    assert plotly_text("node-1") == "node-1"


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", " =", "  -"])
def test_formula_is_quoted_in_a_saved_table(start: str) -> None:
    assert str(safe_cell(f"{start}cmd|' /C calc'!A1")).startswith("'")


@pytest.mark.parametrize("start", ["\t=", "\r=", "\n=", "\0=", "\ufeff=", "\u200b=", "\xa0="])
def test_invisible_prefix_of_a_formula_is_escaped(start: str) -> None:
    assert str(safe_cell(f"{start}1+1")).startswith("\\")


def test_safe_cell_keeps_numbers_and_empty_values() -> None:
    assert [safe_cell(value) for value in (-1.5, 0, None, True, "node-1", "")] == [-1.5, 0, "", True, "node-1", ""]


@given(st.text() | st.text(alphabet="=+-@\t\r\n \ufeff\",;'"))
def test_csv_round_trip_never_produces_a_formula(text: str) -> None:
    written = io.StringIO()
    csv.writer(written).writerow([safe_cell(text), 1])
    [[cell, _]] = csv.reader(io.StringIO(written.getvalue()))
    assert not cell.lstrip().startswith(tuple("=+-@\t\r"))
    assert cell.isprintable()


def test_figure_csv_has_no_formulas() -> None:
    saved = csv_of(FigureData(("rank", "=host"), [(0, "=1+1"), (-1, None), (2, "node-1")]))
    assert list(csv.reader(io.StringIO(saved))) == [["rank", "'=host"], ["0", "'=1+1"], ["-1", ""], ["2", "node-1"]]


def test_error_text_is_escaped_in_a_figure() -> None:
    error = InputError("<a href='https://evil.example'>run</a>%{x}\u202e", "<b>bad</b>")
    [annotation] = note(f"{error}<br>next line", palette(None)).layout.annotations
    assert annotation.text == (
        r"&lt;a href='https://evil.example'&gt;run&lt;/a&gt;<br>%&#123;x}\u202e: &lt;b&gt;bad&lt;/b&gt;<br>next line"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Nothing is known of this run's GPUs: no answer from the exporter at http://127.0.0.1:9838/metrics: Connection refused",
        "No alert is known: nothing was found, or no watcher ran (rankscope alerts watch RUNS).",
    ],
)
def test_long_note_is_wrapped_for_a_narrow_screen(text: str) -> None:
    [annotation] = note(text, palette(None)).layout.annotations
    lines = annotation.text.split("<br>")
    assert " ".join(lines) == text
    assert max(map(len, lines)) <= 40


def test_every_text_of_an_analysis_is_sanitized(analysis: Analysis) -> None:
    ranks = [msgspec.structs.replace(rank, host=HOSTILE) for rank in analysis.ranks]
    verdict = msgspec.structs.replace(analysis.verdict, summary=f"Rank 2 on host {HOSTILE} is slow.")
    hostile = msgspec.structs.replace(analysis, ranks=ranks, verdict=verdict)
    safe = inert_record(hostile)
    assert [text for text in _texts(msgspec.to_builtins(safe)) if not text.isprintable() or len(text) > MAX_TEXT] == []
    assert safe.verdict.summary.startswith(r"Rank 2 on host <img src=x onerror=alert(1)>\u202egnp.\u200bexe\n\x1b[31mAAA")
    assert inert_record(analysis) == analysis, "what is harmless stays as it is"


def test_hostile_run_is_sanitized_everywhere(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    run = write_run(tmp_path / "run", name=HOSTILE)
    for rank in range(4):
        file = rank_dir(run, 0, rank) / "rank.json"
        info = json.loads(file.read_text())
        file.write_text(json.dumps({**info, "host": HOSTILE, "gpu_uuid": f"=GPU{BIDI}"}))
    write_run(tmp_path / f"<b>{BIDI}", run_id="broken")
    run_file(tmp_path / f"<b>{BIDI}").write_text('{"schema": "<u>\u202e</u>"}')

    source = DiskRuns(tmp_path)
    answers = [
        json.loads(page_text(source, path)) for path in ("/", "/run/run-1", f"/run/{'%E2%80%AE' * 3}", f"/nothing/{HOSTILE}")
    ]
    texts = list(_texts(answers))
    assert any(r"<img src=x onerror=alert(1)>\u202egnp." in text for text in texts)
    # Keys and addresses of runs are not displayed text.
    keys = {"run-1", f"<b>{BIDI}"}
    assert [text for text in texts if text not in keys and not re.sub(r"\n", "", text).isprintable()] == []
    assert max(map(len, texts)) < MAX_TEXT + 200


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    return [text for item in value for text in _texts(item)] if isinstance(value, list) else []

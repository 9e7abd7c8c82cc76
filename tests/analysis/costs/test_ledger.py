"""Wait attribution: delays charged to the ranks that caused them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.collectives_by_hand import collective_waits
from tests.analysis.conftest import plan_for

from rankscope.analysis.collectives.clock import fit_clocks
from rankscope.analysis.collectives.matching import match_collectives
from rankscope.analysis.collectives.waits.blame import Blame, assign_blame
from rankscope.analysis.collectives.waits.imposed import Group, Pairs
from rankscope.analysis.costs.ledger import ledger_of_blame
from rankscope.analysis.engine import analyze
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Analysis
from rankscope.analysis.result.costs import MAX_GROUPS, MAX_LEDGER_ROWS, MAX_RANKS
from rankscope.runs.records import CollectiveRecord

Synthetic = Callable[..., Any]


Row = tuple[float, float, int]
"""Imposed wait, its exposed part, and number of steps."""


def blamed(rows: Mapping[Group, Mapping[tuple[int, int], Row]]) -> Blame:
    every = [(at, *pair, *row) for at, of_group in enumerate(rows.values()) for pair, row in of_group.items()]
    group, origin, victim, imposed, exposed, steps = map(np.array, zip(*every, strict=True))
    pairs = Pairs(list(rows), group, origin, victim, imposed, exposed, steps)
    return Blame([], {}, {}, {}, {}, collective_waits([0], np.zeros((1, 0)), np.zeros((1, 0))), pairs)


def one_late(steps: int, late: int, *, ranks: int = 4, hidden: float = 0.0) -> dict[int, list[CollectiveRecord]]:
    """Return one all-reduce a step, to which ``late`` is 40 us late; compute hides a part of the wait."""
    return {
        rank: [
            CollectiveRecord(
                step=step,
                group="world",
                group_ranks=list(range(ranks)),
                index=0,
                op="all_reduce",
                enqueue_unix_ns=(arrive := (1000 * step + (40 if rank == late else 0)) * 1000),
                start_unix_ns=arrive,
                end_unix_ns=(1000 * step + 50) * 1000,
                stream=7,
                compute_spans_us=[(0.0, hidden)] if hidden else [],
            )
            for step in range(steps)
        ]
        for rank in range(ranks)
    }


def test_each_victim_is_a_row_with_waiting_time_and_steps() -> None:
    matches = match_collectives(one_late(5, 2, hidden=10.0)).matches
    ledger = ledger_of_blame(assign_blame(matches, fit_clocks(matches), range(4)), "windows")
    assert ledger is not None
    assert [(row.origin, row.victim, row.imposed_us, row.imposed_exposed_us, row.steps) for row in ledger.matrix] == [
        (2, victim, 200.0, 150.0, 5) for victim in (0, 1, 3)
    ]
    [group] = ledger.by_group
    assert (group.group, group.ranks, group.size, group.worst) == ("world", [0, 1, 2, 3], 4, 2)
    assert (group.imposed_us, group.imposed_exposed_us) == (600.0, 450.0)
    assert (ledger.source, ledger.steps, ledger.groups, ledger.rest.rows) == ("windows", 5, 1, 0)


def test_ledger_of_step_records_has_no_groups(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(plan=plan_for(2, us=60_000), noise=0.001).write()])
    ledger = analysis.ledger
    assert ledger is not None
    assert (ledger.source, ledger.by_group[0].group, ledger.by_group[0].worst) == ("steps", None, 2)
    assert {(row.origin, row.victim) for row in ledger.matrix} == {(2, 0), (2, 1), (2, 3)}
    assert sum(row.imposed_us for row in ledger.matrix) == pytest.approx(sum(item.imposed_us for item in analysis.imposed_wait))
    text = render_text(analysis, width=80, detail=True)
    assert "who waited (columns) because of whom (rows)" in text
    assert "rank 2" in text


def test_runs_without_wait_evidence_have_no_ledger(synthetic: Synthetic) -> None:
    assert analyze([synthetic(signals=False).write()]).ledger is None
    assert analyze([synthetic(ranks=1).write()]).ledger is None


def test_ledger_of_a_thousand_ranks_is_bounded_and_sums_the_rest() -> None:
    rows = {(origin, victim): (float(origin), 0.5, 1) for origin in range(1, 60) for victim in range(1024) if victim != origin}
    ledger = ledger_of_blame(blamed({("world", tuple(range(1024))): rows}), "windows")
    assert ledger is not None
    assert len(ledger.matrix) == MAX_LEDGER_ROWS
    assert ledger.rest.rows == len(rows) - MAX_LEDGER_ROWS
    assert len(ledger.by_group[0].ranks) == MAX_RANKS
    assert ledger.by_group[0].size == 1024
    assert len(msgspec.json.encode(ledger)) < 40_000


def test_worst_of_many_groups_are_listed_and_the_others_summed() -> None:
    rows: dict[Group, dict[tuple[int, int], Row]] = {
        ("tp", (2 * at, 2 * at + 1)): {(2 * at, 2 * at + 1): (float(at), float(at), 1)} for at in range(MAX_GROUPS + 9)
    }
    ledger = ledger_of_blame(blamed(rows), "windows")
    assert ledger is not None
    assert (ledger.groups, len(ledger.by_group), len(ledger.matrix)) == (MAX_GROUPS + 9, MAX_GROUPS, MAX_GROUPS)
    assert ledger.by_group[0].worst == 2 * (MAX_GROUPS + 8)
    assert (ledger.rest.rows, ledger.rest.imposed_us) == (9, sum(range(9)))


def test_ledger_of_the_reference_trace_has_the_worst_pairs(shared_data: Path) -> None:
    ledger = analyze([shared_data / "traces" / "dlrm_8ranks_v100"]).ledger
    assert ledger is not None
    by_origin = {origin: sum(row.imposed_us for row in ledger.matrix if row.origin == origin) for origin in (7, 5, 4)}
    exposed = {origin: sum(row.imposed_exposed_us for row in ledger.matrix if row.origin == origin) for origin in (7, 5, 4)}
    assert by_origin == {7: pytest.approx(35_543, abs=1), 5: pytest.approx(6_276, abs=5), 4: pytest.approx(4_987, abs=5)}
    assert exposed == {7: pytest.approx(35_237, abs=5), 5: pytest.approx(5_056, abs=5), 4: pytest.approx(4_987, abs=5)}
    assert (ledger.matrix[0].origin, ledger.matrix[0].victim) == (7, 1)


def test_wide_matrix_is_reduced_on_a_narrow_terminal(shared_data: Path) -> None:
    analysis = analyze([shared_data / "traces" / "dlrm_8ranks_v100"])
    for width in (40, 60, 80, 120):
        text = render_text(analysis, width=width, detail=True)
        table = text[text.index("who waited") :].split("\n\n")[0]
        assert all(len(line) <= width for line in table.splitlines())
        assert ("more ranks waited" in " ".join(table.split())) == (width < 75)


amounts = st.floats(0, 1e9).flatmap(lambda whole: st.tuples(st.just(whole), st.floats(0, whole), st.integers(1, 99)))
ledgers = st.dictionaries(
    st.tuples(
        st.sampled_from(["dp", "tp", None]), st.sets(st.integers(0, 9), min_size=2).map(lambda members: tuple(sorted(members)))
    ),
    st.dictionaries(
        st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1]),
        amounts,
        min_size=1,
        max_size=40,
    ),
    min_size=1,
    max_size=MAX_GROUPS + 8,
)


@given(ledgers)
def test_groups_matrix_and_rest_add_up(rows: dict[Group, dict[tuple[int, int], Row]]) -> None:
    ledger = ledger_of_blame(blamed(rows), "traces")
    assert ledger is not None
    every = [row for group in rows.values() for row in group.values()]
    assert len(ledger.matrix) + ledger.rest.rows == len(every)
    assert sum(row.imposed_us for row in ledger.matrix) + ledger.rest.imposed_us == pytest.approx(sum(row[0] for row in every))
    result = sum(row.imposed_exposed_us for row in ledger.matrix) + ledger.rest.imposed_exposed_us
    assert result == pytest.approx(sum(row[1] for row in every))
    assert ledger.groups == len(ledger.by_group) == len(rows)
    exposed = [row.imposed_exposed_us for row in ledger.matrix]
    assert exposed == sorted(exposed, reverse=True)
    for row in ledger.matrix:
        group = ledger.by_group[row.group]
        assert rows[group.group, tuple(group.ranks)][row.origin, row.victim][0] == row.imposed_us
        assert row.imposed_exposed_us <= row.imposed_us


def test_ledger_is_part_of_the_published_json(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(plan=plan_for(2, us=60_000)).write()])
    assert msgspec.json.decode(msgspec.json.encode(analysis), type=Analysis) == analysis

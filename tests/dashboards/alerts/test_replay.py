"""Replay of the watcher over a run, started from the run's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from tests.dashboards.blocks import draw, write

from rankscope.alerts.owners import WATCHER_ALERTS
from rankscope.alerts.replay.result import Replay, Replayed, Spell
from rankscope.base.errors import InputError, RankscopeError
from rankscope.dashboards.alerts.figures import replay_times
from rankscope.dashboards.alerts.replay import REPLAY, make_replay, read_replay
from rankscope.dashboards.alerts.view import VIEW, replay_list
from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.events import StepClock
from rankscope.dashboards.data.progress import Progress
from rankscope.dashboards.data.run_data import RunData
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.live.components import component
from rankscope.dashboards.model.page import Block, Group
from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.store.tasks import TASKS

AT = 1_790_000_000_000_000_000
SECOND = 10**9
COLORS = PALETTES["light"]


def spell(pending: int, fired: int | None, ended: int | None, name: str = "TrainingStraggler", rank: str = "2") -> Spell:
    return Spell(
        labels={"alertname": name, "rank": rank, "host": "n1"},
        pending_unix_ns=AT + pending * SECOND,
        fired_unix_ns=None if fired is None else AT + fired * SECOND,
        ended_unix_ns=None if ended is None else AT + ended * SECOND,
        annotations={"summary": "Rank 2 is slow."},
    )


def replayed(*spells: Spell, notes: list[str] | None = None) -> Replay:
    rules = [
        Replayed(
            rule=rule,
            policy="fires after 3 evaluations",
            spells=[one for one in spells if one.labels["alertname"] == rule],
        )
        for rule in ("TrainingStraggler", "TrainingRankLost")
    ]
    return Replay(
        path="runs/bert",
        start_unix_ns=AT,
        end_unix_ns=AT + 600 * SECOND,
        interval_s=5.0,
        evaluations=120,
        rules=rules,
        notes=notes or [],
    )


def test_bars_show_when_it_was_pending_and_when_it_fired() -> None:
    told = replayed(spell(60, 70, 300), spell(400, None, 405), spell(500, 510, None, rank="3"))

    drawn = replay_times(told, None, COLORS)

    pending, fires, marks = drawn.figure.data
    assert (pending.name, list(pending.x), list(pending.y)) == ("Pending", [10_000, 5_000, 10_000], [0, 0, 1])
    assert list(marks.x) == ["2026-09-21 14:14:30", "2026-09-21 14:21:50"]
    assert [text.split("<br>")[0] for text in drawn.figure.layout.yaxis.ticktext] == ["TrainingStraggler"] * 2
    # An alert without an end within the replay lasts to the replay's end
    assert (fires.name, list(fires.x), list(fires.y)) == ("Fires", [230_000, 90_000], [0, 1])
    assert pending.marker.pattern.shape != fires.marker.pattern.shape
    assert drawn.says == "Alerts that would have fired: 2; pending without firing: 1."
    assert [row[5] for row in drawn.table.rows] == [70.0, None, 510.0]
    assert all(len(row) == len(drawn.table.columns) for row in drawn.table.rows)


def test_where_it_is_known_the_steps_stand_below_the_times() -> None:
    clock = StepClock(np.arange(100, 201), AT + np.arange(101) * 6 * SECOND)

    axis = replay_times(replayed(spell(60, 70, 300)), None, COLORS, clock).figure.layout.xaxis

    assert axis.tickvals[0] == "2026-09-21 14:13:20"
    assert list(axis.ticktext) == [
        "14:13:20<br>step 100", "14:16:38<br>step 133", "14:19:56<br>step 166", "14:23:20<br>step 200"
    ]  # fmt: skip


def test_one_alert_is_picked_out_of_all() -> None:
    told = replayed(spell(60, 70, 300), spell(80, 90, 100, name="TrainingRankLost"))

    assert [row[0] for row in replay_times(told, "TrainingRankLost", COLORS).table.rows] == ["TrainingRankLost"]
    assert len(replay_times(told, None, COLORS).table.rows) == 2
    shown = str(replay_list(told, "TrainingStraggler"))
    assert "1.17 min into the run" in shown
    assert "TrainingRankLost" not in shown


def test_that_nothing_would_have_fired_is_said_with_what_limits_it() -> None:
    told = replayed(notes=["nothing could be judged: too few steps"])

    says = "TrainingStraggler would not have fired. nothing could be judged: too few steps"
    assert replay_times(told, "TrainingStraggler", COLORS).says == says
    assert says in str(replay_list(told, "TrainingStraggler"))
    assert replay_times(told, None, COLORS).says.startswith("No alert would have fired.")


def test_hostile_names_are_inert_in_the_figure() -> None:
    drawn = replay_times(replayed(spell(60, 70, 300, rank="<b>2</b>")), None, COLORS)

    assert "<b>" not in drawn.figure.layout.yaxis.ticktext[0]


@pytest.mark.slow
def test_a_replay_of_a_run_finds_what_the_watcher_would_have_and_tells_how_far_it_is(
    tmp_path: Path, write_run: Callable[..., Path]
) -> None:
    run = write_run(tmp_path / "run", steps=400, windows=False)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    told: list[Progress] = []
    (tmp_path / "made").mkdir()

    make_replay(run, tmp_path / "made", told.append)

    replay = read_replay(tmp_path / "made")
    [straggler] = [one for one in replay.rules if one.rule == "TrainingStraggler"]
    assert straggler.spells[0].labels["rank"] == "2"
    assert straggler.spells[0].fired_unix_ns is not None
    assert {one.rule for one in replay.rules} == set(WATCHER_ALERTS)
    counts = [progress.done for progress in told if progress.of]
    assert counts == sorted(counts)
    assert counts[-1] == 99
    # And the run is unchanged
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_a_replay_that_was_damaged_in_the_cache_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / REPLAY).write_text("{")

    with pytest.raises(InputError, match="the cached replay cannot be read"):
        read_replay(tmp_path)


def test_a_finished_run_is_replayed_once_and_a_live_one_at_most_every_hour(
    tmp_path: Path, write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(arguments: list[str], folder: Path, _tell: Any) -> None:
        made.extend(Path(run).name for run in arguments)
        (folder / REPLAY).write_bytes(msgspec.json.encode(replayed()))

    monkeypatch.setitem(cast("dict[str, Any]", TASKS), "replay", make)
    write_run(tmp_path / "over", run_id="over", steps=12)
    write_run(tmp_path / "live", run_id="live", steps=12, finished=False)
    now_s = [AT / 1e9]
    source = DiskRuns(tmp_path, clock_s=lambda: now_s[0])

    for seconds in (0, 60, 7200):
        now_s[0] = AT / 1e9 + seconds
        for run_id in ("over", "live"):
            source.replay(run_id)

    assert sorted(made) == ["live", "live", "over"]


# The view ---------------------------------------------------------------------------------------------------------------------


def shown_of(blocks: Sequence[Block]) -> str:
    """Return blocks as the page shows them, with progress and errors of parts."""
    group: Any = component(Group(blocks))
    return str(group.to_plotly_json())


def part(run: RunData, state: PageState) -> str:
    return str(write(VIEW, "alert-replay", run, state))


@pytest.fixture
def run(memory_runs: Any) -> RunData:
    memory_runs.replays["run-1"] = replayed(spell(60, 70, 300))
    return RunData(memory_runs, memory_runs.summary("run-1"))


def test_nothing_is_replayed_before_somebody_asks(run: RunData, memory_runs: Any) -> None:
    memory_runs.problems["run-1"] = AssertionError("asked")

    assert "rankscope alerts replay runs/bert" in part(run, PageState())
    with pytest.raises(RankscopeError, match="Nothing is replayed: choose an alert"):
        draw(VIEW, "replay-times", run, PageState(), COLORS)


def test_the_address_says_which_alert_is_replayed(run: RunData) -> None:
    for text in ("all", "TrainingStraggler"):
        state = PageState.parse(f"?replay={text}")
        assert state.search == f"?replay={text}"
        assert "Rank 2 is slow." in part(run, state)
        assert draw(VIEW, "replay-times", run, state, COLORS).says.startswith("Alerts that would have fired: 1")


def test_an_alert_that_there_is_not_is_said_with_those_there_are(run: RunData) -> None:
    with pytest.raises(RankscopeError, match="no alert '<b>x'; there are TrainingStraggler"):
        part(run, PageState(replay="<b>x"))
    # With an unknown rule in the address, the rest of the page is shown
    assert "there are TrainingStraggler" in shown_of(VIEW.blocks(run, PageState(replay="<b>x")))


def test_while_it_is_replayed_the_page_is_there_and_says_how_far_it_is(run: RunData, memory_runs: Any) -> None:
    del memory_runs.replays["run-1"]
    memory_runs.problems["replay"] = NotReadyError(Progress("replaying the run", 34, 100))

    def replay(_run_id: str) -> Replay:
        raise memory_runs.problems["replay"]

    memory_runs.replay = replay
    shown = shown_of(VIEW.blocks(run, PageState(replay="all")))

    assert "Replaying the run: 34 of 100" in shown
    assert "When alerts fired" in shown

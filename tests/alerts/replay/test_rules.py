"""Prometheus' rules over a recorded run: the metrics that its ranks would have shown, evaluated by a real Prometheus."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rankscope.alerts.hysteresis import Policy
from rankscope.alerts.own_prometheus import OwnPrometheus, Programs
from rankscope.alerts.prometheus import Rule
from rankscope.alerts.rank_series import pasts_of, span_of, write_series
from rankscope.alerts.replay import How
from rankscope.alerts.rules_replay import levels, replay_rules
from rankscope.alerts.run_replay import replay_alerts
from rankscope.alerts.thresholds import thresholds
from rankscope.exporter.catalogue import BY_NAME
from rankscope.runs.errors import InputError, MissingError, RankscopeError
from rankscope.runs.metrics import RANK_LABELS, RANK_METRICS
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader

START_S = 1_700_000_000
START_NS = START_S * 10**9
LATEST_S = START_S + 10**6
_LINE = re.compile(r"(\w+)\{(.*)\} (\S+) (\S+)")


def series_of(path: Path) -> dict[str, dict[tuple[tuple[str, str], ...], dict[float, float]]]:
    """Name to labels to the value at each second since the run's start."""
    reader = RunReader(path)
    text = io.StringIO()
    write_series(text, pasts_of(reader, latest_s=LATEST_S), run=reader.info.name, run_id=reader.info.run_id, simulated=False)
    found: dict[str, dict[tuple[tuple[str, str], ...], dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in text.getvalue().splitlines():
        match = _LINE.fullmatch(line)
        assert match is not None
        labels = tuple(sorted(re.findall(r'(\w+)="([^"]*)"', match[2])))
        found[match[1]][labels][float(match[4]) - START_S] = float(match[3])
    return found


def of_rank(series: Any, name: str, rank: int, **labels: str) -> dict[float, float]:
    [values] = [
        values
        for key, values in series[name].items()
        if dict(key)["rank"] == str(rank) and all(dict(key).get(label) == text for label, text in labels.items())
    ]
    return dict(values)


def test_series_have_the_names_and_labels_of_the_recorder_and_the_exporter(make_run: Callable[..., Any]) -> None:
    run = make_run()
    known = {metric.name: metric.labels for metric in RANK_METRICS}

    for name, each in series_of(run.path).items():
        metric = name.removesuffix("_sum").removesuffix("_count")
        labels = (*RANK_LABELS, *known[metric]) if metric in known else BY_NAME[metric].labels
        for key in each:
            assert {label for label, _ in key} == {"job", "instance", *labels}


def test_counters_count_the_steps_that_had_ended_by_then(make_run: Callable[..., Any]) -> None:
    # Given 600 steps of 100 ms, one begun every 100 ms
    run = make_run(slow=2)
    run.grow(540)
    run.end(end_unix_ns=START_NS + 61 * 10**9)
    records = list(RunReader(run.path).steps(0, 2))

    series = series_of(run.path)

    for at, steps in of_rank(series, "rank_steps_total", 2).items():
        done = [record for record in records if record.start_unix_ns / 1e9 + record.wall_us / 1e6 <= START_S + at]
        assert steps == len(done)
        assert of_rank(series, "rank_step_duration_seconds_sum", 2)[at] == pytest.approx(sum(r.wall_us for r in done) / 1e6)
        blocked = of_rank(series, "rank_blocked_seconds_total", 2, phase="backward")
        assert blocked.get(at, 0.0) == pytest.approx(sum(record.blocked_total_us or 0.0 for record in done) / 1e6)
    assert list(of_rank(series, "rank_steps_total", 2)) == [0.0, 15.0, 30.0, 45.0, 60.0]


def test_a_rank_that_ended_is_gone_and_one_that_was_killed_falls_silent_until_all_are_gone(make_run: Callable[..., Any]) -> None:
    run = make_run()
    run.end(end_unix_ns=START_NS + 600 * 10**9)
    run.end("killed", ranks=range(1), end_unix_ns=START_NS + 60 * 10**9)
    run.end("exit", ranks=range(1, 2), end_unix_ns=START_NS + 90 * 10**9)

    series = series_of(run.path)

    assert max(of_rank(series, "rank_info", 1)) == 75
    running, silent = (of_rank(series, "rank_state", 0, state=state) for state in ("running", "silent"))
    assert (max(running), min(silent), max(silent)) == (345, 360, 585)
    assert max(of_rank(series, "rank_steps_total", 0)) == 345
    assert max(of_rank(series, "rank_info", 0)) == 585


def test_ranks_that_never_said_goodbye_are_there_for_a_quarter_of_an_hour_more(make_run: Callable[..., Any]) -> None:
    run = make_run()

    pasts = pasts_of(RunReader(run.path), latest_s=LATEST_S)

    assert span_of(pasts) == (START_S, max(rank.ends_s[-1] for rank in pasts) + 900)


def test_a_step_of_the_future_is_none(make_run: Callable[..., Any]) -> None:
    run = make_run()
    [file] = rank_dir(run.path, 0, 0).glob("steps-*.jsonl")
    file.write_bytes(file.read_bytes().replace(str(START_NS).encode(), str(START_NS * 5).encode(), 1))

    assert np.all(pasts_of(RunReader(run.path), latest_s=LATEST_S)[0].ends_s < LATEST_S)


def test_recorded_series_are_made_before_those_that_rest_on_them() -> None:
    def rule(name: str, query: str) -> Rule:
        return Rule(type="recording", name=name, query=query)

    rules = {one.name: one for one in (rule("a:b", "up"), rule("b:c", "a:b / a:b"), rule("c:d", "up + a:b"), rule("x:y", "up"))}

    assert [[one.name for one in level] for level in levels([rule("Alert", "b:c > 1 or c:d > 2")], rules)] == [
        ["a:b"],
        ["b:c", "c:d"],
    ]
    assert levels([rule("Alert", "up == 0")], rules) == []


@pytest.mark.slow
@pytest.mark.full
def test_what_the_thresholds_say_is_tried_and_what_they_leave_out_is_said(
    make_run: Callable[..., Any], tmp_path: Path, require_program: Callable[[str], str]
) -> None:
    for program in ("prometheus", "promtool"):
        require_program(program)
    run = make_run()
    ours = tmp_path / "ours.toml"
    ours.write_text("[TrainingStalled]\nseconds = 300\n[RankSilent]\nenabled = false\n")

    stalled, silent = replay_rules(run.path, ["TrainingStalled", "RankSilent"], settings=thresholds(ours)).rules

    # Its ranks never said goodbye, and are taken to be there for 15 minutes after the last step
    [spell] = stalled.spells
    assert START_NS + 300 * 10**9 <= spell.pending_unix_ns <= START_NS + 340 * 10**9
    assert silent.not_evaluated == "the thresholds leave it out"


def test_without_prometheus_the_watcher_answers_and_what_is_missing_is_said(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(slow=2)
    run.end(end_unix_ns=START_NS + 7 * 10**9)
    monkeypatch.setattr("shutil.which", lambda _name, path=None: None)

    replay = replay_alerts(run.path, [], by=None, how=How(policy=Policy(fire_after=1)))

    assert replay.rules[0].spells[0].fired_unix_ns is not None
    assert {rule.not_evaluated for rule in replay.rules if rule.source == "watcher"} == {None}
    assert {rule.not_evaluated for rule in replay.rules if rule.source == "prometheus"} == {
        "replaying rankscope's own rules needs the program 'prometheus': apt-get install prometheus"
    }
    with pytest.raises(MissingError):
        replay_alerts(run.path, ["RankSilent"], by="prometheus", how=How())
    with pytest.raises(MissingError):
        replay_alerts(run.path, ["GpuDown"], by=None, how=How())


def test_what_is_too_much_or_nothing_is_said_before_anything_is_made(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.alerts.rules_replay.find_programs", lambda: Programs("none", "none"))
    run = make_run()
    run.end(end_unix_ns=START_NS + 10**18)
    with pytest.raises(InputError, match=r"4 ranks for 277,778 h are too much to replay"):
        replay_rules(run.path)

    for rank in range(4):
        (rank_dir(run.path, 0, rank) / "rank.json").unlink()
    with pytest.raises(InputError, match="no rank in it says who it is"):
        replay_rules(run.path)


def test_a_prometheus_that_does_not_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "prometheus"
    broken.write_text("#!/bin/sh\necho starting\necho 'error: no room \033[31m' >&2\nexit 1\n")
    broken.chmod(0o755)

    with (
        pytest.raises(RankscopeError, match=r"^prometheus does not start: error: no room  \[31m"),
        OwnPrometheus(Programs(str(broken), str(broken)), tmp_path, lookback_s=20).running(),
    ):
        pass
    with pytest.raises(RankscopeError, match="promtool cannot take the run's metrics: error: no room"):
        OwnPrometheus(Programs(str(broken), str(broken)), tmp_path, lookback_s=20).remember(lambda file: file.write("x 1 1\n"))


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_replay_that_is_ended_takes_its_prometheus_along(
    make_run: Callable[..., Any], eventually: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    # Given a Prometheus that takes its time to start
    run = make_run()
    (tmp_path / "scratch").mkdir()
    for name in ("prometheus", "promtool"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho $$ >{tmp_path}/number\nexec /bin/sleep 600\n")
        (tmp_path / name).chmod(0o755)
    place = {"PATH": str(tmp_path), "TMPDIR": str(tmp_path / "scratch")}
    command = [sys.executable, "-m", "rankscope", "alerts", "replay", str(run.path), "--by", "prometheus"]
    replay = subprocess.Popen(command, env=os.environ | place, stderr=subprocess.DEVNULL)
    started = tmp_path / "number"
    process = Path("/proc", eventually(lambda: started.is_file() and started.read_text().strip()), "cmdline")
    assert process.read_bytes()

    # When who started it is told to end, or killed
    replay.send_signal(number)
    replay.wait(30)

    # Then it ends as well, and, where anybody could still see to it, what it worked on is removed
    eventually(lambda: not process.is_file() or not process.read_bytes())
    assert number == signal.SIGKILL or not list((tmp_path / "scratch").iterdir())


@pytest.mark.slow
@pytest.mark.full
def test_the_shipped_rules_are_evaluated_over_a_run(make_run: Callable[..., Any], require_program: Callable[[str], str]) -> None:
    # Given half an hour of steps of 1 s in which rank 2 is slow, and rank 3 killed after 20 minutes, while the others went on
    require_program("prometheus")
    run = make_run(slow=2)
    for file in run.path.glob("attempts/000/ranks/*/steps-*.jsonl"):
        file.unlink()
    run.steps = 0
    for rank in range(4):
        lines = [
            msgspec.json.encode(msgspec.structs.replace(run._step(step, rank), start_unix_ns=START_NS + step * 10**9))
            for step in range(1200 if rank == 3 else 1800)
        ]
        (rank_dir(run.path, 0, rank) / "steps-000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    run.end(end_unix_ns=START_NS + 1800 * 10**9)
    run.end("killed", ranks=range(3, 4), end_unix_ns=START_NS + 1200 * 10**9)

    # When the shipped rules are replayed
    replay = replay_rules(run.path)
    rules = {rule.rule: rule for rule in replay.rules}

    # Then the slow rank is accused once a rate is known, 5 minutes later, and as long as the run goes on
    [slow] = rules["TrainingStraggler"].spells
    assert slow.labels == {
        "alertname": "TrainingStraggler", "severity": "warning", "run_id": "llama-1", "rank": "2", "run": "llama", "host": "node1"
    }  # fmt: skip
    assert slow.fired_unix_ns == slow.pending_unix_ns + 300 * 10**9
    assert START_NS < slow.pending_unix_ns <= START_NS + 60 * 10**9
    assert slow.ended_unix_ns is not None
    assert START_NS + 1800 * 10**9 <= slow.ended_unix_ns <= START_NS + 2130 * 10**9
    assert 0.3 < slow.values[0].value < 0.9

    # And the killed one falls silent 5 minutes after its end, and is not missed any more when the run is over
    [silent] = rules["RankSilent"].spells
    assert (silent.labels["rank"], silent.labels["host"]) == ("3", "node1")
    assert START_NS + 1500 * 10**9 <= silent.pending_unix_ns <= START_NS + 1530 * 10**9
    assert silent.fired_unix_ns == silent.pending_unix_ns + 60 * 10**9
    assert silent.ended_unix_ns is not None
    assert START_NS + 1800 * 10**9 <= silent.ended_unix_ns <= START_NS + 1830 * 10**9

    # And nothing is said of what a run cannot tell
    assert rules["TrainingStalled"].spells == rules["RecorderDisabled"].spells == []
    assert {name for name, rule in rules.items() if not rule.not_evaluated} == {
        *("RankSilent", "RecorderDisabled", "TrainingInputBound", "TrainingStalled"),
        *("TrainingStepRegression", "TrainingStraggler", "TrainingThroughputLoss"),
    }
    assert "rank_window_seconds_total" in str(rules["TrainingCommunicationBound"].not_evaluated)
    assert replay.notes == []
    # Of what the watcher alone tells there is no rule that anybody could leave out
    assert not {"TrainingCrashed", "TrainingHostBound"} & set(rules)
    assert "exporter or watcher" in str(rules["WatcherSilent"].not_evaluated)

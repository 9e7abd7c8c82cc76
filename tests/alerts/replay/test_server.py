"""Would it have fired? Alerting rules of a real Prometheus over what it remembers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.remembering_prometheus import remembering

from rankscope.alerts.prometheus import Prometheus, PrometheusError, Server
from rankscope.alerts.prometheus_replay import replay_server
from rankscope.alerts.replay_result import Replay
from rankscope.alerts.replay_text import replay_text
from rankscope.alerts.rules import rules_text
from rankscope.alerts.series_seen import rests_on, series_in, telling
from rankscope.alerts.threshold_replay import replay_thresholds
from rankscope.alerts.thresholds import DEFAULTS, SHARED, thresholds

START_NS = 1_700_000_000 * 10**9
SECOND = 10**9


def past() -> str:
    """A GPU that does not answer from the 100th second to the 300th; scraped every 10 s for 20 minutes."""
    began = START_NS // SECOND
    up = "".join(f'gpu_up{{uuid="GPU-1",instance="n1"}} {int(not 100 <= s < 300)} {began + s}\n' for s in range(0, 1200, 10))
    return f"# TYPE gpu_up gauge\n{up}"


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]) -> Iterator[str]:
    with remembering(tmp_path_factory.mktemp("prometheus"), past(), program=require_program, rules=rules_text()) as url:
        yield url


SPAN = (START_NS, START_NS + 1200 * SECOND)


@pytest.mark.slow
def test_a_rule_of_prometheus_is_replayed_over_what_it_remembers(remembered: str) -> None:
    # When the shipped rule about lost GPUs is evaluated over the past
    replay = replay_server(Prometheus(Server(url=remembered)), ["GpuDown"], SPAN)

    # Then it was pending at once, fired after its minute, and ended five minutes after the GPU's return
    [spell] = replay.rules[0].spells
    assert spell.labels == {
        "alertname": "GpuDown", "severity": "critical", "uuid": "GPU-1", "gpu_uuid": "GPU-1", "instance": "n1"
    }  # fmt: skip
    assert [(moment or 0) - START_NS for moment in (spell.pending_unix_ns, spell.fired_unix_ns, spell.ended_unix_ns)] == [
        105 * SECOND, 165 * SECOND, 600 * SECOND
    ]  # fmt: skip
    assert spell.annotations["runbook_url"] == "runbooks/GpuDown.md"


@pytest.mark.slow
@pytest.mark.full
def test_without_names_all_of_rankscopes_rules_are_replayed(remembered: str) -> None:
    replay = replay_server(Prometheus(Server(url=remembered)), [], SPAN)

    assert {rule.rule for rule in replay.rules} > {"GpuDown", "TrainingStraggler", "RankSilent"}
    assert [rule.rule for rule in replay.rules if any(spell.fired_unix_ns for spell in rule.spells)] == ["GpuDown"]


@pytest.mark.slow
@pytest.mark.full
def test_a_rule_that_the_server_does_not_have_is_said_with_those_it_has(remembered: str) -> None:
    with pytest.raises(PrometheusError, match=r"evaluates no alert Nope; it has .*GpuDown"):
        replay_server(Prometheus(Server(url=remembered)), ["Nope"], SPAN)


@pytest.mark.slow
@pytest.mark.full
def test_of_a_long_time_a_rule_is_evaluated_less_often_and_it_is_said(remembered: str) -> None:
    replay = replay_server(Prometheus(Server(url=remembered)), ["GpuDown"], (START_NS - 10**17, START_NS + 1200 * SECOND))

    assert replay.interval_s > 15
    often, covered = replay.notes
    assert often == f"GpuDown: evaluated every {replay.interval_s:g} s instead of every 15 s: ask for less time"
    # And from when on there was anything to evaluate, to a two-hundredth of that time
    assert re.fullmatch(r"there are data for GpuDown from 2023-11-\d\dT\S+ to 2023-11-14T22:\S+ only", covered)


@pytest.mark.slow
@pytest.mark.full
def test_what_nothing_is_remembered_of_is_not_taken_for_silent(remembered: str) -> None:
    """Neither where the series are recorded from others, nor with other thresholds, nor before there was anything."""
    prometheus = Prometheus(Server(url=remembered))
    before = (START_NS - 10 * 3600 * SECOND, START_NS - 5 * 3600 * SECOND)
    for replay, names in (
        (replay_server(prometheus, ["NodeDown"], SPAN), "kube_node_spec_unschedulable, kube_node_status_condition, slurm_node"),
        (replay_thresholds(prometheus, ["WatcherSilent"], SPAN, settings=thresholds()), "rankscope_watcher_evaluated_timestamp"),
        (replay_server(prometheus, ["GpuDown"], before), "gpu_up"),
        # Who a GPU is is known, and what is wrong with it is a collector that is off
        (replay_server(prometheus, ["GpuRetiredPagesPending"], SPAN), "gpu_retired_pages_pending"),
    ):
        [rule] = replay.rules
        assert str(rule.not_evaluated).startswith(f"no such series is remembered of this time: it rests on {names}")
        assert rule.spells == []
        assert "not evaluated: no such series" in replay_text(replay)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (uuid, instance) (rate(a_total{x=~"b{c}|d"}[5m])) > 1e3', {"a_total"}),
        ("a:b offset 1h / on (x) group_left (y) (c > bool 0) or absent(d) unless Inf", {"a:b", "c", "d"}),
        ("label_replace(a, 'b', \"c (\\\"d\\\")\", `e`, '') # f\n and g", {"a", "g"}),
        ('time() - {__name__="a"} > 0x1f', set()),
        ("a[1h:5m] AND b @ end() ^ -c", {"a", "b", "c"}),
    ],
)
def test_names_of_series_are_found_in_an_expression(expression: str, names: set[str]) -> None:
    assert series_in(expression) == names


def test_what_is_recorded_rests_on_what_somebody_publishes() -> None:
    recorded = {"a:b": ["sum(c)", "a:b + d"], "e:f": ["a:b"]}
    assert rests_on({"e:f", "g"}, recorded) == ({"c", "d", "g"}, {"a:b", "e:f"})


def test_what_something_is_does_not_tell_how_it_is() -> None:
    assert telling({"gpu_retired_pages_pending", "uuid:gpu_info:latest", "gpu_job_info"}) == {"gpu_retired_pages_pending"}
    assert telling({"uuid:gpu_info:latest", "instance:gpu_info:count"}) == {"uuid:gpu_info:latest", "instance:gpu_info:count"}


LATE = """
groups:
  - name: late
    rules:
      - {record: "uuid:up:min", expr: min by (uuid) (gpu_up)}
      - {record: "uuid:down:bool", expr: uuid:up:min == 0}
      - {record: "never:told", expr: gpu_up > 1}
      - {alert: Down, expr: "uuid:down:bool > 1"}
      - {alert: Fine, expr: "never:told or gpu_up > 2"}
      - {alert: Gone, expr: absent(nothing_total)}
"""


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("begun_s", [None, 600])
def test_what_was_recorded_later_or_never_is_not_taken_for_silent(
    tmp_path: Path, require_program: Callable[[str], str], begun_s: int | None
) -> None:
    # Given a server that learned only now, or after 10 minutes, to record what an alert rests on
    began = START_NS // SECOND
    text = past()
    if begun_s is not None:
        up = "".join(f'uuid:up:min{{uuid="GPU-1"}} 1 {began + second}\n' for second in range(begun_s, 1200, 10))
        text += f"# TYPE uuid:up:min gauge\n{up}"
    with remembering(tmp_path, text, program=require_program, rules=LATE) as url:
        replay = replay_server(Prometheus(Server(url=url)), ["Down", "Fine", "Gone"], SPAN)

    # Then of the time before nothing is claimed; what records nothing as all is well is no gap, nor is what tells of absence
    down, fine, gone = replay.rules
    assert (fine.not_evaluated, fine.spells) == (None, [])
    assert gone.not_evaluated is None
    assert gone.spells[0].fired_unix_ns == START_NS
    assert replay.notes.pop() == "nothing is remembered of nothing_total: what rests on that alone could not be told of"
    if begun_s is None:
        assert down.not_evaluated == (
            "it rests on uuid:up:min, which was not recorded in this time, though it would have had values"
        )
        assert replay.notes == []
    else:
        assert down.not_evaluated is None
        assert re.fullmatch(
            r"what Down rests on was recorded in part before 2023-11-14T22:2[23]:\S+: too little .*", replay.notes[0]
        )


@pytest.mark.slow
@pytest.mark.full
def test_rankscopes_rules_with_other_thresholds_are_tried_over_what_it_remembers(remembered: str, tmp_path: Path) -> None:
    # Given an operator who waits for longer, and does not want another alert at all
    ours = tmp_path / "ours.toml"
    ours.write_text('[GpuDown]\nfor = "2m"\nseverity = "warning"\n[GpuTooHot]\nenabled = false\n')

    replay = replay_thresholds(Prometheus(Server(url=remembered)), [], SPAN, settings=thresholds(ours))

    # Then it would have fired a minute later
    told = {rule.rule: rule for rule in replay.rules}
    assert told.keys() == {name for name in DEFAULTS if name not in SHARED and name != "GpuTooHot"}
    [spell] = told["GpuDown"].spells
    assert (spell.fired_unix_ns or 0) - START_NS == (105 + 120) * SECOND
    assert spell.labels["severity"] == "warning"
    # And one that is asked for by name, and left out, says so
    [left_out] = replay_thresholds(
        Prometheus(Server(url=remembered)), ["GpuTooHot"], SPAN, settings=thresholds(ours)
    ).rules  # fmt: skip
    assert left_out.not_evaluated == "the thresholds leave it out"


@pytest.mark.slow
@pytest.mark.full
def test_what_rests_on_series_that_the_server_does_not_record_is_not_taken_for_silent(
    tmp_path: Path, require_program: Callable[[str], str]
) -> None:
    with remembering(tmp_path, past(), program=require_program, rules="groups: []\n") as url:
        replay = replay_thresholds(Prometheus(Server(url=url)), ["GpuDown", "RecorderDropping"], SPAN, settings=thresholds())

    assert all("which the server does not record" in (rule.not_evaluated or "") for rule in replay.rules)
    assert len(replay.rules) == 2


@pytest.mark.slow
@pytest.mark.full
def test_the_command_asks_a_prometheus_up_to_now_at_most(remembered: str, cli: Callable[..., Any]) -> None:
    since = ("--start", "2023-11-14T22:13:20Z", "--end", "9999-01-01")

    told = cli("alerts", "replay", remembered, "--rule", "GpuDown", *since, "--format", "json")

    replay = msgspec.json.decode(told.stdout, type=Replay)
    assert (replay.path, replay.start_unix_ns) == (remembered, START_NS)
    assert START_NS < replay.end_unix_ns <= time.time_ns()

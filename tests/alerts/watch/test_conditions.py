"""Alerts about parts of the step over budget, slower runs, costs, and very many ranks at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.alerts.watch.watched_world import MakeWorld, analysis_of, past_of

from rankscope.alerts.watch.conditions.budgets import Budgets, budgets_of
from rankscope.alerts.watch.conditions.candidate import Candidate, ConditionLoss, Subject
from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.alerts.watch.conditions.regressions import Regressions
from rankscope.alerts.watch.conditions.shared_alerts import FEW_RANKS, MOST_RANKS, merge_shared
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watch.pace import LONGEST_PAUSE_S, Pace
from rankscope.alerts.watcher_alerts import HANG, STRAGGLER
from rankscope.analysis.online import RECENT_STEPS
from rankscope.analysis.result.analysis import Analysis, Cost, Evidence, Finding, RareSteps
from rankscope.analysis.result.costs import MEANING, Waterfall, WaterfallPart

RUN = Path("/runs/bob's llama")
SUBJECT = Subject(run_id="llama-1", name="llama")
HOUR_NS = 3_600_000_000_000


def with_shares(analysis: Analysis, *, device: str = "cuda", **shares: float) -> Analysis:
    """Return an analysis of a run of 100 steps of 0.36 s, whose waterfall has these shares."""
    parts = [WaterfallPart(name=name, us=None, share=shares.get(name)) for name in MEANING]
    ranks = [msgspec.structs.replace(rank, device_kind=device) for rank in analysis.ranks]
    fall = Waterfall(unit="step", step_us=360_000, steps=100, parts=parts)
    source = msgspec.structs.replace(analysis.source, steps=100)
    return msgspec.structs.replace(analysis, source=source, waterfall=fall, ranks=ranks)


def names(candidates: list[Candidate] | None) -> list[str]:
    return [item.name for item in candidates or []]


# Budgets -----------------------------------------------------------------------------------------------------------------------


def test_each_share_over_budget_is_an_alert_largest_first() -> None:
    analysis = with_shares(analysis_of(), exposed_communication=0.31, input=0.4, host=0.1)
    result = candidates(analysis, price=Cost(amount=2.0, currency="EUR"))
    assert names(result) == ["TrainingInputBound", "TrainingCommunicationBound"]
    annotations = result[0].alert.annotations
    assert all(fact in annotations["summary"] for fact in ("40%", "data loader", "25%"))
    # 0.4 of 100 steps of 0.36 s of 4 GPUs are 0.016 GPU-hours; in an hour 1.6 are lost
    assert (annotations["gpu_hours_lost"], annotations["gpu_hours_lost_per_hour"]) == ("0.016", "1.6")
    assert (annotations["cost"], annotations["cost_per_hour"]) == ("0.03 EUR", "3.20 EUR")
    assert "rank" not in result[0].alert.labels


def test_share_within_budget_or_unknown_is_no_alert() -> None:
    analysis = with_shares(analysis_of(), exposed_communication=0.31)
    assert names(candidates(analysis, budgets=Budgets(communication=0.32))) == []
    assert names(candidates(analysis, budgets=Budgets(communication=0.31))) == ["TrainingCommunicationBound"]
    assert names(candidates(analysis_of())) == []


def test_single_long_step_raises_no_alert() -> None:
    past = past_of([0.1] * 400 + [20.0])
    assert past.rare_share(500) == pytest.approx(1 / 3, abs=0.01)
    assert past_of([0.1] * 400).rare_share(500) == 0
    analysis = with_shares(analysis_of(), exposed_communication=0.5)
    assert names(candidates(analysis, rare_share=past.rare_share(500))) == []
    assert names(candidates(analysis, rare_share=0.19)) == ["TrainingCommunicationBound"]


def test_early_stall_raises_no_alert_at_the_end_of_the_run(make_world: MakeWorld) -> None:
    # Given a run that stood still for 46 s, and then made more steps than the analysis of an active run takes
    world = make_world(slow=None)
    world.steps = past_of([0.1] * 100 + [46.0] + [0.1] * RECENT_STEPS)
    analysis = with_shares(analysis_of(), exposed_communication=0.5)
    world.advance(analysis_of())
    # When it ends, and all of its steps are analysed
    world.run.end()
    world.evaluate(analysis)
    assert world.event_names() == ["verdict"]


def test_rare_steps_reduce_the_loss_of_typical_steps() -> None:
    analysis = with_shares(analysis_of(), input=0.4)
    rare = RareSteps(
        count=3, of_steps=100, steps=[60], typical_us=1e5, longest_us=4e6, share=0.25, lost_us=12e6, rank=None, moves=False,
        host=None, cause=None, summary="3 of 100 steps",
    )  # fmt: skip
    of_rare = Finding(kind="straggler", rank=0, slowdown=1 / 0.75, gpu_hours_lost=0.01, summary=rare.summary)
    by_key = {
        candidate.finding.rank if candidate.finding else None: candidate.loss
        for candidate in candidates(msgspec.structs.replace(analysis, rare_steps=rare, findings=[of_rare]))
    }
    per_hour = {rank: loss.per_hour for rank, loss in by_key.items() if loss is not None}
    # of 4 GPU-hours the rare steps take a quarter, and input 40 % of the rest
    assert per_hour == {0: pytest.approx(1.0), None: pytest.approx(1.2)}


def test_cpu_run_reports_no_gpu_hours_lost() -> None:
    [candidate] = candidates(with_shares(analysis_of(), device="cpu", input=0.5))
    assert candidate.loss is None
    assert not {"gpu_hours_lost", "cost", "cost_per_hour"} & set(candidate.alert.annotations)


def test_alert_keeps_cause_and_evidence_of_the_analysis() -> None:
    finding = Finding(
        kind="host_bound",
        cause="gc",
        summary="Chiefly garbage collection.",
        evidence=[Evidence(name=f"share.{part}", value=0.5, unit="ratio") for part in ("compute", "host")],
    )
    analysis = msgspec.structs.replace(with_shares(analysis_of(), host=0.5), findings=[finding])
    [candidate] = candidates(analysis)
    assert candidate.alert.annotations["cause"] == "gc"
    # the deciding value comes first
    assert candidate.alert.annotations["evidence"] == "share host 50%; budget 35% (of the step); share compute 50%"


@pytest.mark.parametrize(("text", "share"), [("communication=0.4", 0.4), ("communication=40%", 0.4), ("communication=100%", 1.0)])
def test_a_budget_is_a_share(text: str, share: float) -> None:
    assert budgets_of([text]) == Budgets(communication=share)


@pytest.mark.parametrize(
    "text", ["", "communication", "communication=", "comms=0.3", "input=0", "input=-1", "input=2", "host=nan"]
)
def test_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"budget|share"):
        budgets_of([text])


# Stragglers --------------------------------------------------------------------------------------------------------------------


def test_each_straggler_has_one_alert_regardless_of_the_worst() -> None:
    def of(worst: int) -> list[str]:
        analysis = analysis_of(worst)
        verdict = msgspec.structs.replace(analysis.verdict, ranks=[1, 2, 3])
        return sorted(candidate.fingerprint for candidate in candidates(msgspec.structs.replace(analysis, verdict=verdict)))

    # The host comes from each rank's result, and from the finding for the worst rank.
    assert len(of(1)) == len(of(2)) == 3


def test_rotating_straggler_is_one_alert() -> None:
    analysis = analysis_of(1)
    finding = msgspec.structs.replace(analysis.findings[0], rank=None, host=None, pattern="rotating")
    verdict = msgspec.structs.replace(analysis.verdict, rank=None, ranks=[0, 1, 2, 3], pattern="rotating")
    [candidate] = candidates(msgspec.structs.replace(analysis, findings=[finding], verdict=verdict))
    assert "rank" not in candidate.alert.labels


# The run's own past ------------------------------------------------------------------------------------------------------------


def noisy(*levels: tuple[float, int], seed: int = 1) -> list[float]:
    """Return noisy step times in seconds: for each level, ``count`` steps around it."""
    rng = np.random.default_rng(seed)
    return [level * float(noise) for level, count in levels for noise in np.exp(rng.normal(0, 0.02, count))]


def regressions(past: Any) -> list[Candidate] | None:
    gpus = ConditionLoss(gpu_hours=0, per_hour=4, price=2.0, currency="USD")
    return Regressions(run=RUN, subject=SUBJECT, gpus=gpus).candidates(past, at_least=0.1)


def test_lasting_step_regression_is_reported_with_the_cost() -> None:
    [candidate] = regressions(past_of(noisy((0.1, 300), (0.125, 100)))) or []
    assert candidate.name == "TrainingStepRegression"
    annotations = candidate.alert.annotations
    assert annotations["summary"].startswith("Steps take 12")
    assert annotations["summary"].endswith("since step 300.")
    assert annotations["slowdown"].startswith("1.2")
    assert float(annotations["gpu_hours_lost_per_hour"]) == pytest.approx(0.8, rel=0.05)
    assert "rankscope analyze '/runs/bob'\"'\"'s llama'" in annotations["next"]


@pytest.mark.parametrize(
    "levels",
    [
        [(0.1, 400)],
        [(0.1, 300), (0.125, 10)],
        [(0.1, 300), (0.125, 60), (0.1, 60)],
        [(0.1, 300), (0.104, 100)],
        [(0.2, 100), (0.1, 300)],
        [(10.0, 300), (12.5, 2000)],
    ],
    ids=["nothing", "a moment", "over again", "too little", "faster", "since more than six hours"],
)
def test_steps_without_a_regression_raise_no_alert(levels: list[tuple[float, int]]) -> None:
    assert regressions(past_of(noisy(*levels))) == []


def test_few_steps_give_no_regression_result() -> None:
    assert regressions(past_of(noisy((0.1, 40)))) is None


def test_checkpoints_and_profiled_steps_are_no_regression() -> None:
    steps = noisy((0.1, 400))
    for step in range(200, 400, 3):
        steps[step] *= 5
    assert names(regressions(past_of(steps, tags={"checkpoint": list(range(200, 400, 3))}))) == []


def test_fewer_tokens_per_step_is_a_throughput_loss() -> None:
    tokens = [1000.0] * 300 + [700.0] * 100
    [candidate] = regressions(past_of(noisy((0.1, 400)), tokens=tokens)) or []
    assert candidate.name == "TrainingThroughputLoss"
    assert candidate.alert.annotations["summary"].startswith("30% fewer tokens a second")
    # Longer steps are reported as a step regression, not as a throughput loss too
    slower = regressions(past_of(noisy((0.1, 300), (0.13, 100)), tokens=[1000.0] * 400))
    assert names(slower) == ["TrainingStepRegression"]


def test_a_slower_run_is_reported_even_if_its_ranks_cannot_be_judged(make_world: MakeWorld) -> None:
    world = make_world(slow=None)
    world.steps = past_of(noisy((0.1, 300), (0.125, 100)))
    world.advance(analysis_of(kind="insufficient_data"), times=2)
    assert world.firing() == ["TrainingStepRegression"]
    world.steps = past_of(noisy((0.1, 300), (0.125, 100), (0.1, 100)))
    world.advance(times=2)
    assert world.event_names() == ["firing", "resolved"]


# Costs that grow ---------------------------------------------------------------------------------------------------------------


def test_lost_gpu_hours_accumulate_while_the_alert_fires() -> None:
    loss = ConditionLoss(gpu_hours=1.0, per_hour=6.0, price=2.0, currency="USD")
    candidate = SUBJECT.candidate(HANG, {"summary": "s"}, loss=loss)
    ledger = AlertLedger()
    for minutes in (0, 10, 20, 20 + 24 * 60):  # the last gap is as of a clock that was set, or a watcher that was stopped
        ledger.update("x", [candidate], now_unix_ns=10**18 + minutes * HOUR_NS // 60, policy=FiringPolicy(1, 1))
        ledger = msgspec.json.decode(msgspec.json.encode(ledger), type=AlertLedger)
    [entry] = ledger.entries
    assert entry.gpu_hours_lost == pytest.approx(1 + 2 + 6)
    assert (entry.alert.annotations["gpu_hours_lost"], entry.alert.annotations["cost"]) == ("9", "18.00 USD")


# Very many ranks ---------------------------------------------------------------------------------------------------------------


def of_ranks(count: int) -> list[Candidate]:
    return [SUBJECT.candidate(STRAGGLER, {"summary": f"Rank {rank}."}, rank=rank, host=f"n{rank // 8}") for rank in range(count)]


def test_alerts_of_many_ranks_are_merged() -> None:
    assert len(merge_shared(of_ranks(MOST_RANKS))) == MOST_RANKS
    other = SUBJECT.candidate(HANG, {"summary": "s"})
    [result, together] = merge_shared([other, *of_ranks(MOST_RANKS + 1)])
    assert result is other
    assert "rank" not in together.alert.labels
    assert together.alert.annotations["summary"].startswith("33 ranks on 5 hosts: 0, 1, 2, 3, 4, 5, 6, 7 and 25 more. ")
    assert together.alert.annotations["ranks"].split(",") == [str(rank) for rank in range(33)]


def test_merging_has_hysteresis() -> None:
    assert len(merge_shared(of_ranks(FEW_RANKS + 1), merged_names=["TrainingStraggler"])) == 1
    assert len(merge_shared(of_ranks(FEW_RANKS), merged_names=["TrainingStraggler"])) == FEW_RANKS


def test_merged_alert_stays_while_a_rank_is_unknown() -> None:
    ledger = AlertLedger()
    ledger.update("x", of_ranks(40), now_unix_ns=1, policy=FiringPolicy(1, 1))
    assert ledger.names("x", shared_only=True) == {"TrainingStraggler"}
    [entry] = ledger.entries
    ledger.update("x", [], now_unix_ns=2, policy=FiringPolicy(1, 1), unknown=[17])
    assert entry.ends_at_unix_ns is None
    ledger.update("x", [], now_unix_ns=3, policy=FiringPolicy(1, 1), unknown=[41])
    assert entry.ends_at_unix_ns == 3


def test_alert_fires_for_a_minimum_time() -> None:
    ledger, policy = AlertLedger(), FiringPolicy(1, 1, least_firing_s=60)
    result = of_ranks(1)
    ledger.update("x", result, now_unix_ns=0, policy=policy)
    [entry] = ledger.entries
    for second in range(5, 60, 5):
        ledger.update("x", [], now_unix_ns=second * 10**9, policy=policy)
        assert entry.track.state == "firing"
    ledger.update("x", [], now_unix_ns=60 * 10**9, policy=policy)
    assert entry.ends_at_unix_ns == 60 * 10**9


# Pace of analyses --------------------------------------------------------------------------------------------------------------


def test_expensive_analysis_runs_less_often() -> None:
    pace = Pace(0.05, 0.2)
    assert pace.due(RUN, 0, runs=1, pending=False)
    pace.analysed(RUN, 0, 100.0)  # the first analysis reads everything, and does not count
    assert pace.due(RUN, 5, runs=1, pending=False)
    pace.analysed(RUN, 5, 1.0)
    assert not pace.due(RUN, 24, runs=1, pending=False)
    assert pace.due(RUN, 25, runs=1, pending=False)
    assert not pace.due(RUN, 25, runs=3, pending=False)
    assert pace.due(RUN, 10, runs=1, pending=True)
    pace.analysed(RUN, 25, 1000.0)
    assert pace.due(RUN, 25 + LONGEST_PAUSE_S, runs=9, pending=False)


def test_saved_ledger_is_plain_json(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(analysis_of(2), times=2)
    [entry] = json.loads(world.saved[-1])["entries"]
    assert (entry["logged"], entry["finding"]) == ("firing", None)


def test_firing_alert_keeps_the_text_while_details_are_pending() -> None:
    complete = SUBJECT.candidate(HANG, {"summary": "s", "culprit": "2"})
    ledger, policy = AlertLedger(), FiringPolicy(1, 1)
    ledger.update("run", [complete], now_unix_ns=1, policy=policy)

    incomplete = SUBJECT.candidate(HANG, {"summary": "s"})
    ledger.update("run", [incomplete], now_unix_ns=2, policy=policy, unconfirmed={HANG.alertname})

    assert [(entry.track.state, entry.alert) for entry in ledger.entries] == [("firing", complete.alert)]

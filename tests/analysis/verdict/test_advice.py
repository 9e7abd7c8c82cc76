"""Advice: rows of a table, each given only with its evidence, each bounded by a part of the step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.conftest import plan_for
from tests.analysis.verdict.test_next_actions import SUBJECT, WHOLE_HOST

from rankscope.analysis.collectives.figures import Figure
from rankscope.analysis.costs.cost_figures import derived
from rankscope.analysis.engine import analyze
from rankscope.analysis.inference.reasons.physical import PHYSICAL
from rankscope.analysis.report.terminal import render_text
from rankscope.analysis.result.analysis import Verdict
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.result.costs import Advice
from rankscope.analysis.verdict.advice import AdviceSubject, figures_of_verdict, next_actions, recommend
from rankscope.analysis.verdict.advice_table import TABLE

Synthetic = Callable[..., Any]

BASIC = {
    f"{group}.{name}" if group else name
    for group, members in {
        "": ("accelerated", "hosts", "mfu", "overlap_ratio"),
        "share": (
            *("input", "copies", "compute", "host", "exposed_communication", "idle"),
            *("between_steps", "stalled", "run_queue", "gc", "evaluation", "checkpoint"),
        ),
        "kernels": ("float32_share", "recompute_share"),
        "collectives": ("median_bytes", "messages", "sharding_share", "all_reduce_share"),
        "exposed": ("gradients", "shards", "activations", "tokens", "stages"),
        "memory": ("peak_share", "fragmentation", "retries", "device_leak", "host_leak"),
        "pipeline": ("schedule", "imbalance"),
        "straggler": (
            *("input", "compute", "host", "gc", "imbalance", "checkpoint", "evaluation"),
            *("cpu_contention", "enlarged_batches", "memory_pressure", "hardware"),
            *("communication", "device_unseen", "kernels", "processor", "profiler", "additional_work", "no_workers"),
        ),
    }.items()
    for name in members
}
"""Figures that an analysis may contain."""

some_figures = st.dictionaries(st.sampled_from(sorted(BASIC)), st.floats(0, 1).map(Figure))


RECOMMENDED = [row for row in TABLE if row.name]
SHORT = {"memory.peak_share": 0.95, "memory.retries": 3.0}
"""Figures of a device whose memory is short."""
DDP = {"share.exposed_communication": 0.3, "exposed.gradients": 0.9, "collectives.sharding_share": 0.0}
FSDP = {"share.exposed_communication": 0.3, "exposed.shards": 0.9}


def advise(known: dict[str, float], reason: str | None = None, subject: AdviceSubject = SUBJECT) -> list[Advice]:
    figures = {name: Figure(value) for name, value in known.items()}
    return recommend(figures, subject, step_us=1000.0, reason=reason)


def names(known: dict[str, float], reason: str | None = None, subject: AdviceSubject = SUBJECT) -> set[str]:
    return {recommendation.name for recommendation in advise(known, reason, subject)}


@given(known=some_figures)
def test_advice_has_complete_evidence_and_a_gain_within_the_step(known: dict[str, Figure]) -> None:
    recommendations = recommend(known, AdviceSubject(ranks=[1]), step_us=1000.0)
    have = derived(known)
    gains = [-1.0 if item.gain_share_at_most is None else item.gain_share_at_most for item in recommendations]
    assert gains == sorted(gains, reverse=True)
    for item in recommendations:
        assert item.evidence
        assert all(have[evidence.name].value == evidence.value for evidence in item.evidence)
        assert item.gain_share_at_most is None or 0 <= item.gain_share_at_most <= 1
        assert (item.gain_us_at_most is None) == (item.gain_formula is None)
        assert "{" not in item.action


@given(known=some_figures, less=st.data())
def test_unknown_figures_lead_to_no_further_advice(known: dict[str, Figure], less: st.DataObject) -> None:
    before = {recommendation.name for recommendation in recommend(known, SUBJECT, step_us=1.0)}
    gone = less.draw(st.sampled_from(sorted(known))) if known else None
    after = {
        recommendation.name for recommendation in recommend({k: v for k, v in known.items() if k != gone}, SUBJECT, step_us=1.0)
    }
    # Without the host's share, advice only asks why the device idles
    assert after - before <= {"see_why_idle"}


def test_advice_rows_have_unique_names_and_existing_figures() -> None:
    assert len({(row.name, row.reason) for row in RECOMMENDED}) == len(RECOMMENDED)
    whole = derived({name: Figure(1.0) for name in BASIC}).keys() | derived({"share.idle": Figure(1.0)}).keys()
    for row in RECOMMENDED:
        figures = {condition.figure for condition in row.when}
        assert figures
        assert figures <= whole
        # A bound is known whenever the row is given
        assert {bound.figure for bound in (row.bound, row.cost) if bound is not None} <= figures


def test_advice_table_has_no_unreachable_row() -> None:
    # The first row that matches is given, so a row must not come after another that matches whatever it does
    rows = [row for row in TABLE if row.kind is not None]
    for index, row in enumerate(rows):
        before = [item for item in rows[:index] if item.kind == row.kind]
        wider = [item for item in before if row.whole_host or not item.whole_host]
        assert not any(item.cause in (None, row.cause) and item.reason in (None, row.reason) for item in wider), row


def test_next_actions_and_recommendations_use_the_same_sentences(synthetic: Synthetic) -> None:
    plan = plan_for(2, us=60_000)
    analysis = analyze([synthetic(device_kind="cpu", noise=0.005, plan=plan).write()])
    (advice,) = [advice_item for advice_item in analysis.advice if advice_item.name == "stalls"]
    assert advice.action in ". ".join(analysis.verdict.next)
    # And a terminal shows each of them once
    output = render_text(analysis, width=200)
    assert [output.count(action) for action in analysis.verdict.next] == [1] * len(analysis.verdict.next)
    # What it saves is at least what the verdict promises
    assert analysis.verdict.saves is not None
    assert advice.gain_share_at_most is not None
    assert advice.gain_share_at_most >= analysis.verdict.saves[1]


@pytest.mark.parametrize("cause", ["compute", "unknown", "communication", "host", "input"])
@pytest.mark.parametrize("reason", [None, "thermal_throttle", "power_brake", "link", "device_unseen"])
def test_host_at_fault_gets_advice_for_the_host(cause: Cause, reason: str | None) -> None:
    output = next_actions("straggler", WHOLE_HOST, cause=cause, reason=reason)
    assert any("n1" in action for action in output)
    assert not any(re.search(r"\brank [4-7]\b", action) for action in output)
    assert any("scontrol update NodeName=n1 " in action and "kubectl drain n1 " in action for action in output) == (
        cause not in ("host", "input") or reason is not None
    )
    for finding in advise({"straggler.compute": 0.2, "straggler.hardware": 0.2}, reason, WHOLE_HOST):
        assert finding.name in ("compare_hosts", "mend_host")


def test_uneven_work_leads_to_advice_on_tokens_and_experts() -> None:
    (ones,) = [recommendation for recommendation in advise({"straggler.imbalance": 0.2}) if recommendation.name == "balance_work"]
    assert all(word in ones.action for word in ("tokens", "pack", "experts"))


def test_slow_transfers_of_a_rank_lead_to_its_links() -> None:
    output = next_actions("straggler", AdviceSubject("run", [3], {3: "n1", 0: "n0"}), cause="communication")
    assert "rank 3 on host n1" in output[0]
    assert "nvlink -e" in output[0]
    assert "check_links" in names({"straggler.communication": 0.2})


@pytest.mark.parametrize("extra", [{}, {"cpu": True}])
def test_unprofiled_device_of_a_slow_rank_leads_to_a_capture(synthetic: Synthetic, extra: dict[str, Any]) -> None:
    plan = plan_for(2, phase="forward", us=60_000, **extra)
    analysis = analyze([synthetic(noise=0.005, plan=plan).write()])
    assert analysis.verdict.rank == 2
    assert "rankscope capture" in analysis.verdict.next[0]
    assert any("nvidia-smi" in action for action in analysis.verdict.next)
    assert analysis.advice[0].name == "see_device"
    assert "py-spy" not in " ".join([*analysis.verdict.next, *(advice_item.action for advice_item in analysis.advice)])


def test_slow_host_code_between_steps_on_a_device_leads_to_stalls(synthetic: Synthetic) -> None:
    plan = plan_for(2, phase="between_steps", us=60_000)
    analysis = analyze([synthetic(noise=0.005, plan=plan).write()])
    assert analysis.advice[0].name == "stalls"


def test_every_advice_row_is_reachable() -> None:
    full = dict.fromkeys(BASIC, 1.0) | {"collectives.messages": 8.0}
    low = dict.fromkeys(("overlap_ratio", "kernels.float32_share", "mfu", "memory.peak_share", "collectives.sharding_share"), 0.0)
    seen = names(full | {"hosts": 2}) | names(full | low) | names(full | {"overlap_ratio": 0.0})
    seen |= names({"share.idle": 1.0, "accelerated": 1.0}) | names(full | {"collectives.sharding_share": 0.0})
    seen |= names(full | {"memory.peak_share": 0.0}) | names(full | {"kernels.recompute_share": 0.0})
    seen |= names(full, "memory_pressure") | names(full, "cpu_contention") | names(full, "xid")
    seen |= names(full, "device_unseen") | names(full, "enlarged_batches") | names(full, "few_kernels")
    seen |= names(full, "processor") | names(full, "profiler") | names(full, "more_calls")
    seen |= names(full, "no_workers") | names(full, "no_workers", WHOLE_HOST)
    seen |= names(full, "device_unseen", WHOLE_HOST) | names(full, "power_brake", WHOLE_HOST)
    assert seen == {row.name for row in RECOMMENDED}


@pytest.mark.parametrize(
    ("known", "name", "gain"),
    [
        ({"share.input": 0.18}, "data_loading", 0.18),
        ({"share.compute": 0.8, "kernels.float32_share": 0.5, "accelerated": 1}, "mixed_precision", 0.8),
        (DDP | {"collectives.median_bytes": 4096, "collectives.messages": 50}, "bucket_size", 0.3),
        (FSDP | {"collectives.median_bytes": 4096, "collectives.messages": 50}, "wrap_larger", 0.3),
        (DDP, "gradient_accumulation", 0.15),
        ({"share.exposed_communication": 0.3, "exposed.activations": 0.7}, "tensor_parallel", 0.3),
        ({"share.exposed_communication": 0.3, "exposed.tokens": 0.7}, "experts", 0.3),
        ({"share.exposed_communication": 0.3, "exposed.stages": 0.7}, "stage_transfers", 0.3),
        ({"share.exposed_communication": 0.2, "share.host": 0.1, "memory.peak_share": 0.4}, "batch_size", 0.15),
        (DDP | {"overlap_ratio": 0.1}, "overlap", 0.3),
        (FSDP | {"overlap_ratio": 0.1}, "prefetch_shards", 0.3),
        (FSDP | {"memory.peak_share": 0.4}, "keep_parameters", 0.3),
        ({"share.exposed_communication": 0.3, "hosts": 4}, "interconnect", 0.3),
        ({"pipeline.schedule": 0.3}, "micro_batches", 0.15),
        ({"share.gc": 0.04}, "gc_policy", 0.04),
        ({"straggler.compute": 0.2}, "compare_devices", 0.2),
        (SHORT | {"kernels.recompute_share": 0.0, "share.compute": 0.6}, "activation_checkpointing", None),
        (
            SHORT | {"collectives.all_reduce_share": 1.0, "collectives.sharding_share": 0.0},
            "shard",
            None,
        ),
        ({"memory.retries": 2}, "allocator", None),
        ({"memory.fragmentation": 0.3, "memory.retries": 1}, "fragmentation", None),
    ],
)
def test_evidence_leads_to_advice_with_a_bound(known: dict[str, float], name: str, gain: float | None) -> None:
    (ones,) = [recommendation for recommendation in advise(known) if recommendation.name == name]
    assert ones.gain_share_at_most == (None if gain is None else pytest.approx(gain))
    assert ones.gain_us_at_most == (None if gain is None else pytest.approx(1000 * gain))
    assert ones.check.startswith("rankscope compare runs/now NEW_RUN: ")
    # And every condition counts: without any one of its figures there is no such advice
    for missing in known:
        assert name not in names({other: value for other, value in known.items() if other != missing})


@pytest.mark.parametrize(
    ("figure", "reason", "name"),
    [
        ("hardware", "xid", "mend_hardware"),
        ("hardware", "link", "mend_hardware"),
        ("memory_pressure", "memory_pressure", "memory_of_rank"),
        ("cpu_contention", "cpu_contention", "cpus_of_rank"),
        ("kernels", "few_kernels", "kernels_of_rank"),
        ("kernels", "other_kernels", "kernels_of_rank"),
        ("device_unseen", "device_unseen", "see_device"),
        ("processor", "processor", "compare_processors"),
        ("profiler", "profiler", "own_profiler"),
        ("additional_work", "more_calls", "additional_work"),
        ("additional_work", "other_code", "additional_work"),
    ],
)
def test_reason_of_a_slowness_leads_to_one_remedy(figure: str, reason: str, name: str) -> None:
    (advice,) = advise({f"straggler.{figure}": 0.2}, reason)
    assert (advice.name, advice.gain_share_at_most) == (name, 0.2)
    assert advise({f"straggler.{figure}": 0.2}) == []


@pytest.mark.parametrize("kind", ["shards", "activations", "tokens", "stages"])
def test_bucket_advice_needs_exposed_ddp_gradients(kind: str) -> None:
    small = {"collectives.median_bytes": 4096, "collectives.messages": 50, "overlap_ratio": 0.1}
    by_key = {"share.exposed_communication": 0.3, f"exposed.{kind}": 0.9, "collectives.sharding_share": 0.0}
    assert any("bucket_cap_mb" in recommendation.action for recommendation in advise(DDP | small))
    assert not any("bucket_cap_mb" in recommendation.action for recommendation in advise(by_key | small))
    hybrid = DDP | small | {"collectives.sharding_share": 0.3}
    assert not any(
        "bucket_cap_mb" in recommendation.action or "no_sync" in recommendation.action for recommendation in advise(hybrid)
    )


def test_checkpointing_advice_states_its_cost() -> None:
    result = SHORT | {"kernels.recompute_share": 0.0, "share.compute": 0.6}
    (ones,) = [recommendation for recommendation in advise(result) if recommendation.name == "activation_checkpointing"]
    assert ones.cost_share_at_most == pytest.approx(0.2)


def test_full_device_without_failed_allocations_gets_no_advice() -> None:
    full = {"memory.peak_share": 0.97, "memory.fragmentation": 0.3, "memory.retries": 0, "share.compute": 0.6}
    assert names(full | {"kernels.recompute_share": 0.0, "collectives.all_reduce_share": 1.0}) == set()


def test_checkpointing_already_in_use_is_not_advised() -> None:
    assert "activation_checkpointing" not in names(SHORT | {"kernels.recompute_share": 0.2, "share.compute": 0.6})


def test_advice_about_a_rank_names_the_rank() -> None:
    (advice,) = advise({"straggler.compute": 0.2})
    assert "rank 3 on host n1" in advice.action


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"phase": "data", "us": 60_000}, "data_loading_of_rank"),
        ({"phase": "forward", "us": 60_000}, "stalls"),
        ({"phase": "forward", "us": 60_000, "cpu": True}, "compare_processors"),
        ({"phase": "forward", "us": 60_000, "run_queue": True}, "cpus_of_rank"),
        ({"phase": "backward", "us": 60_000, "cpu": True, "elements": 2.0}, "balance_work"),
        ({"phase": "forward", "us": 60_000, "cpu": True, "gc": True}, "gc_policy_of_rank"),
        ({"phase": "between_steps", "us": 60_000, "tags": ["checkpoint"]}, "checkpoints"),
        ({"phase": "between_steps", "us": 60_000, "tags": ["eval"]}, "evaluation"),
    ],
)
def test_first_advice_for_a_straggler_addresses_its_cause(synthetic: Synthetic, extra: dict[str, Any], name: str) -> None:
    run = synthetic(device_kind="cpu", noise=0.005, plan=lambda rank, _step: extra if rank == 2 else None)
    analysis = analyze([run.write()])
    first = analysis.advice[0]
    assert first.name == name
    assert first.gain_share_at_most == pytest.approx(60 / 164, abs=0.02)
    assert first.evidence[0].source == "steps"


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"phase": "data", "us": 60_000}, "data_loading"),
        ({"phase": "between_steps", "us": 60_000}, "between_steps"),
        ({"phase": "forward", "us": 60_000}, "stalls_everywhere"),
        ({"phase": "forward", "us": 60_000, "run_queue": True}, "cpus"),
        ({"phase": "forward", "us": 60_000, "cpu": True, "gc": True}, "gc_policy"),
    ],
)
def test_common_slowness_of_all_ranks_is_the_first_advice(synthetic: Synthetic, extra: dict[str, Any], name: str) -> None:
    analysis = analyze([synthetic(device_kind="cpu", noise=0.005, plan=lambda _rank, _step: extra).write()])
    assert [advice_item.name for advice_item in analysis.advice] == [name]
    assert analysis.advice[0].gain_share_at_most == pytest.approx(62 / 164, abs=0.03)


def test_healthy_run_gets_no_advice(synthetic: Synthetic) -> None:
    analysis = analyze([synthetic(device_kind="cpu").write()])
    assert analysis.advice == []
    assert "what to try" not in render_text(analysis)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (None, "straggler.host"),
        ("cpu_contention", "straggler.cpu_contention"),
        ("memory_pressure", "straggler.memory_pressure"),
        ("thermal_throttle", "straggler.hardware"),
        ("xid", "straggler.hardware"),
        ("link", "straggler.hardware"),
        ("device_unseen", "straggler.device_unseen"),
    ],
)
def test_explanation_of_a_straggler_selects_the_remedy(reason: str | None, name: str) -> None:
    verdict = Verdict(kind="straggler", cause="host", slowdown=1.25, summary="")
    assert {key: figure.value for key, figure in figures_of_verdict(verdict, None, reason).items()} == {name: pytest.approx(0.2)}


def test_physical_reasons_lead_to_hardware_or_memory_remedies() -> None:
    for row in PHYSICAL:
        verdict = Verdict(kind="straggler", cause="host", slowdown=1.25, summary="")
        assert figures_of_verdict(verdict, None, row.reason).keys() <= {"straggler.hardware", "straggler.memory_pressure"}


def test_every_advice_row_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "analysis-advice.md").read_text()
    for row in RECOMMENDED:
        signs = {">=": "≥", "<": "<"}
        evidence = ", ".join(f"{when.figure} {signs[when.comparison]} {when.limit:g}" for when in row.when)
        assert f"| `{row.name}` | {evidence} | {'—' if row.bound is None else row.bound.formula}" in page

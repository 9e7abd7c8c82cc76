"""Next actions of a verdict: which host is left out or drained, what is checked there, and what limits communication."""

from __future__ import annotations

import re

import pytest

from rankscope.analysis.collectives.figures import Figure
from rankscope.analysis.inference.reasons.physical import PHYSICAL
from rankscope.analysis.result.cause import Cause
from rankscope.analysis.verdict.advice import AdviceSubject, next_actions
from rankscope.analysis.verdict.bottleneck import exposed_transfer
from rankscope.analysis.verdict.builders import Setting, no_straggler_verdict

SUBJECT = AdviceSubject("runs/now", [3], {3: "n1", 0: "n0"})
ON_HOSTS = {rank: f"n{rank // 4}" for rank in range(12)}
WHOLE_HOST = AdviceSubject("runs/now", [4, 5, 6, 7], ON_HOSTS, whole_hosts=["n1"])


@pytest.mark.parametrize(
    ("hosts", "without"), [({}, False), ({3: "n1"}, False), ({3: "n1", 0: "n1"}, False), ({3: "n1", 0: "n0"}, True)]
)
def test_host_is_excluded_only_if_other_hosts_remain(hosts: dict[int, str], without: bool) -> None:
    output = next_actions("straggler", AdviceSubject("run", [3], hosts), cause="compute")
    assert any("without n1" in action for action in output) == without


def test_slow_ranks_on_several_hosts_exclude_no_host() -> None:
    hosts = {0: "n0", 3: "n1", 5: "n2"}
    output = next_actions("straggler", AdviceSubject("run", [3, 5], hosts), cause="compute")
    assert not any("without" in action for action in output)


@pytest.mark.parametrize("cause", ["imbalance", "input", "unknown"])
def test_imbalance_input_or_unknown_cause_excludes_no_host(cause: Cause) -> None:
    output = " ".join(next_actions("straggler", AdviceSubject("run", [3], {3: "n1", 0: "n0"}), cause=cause))
    assert output
    assert not re.search("without|replace|DRAIN|drain", output)


@pytest.mark.parametrize("reason", ["power_cap", "clock"])
def test_wrong_setting_does_not_drain_its_host(reason: str) -> None:
    output = next_actions("straggler", AdviceSubject("run", [3], {3: "n1", 0: "n0"}), cause="compute", reason=reason)
    assert not any("DRAIN" in action for action in output)


@pytest.mark.parametrize(("reason", "word"), [("thermal_throttle", "fans"), ("power_brake", "power supplies"), ("link", "PCIe")])
def test_reason_of_a_slow_host_selects_the_check(reason: str, word: str) -> None:
    assert word in next_actions("straggler", WHOLE_HOST, cause="compute", reason=reason)[0]


def test_unknown_reason_checks_power_cooling_links_and_nics() -> None:
    output = " ".join(next_actions("straggler", WHOLE_HOST, cause="unknown"))
    assert all(word in output for word in ("power", "cooling", "NICs", "PCIe", "rankscope exporter"))


@pytest.mark.parametrize("cause", ["imbalance", "gc", "checkpoint"])
def test_slow_script_on_a_host_does_not_drain_the_host(cause: Cause) -> None:
    output = next_actions("straggler", WHOLE_HOST, cause=cause)
    assert output
    assert "DRAIN" not in str(output)


def test_several_hosts_are_drained_together_but_never_the_whole_job() -> None:
    two = AdviceSubject("run", [*range(8)], ON_HOSTS, whole_hosts=["n0", "n1"])
    output = " ".join(next_actions("straggler", two, cause="compute"))
    assert "NodeName=n0,n1 " in output
    assert "kubectl drain n0 n1 " in output
    every = AdviceSubject("run", [*range(12)], ON_HOSTS, whole_hosts=["n0", "n1", "n2"])
    assert "DRAIN" not in str(next_actions("straggler", every, cause="compute"))


def test_host_name_is_not_executed_as_a_command() -> None:
    evil = AdviceSubject("run", [1], {0: "n0", 1: "n1; reboot"}, whole_hosts=["n1; reboot"])
    assert not any("scontrol" in action for action in next_actions("straggler", evil, cause="compute"))


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("gradients", "bucket_cap_mb"),
        ("shards", "forward_prefetch"),
        ("activations", "tensor"),
        ("tokens", "experts"),
        ("stages", "micro-batches"),
    ],
)
def test_exposed_transfer_selects_the_next_actions(kind: str, word: str) -> None:
    figures = {f"exposed.{kind}": Figure(0.8), "collectives.sharding_share": Figure(0.0)}
    assert word in next_actions("communication_bound", SUBJECT, reason=exposed_transfer(figures))[0]


def test_communication_verdict_advises_on_the_exposed_transfer() -> None:
    shares = {"share.exposed_communication": Figure(0.5, source="windows"), "exposed.activations": Figure(0.8)}
    setting = Setting(source="windows", world_size=8, steps=(0, 9), step_count=9, unit="step", accelerated=True, run="r")
    verdict, _ = no_straggler_verdict(shares, setting, confidence=None, why="No rank is slow")
    assert verdict.kind == "communication_bound"
    assert "tensor-parallel" in verdict.next[0]


def test_transfers_without_a_dominant_kind_get_no_specific_remedy() -> None:
    figures = {"exposed.gradients": Figure(0.8), "collectives.sharding_share": Figure(0.2)}
    assert exposed_transfer(figures) is exposed_transfer({}) is exposed_transfer({"exposed.shards": Figure(0.4)}) is None
    assert not any("accumulation" in action for action in next_actions("communication_bound", SUBJECT))


def test_compute_bound_step_is_no_fault() -> None:
    output = next_actions("compute_bound", SUBJECT)
    assert "well-tuned" in output[0]
    assert not any("torch.compile" in action for action in output)


@pytest.mark.parametrize("host", ["n1; rm -rf /", "$(reboot)", "-x", "a b", ""])
def test_host_name_with_shell_characters_is_in_no_command(host: str) -> None:
    actions = next_actions("straggler", AdviceSubject("r", [1], {1: host, 0: "n0"}), cause="compute", reason="xid")
    assert not any("scontrol" in action for action in actions)


@pytest.mark.parametrize("hosts", [{1: "n1"}, {1: "n1", 0: "n1"}])
def test_only_host_is_not_drained(hosts: dict[int, str]) -> None:
    for row in PHYSICAL:
        actions = next_actions("straggler", AdviceSubject("r", [1], hosts), cause="compute", reason=row.reason)
        assert actions
        assert not any("DRAIN" in action for action in actions)

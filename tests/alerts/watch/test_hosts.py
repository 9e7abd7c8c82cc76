"""Hosts at fault as a whole: one alert with the host, not one per rank."""

from __future__ import annotations

import msgspec
from tests.alerts.watch.watched_world import MakeWorld, World, analysis_of

from rankscope.alerts.deliver.templates.alert_texts import alert_texts
from rankscope.alerts.payload import PayloadAlert, payload_alert
from rankscope.alerts.receive.verdicts.run_verdict import run_verdict_of, verdict_annotations
from rankscope.alerts.watch.conditions.candidate import Candidate, ConditionLoss, Subject
from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.alerts.watch.conditions.shared_alerts import FEW_RANKS, MOST_RANKS, merge_shared
from rankscope.alerts.watch.ledger import AlertLedger, FiringPolicy
from rankscope.alerts.watcher_alerts import STRAGGLER
from rankscope.analysis.result.analysis import Analysis

SUBJECT = Subject(run_id="llama-1")


def of_host(*hosts: str, single: int | None = None) -> Analysis:
    """Return an analysis in which whole hosts of 4 ranks are at fault (``node0``: ranks 0 to 3, …), and one rank of another."""
    result = analysis_of(0)
    rows = [msgspec.structs.replace(result.ranks[0], rank=rank, host=f"node{rank // 4}") for rank in range(16)]
    findings = []
    for host in hosts:
        first = 4 * int(host.removeprefix("node"))
        ranks = [*range(first, first + 4)]
        summary = f"The ranks of {host} make the others wait."
        findings.append(
            msgspec.structs.replace(result.findings[0], rank=first + 1, ranks=ranks, host=host, whole_host=True, summary=summary)
        )
    if single is not None:
        host = f"node{single // 4}"
        findings.append(msgspec.structs.replace(result.findings[0], rank=single, ranks=[single], host=host, summary="One rank."))
    ranks = [rank for finding in findings for rank in finding.ranks]
    verdict = msgspec.structs.replace(
        result.verdict, rank=findings[0].rank, ranks=ranks, hosts=list(hosts), summary=findings[0].summary, next=["Drain node0"]
    )
    return msgspec.structs.replace(result, ranks=rows, verdict=verdict, findings=findings)


def of_ranks(*ranks: int) -> Analysis:
    result = analysis_of(*ranks)
    verdict = msgspec.structs.replace(result.verdict, ranks=list(ranks))
    findings = [msgspec.structs.replace(finding, host=f"node{(finding.rank or 0) // 4}") for finding in result.findings]
    return msgspec.structs.replace(result, ranks=of_host("node0").ranks, verdict=verdict, findings=findings)


def labels(candidates: list[Candidate]) -> list[tuple[str, str]]:
    return [(item.alert.labels.get("rank", ""), item.alert.labels.get("host", "")) for item in candidates]


def heard(world: World) -> list[tuple[str, str, str]]:
    return [
        (notice.alert.status, notice.alert.labels.get("rank", ""), notice.alert.labels["host"])
        for call in world.receiver.calls
        for notice in call
    ]


def test_faulty_host_is_one_alert_that_lists_the_ranks() -> None:
    [candidate] = candidates(of_host("node0"))
    assert (candidate.alert.labels.get("rank"), candidate.alert.labels["host"]) == (None, "node0")
    assert candidate.alert.annotations["ranks"] == "0,1,2,3"
    assert "Drain node0" in candidate.alert.annotations["next"]
    assert "gpu_uuid" not in candidate.alert.annotations


def test_host_alert_identity_does_not_depend_on_the_worst_rank() -> None:
    first = of_host("node0")
    other = msgspec.structs.replace(first, findings=[msgspec.structs.replace(first.findings[0], rank=3, ranks=[1, 2, 3])])
    assert [candidate.fingerprint for candidate in candidates(first)] == [
        candidate.fingerprint for candidate in candidates(other)
    ]


def test_each_faulty_host_and_single_rank_has_one_alert() -> None:
    assert labels(candidates(of_host("node0", "node2", single=7))) == [
        ("", "node0"),
        ("", "node2"),
        ("7", "node1"),
    ]


def test_finding_about_several_ranks_has_one_alert_per_rank() -> None:
    result = of_ranks(5)
    several = msgspec.structs.replace(result, findings=[msgspec.structs.replace(result.findings[0], ranks=[5, 9])])
    assert [rank for rank, _ in labels(candidates(several))] == ["5", "9"]


def test_host_alert_fires_and_resolves_once(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(of_host("node0"), times=4)
    assert heard(world) == [("firing", "", "node0")]
    world.advance(analysis_of(), times=4)
    assert heard(world)[1:] == [("resolved", "", "node0")]
    assert "ended_because" not in world.receiver.calls[-1][0].alert.annotations
    assert world.watcher.ledger.entries == []


def test_rank_alerts_end_when_the_host_alert_fires(make_world: MakeWorld) -> None:
    world = make_world(fire_after=3)
    world.advance(of_ranks(1, 9), times=4)
    assert {rank for _, rank, _ in heard(world)} == {"1", "9"}
    world.receiver.calls.clear()
    # While the alert of the host is pending, that of its rank goes on: there is no gap.
    world.advance(of_host("node0", single=9), times=2)
    assert "TrainingStraggler 1" in world.firing()
    world.advance(of_host("node0", single=9), times=3)
    assert sorted((state, rank) for state, rank, _ in heard(world)) == [("firing", ""), ("resolved", "1")]
    [ended] = [notice for call in world.receiver.calls for notice in call if notice.alert.status == "resolved"]
    assert "node0" in ended.alert.annotations["ended_because"]
    assert world.firing() == ["TrainingStraggler", "TrainingStraggler 9"]


def test_rank_still_slow_after_the_host_alert_gets_a_rank_alert(make_world: MakeWorld) -> None:
    world = make_world()
    world.advance(of_host("node0"), times=3)
    world.advance(of_ranks(2), times=4)
    assert world.firing() == ["TrainingStraggler 2"]


def test_merged_rank_alert_ends_when_all_hosts_have_alerts() -> None:
    ledger, policy = AlertLedger(), FiringPolicy(1, 3)
    ranks = [SUBJECT.candidate(STRAGGLER, {"summary": "s"}, rank=rank, host=f"n{rank // 8}") for rank in range(40)]
    ledger.update("x", ranks, now_unix_ns=1, policy=policy)
    hosts = hosts_alerts(5)
    assert len(merge_shared(hosts, merged_names=ledger.names("x", shared_only=True))) == 5
    ledger.update("x", hosts, now_unix_ns=2, policy=policy)
    ended = [entry for entry in ledger.entries if entry.ends_at_unix_ns is not None]
    assert [entry.alert.labels.get("host") for entry in ended] == [None]
    assert "n0, n1, n2, n3, n4" in ended[0].ended_because


def hosts_alerts(count: int) -> list[Candidate]:
    return [
        SUBJECT.candidate(
            STRAGGLER,
            {"summary": f"Host n{at}.", "ranks": ",".join(str(8 * at + local) for local in range(8))},
            host=f"n{at}",
            loss=ConditionLoss(gpu_hours=at, per_hour=1),
        )
        for at in range(count)
    ]


def test_host_alerts_do_not_count_as_merged_alerts() -> None:
    ledger = AlertLedger()
    ledger.update("x", hosts_alerts(2), now_unix_ns=1, policy=FiringPolicy(1, 1))
    assert ledger.names("x") == {"TrainingStraggler"}
    assert ledger.names("x", shared_only=True) == set()


def test_alerts_of_many_hosts_are_merged() -> None:
    assert len(merge_shared(hosts_alerts(MOST_RANKS))) == MOST_RANKS
    [together] = merge_shared(hosts_alerts(MOST_RANKS + 1))
    assert not {"rank", "host"} & together.alert.labels.keys()
    assert len(together.alert.annotations["ranks"].split(",")) == 8 * 33
    assert len(together.alert.annotations["hosts"].split(",")) == 33
    assert len(merge_shared(hosts_alerts(FEW_RANKS), merged_names=["TrainingStraggler"])) == FEW_RANKS


def test_host_alert_stays_while_a_rank_is_unreadable() -> None:
    ledger = AlertLedger()
    ledger.update("x", hosts_alerts(1), now_unix_ns=1, policy=FiringPolicy(1, 1))
    ledger.update("x", [], now_unix_ns=2, policy=FiringPolicy(1, 1), unknown=[7])
    assert ledger.entries[0].ends_at_unix_ns is None
    ledger.update("x", [], now_unix_ns=3, policy=FiringPolicy(1, 1), unknown=[8])
    assert ledger.entries[0].ends_at_unix_ns == 3


def test_a_payload_and_a_message_name_the_host_and_its_ranks() -> None:
    [candidate] = candidates(of_host("node0"))
    sent = payload_alert(candidate.alert, starts_at_unix_ns=10**18)
    assert (sent.labels["host"], sent.annotations["ranks"]) == ("node0", "0,1,2,3")
    assert "rank" not in sent.labels
    shown = alert_texts(sent, 400)
    assert "host node0" in shown.heading
    assert "ranks 0, 1, 2, 3" in shown.heading


def test_receiver_explains_a_host_alert_by_the_host_verdict() -> None:
    run_verdict = run_verdict_of(of_host("node0", "node2"))
    output = verdict_annotations(run_verdict, {"alertname": "TrainingStraggler", "host": "node0"}, dashboard_url=None)
    assert (output["verdict_host"], "verdict_rank" in output, "gpu_uuid" in output) == ("node0, node2", False, False)
    assert output["next"] == "Drain node0"
    other = verdict_annotations(run_verdict, {"alertname": "TrainingStraggler", "host": "node3"}, dashboard_url=None)
    assert "verdict_host" not in other
    anonymous = PayloadAlert(status="firing", labels={"alertname": "x"}, annotations=output, starts_at="2023-11-14T22:13:20Z")
    assert "hosts node0, node2" in alert_texts(anonymous, 400).heading

"""Content of an alert: identity in labels, everything that changes in annotations."""

from __future__ import annotations

import msgspec
import pytest
from tests.alerts.watch.watched_world import analysis_of

from rankscope.alerts.alert import fingerprint, rfc3339
from rankscope.alerts.watch.conditions.candidate import Subject
from rankscope.alerts.watch.conditions.findings import candidates
from rankscope.analysis.result.analysis import Evidence
from rankscope.analysis.result.text import reading


def test_a_straggler_becomes_an_alert() -> None:
    run = Subject(run_id="llama-1", name="llama", dashboard_url="http://host:8050", runbook_url="https://wiki/x")
    [candidate] = candidates(analysis_of(2), run)
    assert candidate.alert.labels == {
        "alertname": "TrainingStraggler",
        "severity": "warning",
        "run_id": "llama-1",
        "run": "llama",
        "rank": "2",
        "host": "node1",
    }
    assert candidate.alert.annotations == {
        "summary": "Rank 2 makes the others wait.",
        "gpu_uuid": "GPU-2",
        "cause": "input",
        "phase": "data",
        "pattern": "fixed",
        "steps": "5-59",
        "slowdown": "1.50x",
        "gpu_hours_lost": "0.25",
        "gpu_hours_lost_per_hour": "1.33",
        "confidence": "96%",
        "evidence": "own excess 60 ms (per step)",
        "explained_by": "cpu_contention",
        "cost": "0.50 USD",
        "next": "look at the data loader",
        "runbook_url": "https://wiki/x/TrainingStraggler.md",
        "dashboard_url": "http://host:8050/run/llama-1?rank=2",
    }
    assert candidate.alert.generator_url == "http://host:8050/run/llama-1?rank=2"


def test_changed_numbers_keep_the_alert_fingerprint() -> None:
    first = analysis_of(2)
    finding = msgspec.structs.replace(first.findings[0], slowdown=9.0, confidence=0.5, cause="host", summary="other words")
    second = msgspec.structs.replace(first, findings=[finding])
    assert candidates(first)[0].fingerprint == candidates(second)[0].fingerprint
    assert candidates(first)[0].alert.annotations != candidates(second)[0].alert.annotations


def test_verdict_details_are_added_only_to_the_verdict_rank() -> None:
    about, other = candidates(analysis_of(2, 3))
    assert about.alert.annotations["cost"] == "0.50 USD"
    assert not {"cost", "explained_by"} & set(other.alert.annotations)
    # Without a server for runbooks, the next step is the command that prints the runbook
    assert other.alert.annotations["next"] == "rankscope alerts explain TrainingStraggler"


def test_unknown_facts_are_omitted() -> None:
    analysis = analysis_of(2)
    bare = msgspec.structs.replace(
        analysis.findings[0], rank=None, host=None, cause=None, confidence=None, slowdown=None, gpu_hours_lost=None, evidence=[]
    )
    [candidate] = candidates(msgspec.structs.replace(analysis, findings=[bare]))
    assert "rank" not in candidate.alert.labels
    assert "host" not in candidate.alert.labels
    assert not {"cause", "confidence", "slowdown", "gpu_hours_lost", "dashboard_url", "gpu_uuid"} & set(
        candidate.alert.annotations
    )
    assert all(candidate.alert.labels.values())
    assert all(candidate.alert.annotations.values())


def test_alert_of_simulated_gpus_is_marked_simulated() -> None:
    [candidate] = candidates(analysis_of(2, simulated=True))
    assert candidate.alert.annotations["summary"].startswith("[simulated GPUs] ")
    assert candidate.alert.annotations["simulated"] == "true"


@pytest.mark.parametrize(
    ("name", "value", "unit", "expected"),
    [
        ("imposed_wait", 77_280.0, "us", ("imposed wait", "77 ms")),
        ("phase_excess.data", -1_500_000.0, "us", ("phase excess data", "-1.5 s")),
        ("gc_excess", 0.0, "us", ("gc excess", "none")),
        ("last", 1.0, "ratio", ("last", "100%")),
        ("share.input", 0.004, "ratio", ("share input", "0.4%")),
        ("work_excess", 0.0, "ratio", ("work excess", "0%")),
        ("p_value", 0.0004998, "probability", ("p =", "0.0005")),
        ("steps_judged", 1_048.0, "steps", ("steps judged", "1,048")),
        ("temperature", 88.04, "celsius", ("temperature", "88 celsius")),
        ("power", 1_012.4, "watts", ("power", "1,012 watts")),
        ("hardware.sm_clock", 1.98e9, "hertz", ("hardware sm clock", "1,980 MHz")),
        ("sequence", 123_456.0, "number", ("sequence", "123,456")),
        ("slowdown", 2.0684, "x", ("slowdown", "2.07x")),
        ("gpu_hours_lost", 0.0026341, "GPU-hours", ("gpu hours lost", "0.00263 GPU-hours")),
    ],
)
def test_evidence_is_formatted_in_readable_units(name: str, value: float, unit: str, expected: tuple[str, str]) -> None:
    assert reading(Evidence(name=name, value=value, unit=unit)) == expected


@pytest.mark.parametrize("kind", ["balanced", "compute_bound", "pipeline_bubble"])
def test_findings_about_the_whole_job_raise_no_alert(kind: str) -> None:
    analysis = analysis_of(2)
    finding = msgspec.structs.replace(analysis.findings[0], kind=kind, rank=None)
    assert candidates(msgspec.structs.replace(analysis, findings=[finding])) == []


def test_the_fingerprint_depends_on_names_and_values_not_on_their_order() -> None:
    # The offset basis of 64-bit FNV-1a; the values are compared with a real Alertmanager elsewhere.
    assert fingerprint({}) == "cbf29ce484222325"
    assert fingerprint({"alertname": "TrainingStraggler", "rank": "2"}) == "2ecc576732256f4b"
    assert fingerprint({"a": "b", "c": "d"}) == fingerprint({"c": "d", "a": "b"})
    assert fingerprint({"a": "bc"}) != fingerprint({"ab": "c"})


def test_times_are_rfc_3339_in_utc() -> None:
    assert rfc3339(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123Z"
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"

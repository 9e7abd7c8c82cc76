"""What the demonstration accepts: the verdict on what it planted, and the exporter's page."""

from __future__ import annotations

import msgspec
import pytest
from tests.command_line import Cli

from rankscope.analysis.result.analysis import Verdict
from rankscope.cli.demo.faults import Fault
from rankscope.cli.demo.story import says_simulated


def test_only_a_page_of_simulated_gpus_counts_as_simulated(cli: Cli) -> None:
    page = cli("exporter", "--once", "--simulate", "1").stdout
    assert says_simulated(page)
    # Real GPUs: the help of the metric stays, and begins with "1 when".
    real = page.replace("\nrankscope_exporter_simulated 1", "\nrankscope_exporter_simulated 0")
    assert real != page
    assert not says_simulated(real)


def a_verdict(kind: str, **fields: object) -> Verdict:
    return msgspec.convert({"kind": kind, "summary": "", "next": [], **fields}, Verdict)


IN_TURN = a_verdict("straggler", ranks=[0, 1, 2, 3], pattern="rotating", cause="compute", explained_by="cpu_contention")


@pytest.mark.parametrize(
    ("verdict", "right"),
    [
        (a_verdict("balanced"), True),
        (a_verdict("communication_bound"), True),
        # Four ranks on two cores wait for a CPU in turn, whatever was planted.
        (IN_TURN, True),
        (msgspec.structs.replace(IN_TURN, explained_by=None), False),
        (msgspec.structs.replace(IN_TURN, rank=2), False),
        (a_verdict("straggler", rank=2, cause="input", phase="data"), False),
        (a_verdict("insufficient_data"), False),
        (a_verdict("hang"), False),
    ],
)
def test_verdict_that_blames_a_rank_fails_a_demo_without_fault(verdict: Verdict, right: bool) -> None:
    assert Fault("none", None).judge(verdict)[0] is right


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"rank": 2, "cause": "input", "phase": "data"}, True),
        ({"rank": 1, "cause": "input", "phase": "data"}, False),
        ({"rank": 2, "cause": "host", "phase": "data"}, False),
        ({"rank": 2, "cause": "input", "phase": "forward"}, False),
    ],
)
def test_verdict_on_a_planted_fault_needs_rank_cause_and_phase(fields: dict[str, object], right: bool) -> None:
    assert Fault("input", 2).judge(a_verdict("straggler", **fields))[0] is right
    assert not Fault("input", 2).judge(IN_TURN)[0]

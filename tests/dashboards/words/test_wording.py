"""Every value of the analysis that the pages show has words."""

from __future__ import annotations

from typing import get_args

from rankscope.analysis.result.costs import LedgerSource
from rankscope.analysis.verdict.builders import EvidenceSource
from rankscope.dashboards.stragglers.view import _IMPOSED_IN
from rankscope.dashboards.words.wording import EVIDENCE


def test_all_evidence_of_a_verdict_has_a_name() -> None:
    assert set(EVIDENCE) == set(get_args(EvidenceSource))
    assert set(_IMPOSED_IN) == {*get_args(LedgerSource), None}

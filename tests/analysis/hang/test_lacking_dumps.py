"""Dumps that show nothing of a rank: of a recorder that is off, or with records that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.flight_dumps import Job, write

from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.base.errors import InputError

Documents = dict[int, dict[str, Any]]
PENDING = {"state": "started", "retired": False, "time_discovered_completed_ns": None}


def hung_job(stops: dict[int, int] | None = None) -> Documents:
    return Job.of_events({"0": range(4)}, ["0"] * 10, stops={2: 9} if stops is None else stops).dumps()


@pytest.mark.parametrize("with_groups", [True, False])
def test_a_rank_whose_recorder_is_off_is_not_accused(tmp_path: Path, with_groups: bool) -> None:
    dumps = hung_job()
    dumps[1] |= {"entries": [], "pg_status": {}} | ({} if with_groups else {"pg_config": {}})
    report = analyze_hang([write(tmp_path, dumps)])
    assert (report.culprits, report.evidence[0].certain) == ([2], True)
    assert any("rank 1" in warning and "TORCH_FR_BUFFER_SIZE" in warning for warning in report.warnings)


def test_a_rank_whose_recorder_is_off_is_likely_where_all_others_came(tmp_path: Path) -> None:
    dumps = hung_job(stops={1: 9})
    dumps[1] |= {"entries": [], "pg_status": {}}
    report = analyze_hang([write(tmp_path, dumps)])
    assert [(culprit.rank, culprit.certain) for culprit in report.evidence] == [(1, False)]
    assert "does not show" in report.evidence[0].detail


@pytest.mark.parametrize("change", [{"collective_seq_id": "10"}, {"record_id": None}, {"process_group": "0"}])
def test_a_record_that_cannot_be_read_may_be_the_one_that_is_missed(tmp_path: Path, change: dict[str, Any]) -> None:
    dumps = hung_job()
    dumps[2]["entries"].append(dumps[0]["entries"][-1] | change)
    report = analyze_hang([write(tmp_path, dumps)])
    assert [(culprit.rank, culprit.certain) for culprit in report.evidence] == [(2, False)]


@pytest.mark.parametrize("version", ["1.5", "2.10", "3.0"])
@pytest.mark.parametrize("field", ["collective_seq_id", "record_id", "process_group", "profiling_name"])
def test_dumps_without_a_readable_record_are_an_error_that_says_why(tmp_path: Path, version: str, field: str) -> None:
    dumps = hung_job()
    for dump in dumps.values():
        dump["version"] = version
        for entry in dump["entries"]:
            del entry[field]
    with pytest.raises(InputError) as error:
        analyze_hang([write(tmp_path, dumps)])
    assert version in str(error.value)
    assert field in str(error.value)


def test_a_rank_none_of_whose_records_can_be_read_is_left_out(tmp_path: Path) -> None:
    dumps = hung_job()
    for entry in dumps[2]["entries"]:
        entry["collective_seq_id"] = str(entry["collective_seq_id"])
    report = analyze_hang([write(tmp_path, dumps)])
    assert [(culprit.rank, culprit.certain) for culprit in report.evidence] == [(2, False)]
    assert any("dump_2" in warning and "collective_seq_id" in warning for warning in report.warnings)

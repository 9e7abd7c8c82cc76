"""Dumps of one job among other files, and dumps that show nothing of a rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.dumped_job import DumpedJob, p2p
from tests.flight_dump_files import SECOND, as_json, write

from rankscope.analysis.engine import analyze
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.base.errors import InputError

Documents = dict[int, dict[str, Any]]
DAY_S = 86_400


def job_dumps(ranks: int = 4, *, calls: int = 10, stops: dict[int, int] | None = None, days_ago: int = 0) -> Documents:
    dumps = DumpedJob.of_events({"0": range(ranks)}, ["0"] * calls, stops=stops or {}).dumps()
    for entry in (entry for dump in dumps.values() for entry in dump["entries"]):
        for name in ("time_created_ns", "time_discovered_completed_ns"):
            if entry[name] is not None:
                entry[name] -= days_ago * DAY_S * SECOND
    return dumps


def hung_job() -> Documents:
    return job_dumps(stops={2: 9})


@pytest.mark.parametrize("first", [1, 4, 41_230])
def test_file_numbers_that_are_no_ranks_are_an_error(tmp_path: Path, first: int) -> None:
    folder = write(tmp_path, {first + rank: dump for rank, dump in hung_job().items()})
    for analysis in (analyze_hang, analyze):
        with pytest.raises(InputError) as error:
            analysis([folder])
        assert "name the files by rank" in str(error.value)


def test_local_ranks_of_two_hosts_are_an_error(tmp_path: Path) -> None:
    dumps = hung_job()
    hosts = [write(tmp_path / str(host), {rank: dumps[2 * host + rank] for rank in (0, 1)}) for host in (0, 1)]
    with pytest.raises(InputError) as error:
        analyze_hang(hosts)
    assert "global rank" in str(error.value)


def test_local_ranks_outside_a_group_of_the_host_are_an_error(tmp_path: Path) -> None:
    dumps = DumpedJob.of_events({"0": range(4), "1": (0, 1), "2": (2, 3)}, ["0", "1", "2"] * 3).dumps()
    with pytest.raises(InputError) as error:
        analyze_hang([write(tmp_path, {rank - 2: dumps[rank] for rank in (2, 3)})])
    assert "name the files by rank" in str(error.value)


def test_sends_and_receives_reveal_the_rank_of_a_dump(tmp_path: Path) -> None:
    dumps = hung_job()
    for rank, dump in dumps.items():
        ended = {"state": "completed", "retired": True, "record_id": -1}
        p2p(dump, f"send {rank}->{(rank + 1) % 4}", "0", 1, **ended | {"record_id": len(dump["entries"])})
        dump["entries"].insert(0, dump["entries"].pop())
    report = analyze_hang([write(tmp_path, {500 + rank: dump for rank, dump in dumps.items()})])
    assert (report.culprits, report.ranks) == ([2], 4)
    assert any("dump_502" in warning and "rank 2" in warning for warning in report.warnings)


def test_extra_dump_of_a_complete_job_is_left_out(tmp_path: Path) -> None:
    dumps = hung_job()
    report = analyze_hang([write(tmp_path, {**dumps, 77: dumps[0]})])
    assert report.culprits == [2]
    assert any("dump_77" in warning for warning in report.warnings)


def test_dumps_of_an_earlier_larger_job_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, job_dumps(8, calls=30, stops={6: 20}, days_ago=1), waited_s=211 - DAY_S)
    folder = write(tmp_path, hung_job())
    report = analyze_hang([folder])
    assert (report.culprits, report.world_size) == ([2], 4)
    assert sum("earlier job" in warning for warning in report.warnings) == 4
    assert analyze([folder]).verdict.rank == 2


@pytest.mark.parametrize("calls", [5, 500])
def test_old_dump_of_a_rank_without_a_new_one_is_left_out(tmp_path: Path, calls: int) -> None:
    dumps = hung_job()
    write(tmp_path, {2: job_dumps(calls=calls, days_ago=1)[2]}, waited_s=211 - DAY_S)
    del dumps[2]
    report = analyze_hang([write(tmp_path, dumps)])
    assert [(culprit.rank, culprit.cause, culprit.certain) for culprit in report.evidence] == [(2, "no_dump", False)]


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize(
    ("name", "content"),
    [("0_notes.txt", "hello"), ("0_settings.json", '{"lr": 1}'), ("settings_1.json", '{"lr": 1}'), ("core.12345", "x")],
)
def test_hang_and_analyze_read_the_same_dumps_among_other_files(tmp_path: Path, form: str, name: str, content: str) -> None:
    folder = write(tmp_path, hung_job(), form=form)
    (folder / name).write_text(content)
    assert analyze_hang([folder]).culprits == [2]
    assert analyze([folder]).verdict.rank == 2


def test_dumps_are_recognised_with_any_first_key(tmp_path: Path) -> None:
    for rank, dump in hung_job().items():
        (tmp_path / f"dump_{rank}.json").write_text(json.dumps({"host_name": "n1", **as_json(dump)}))
    assert analyze_hang([tmp_path]).culprits == [2]
    assert analyze([tmp_path]).verdict.rank == 2


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_parent_of_dump_folders_is_an_error_that_names_the_folders(tmp_path: Path, form: str) -> None:
    dumps = hung_job()
    for host, ranks in {"n1": (0, 1), "n2": (2, 3)}.items():
        write(tmp_path / host, {rank: dumps[rank] for rank in ranks}, form=form)
    for analysis in (analyze_hang, analyze):
        with pytest.raises(InputError) as error:
            analysis([tmp_path])
        assert "n1" in str(error.value)
        assert "n2" in str(error.value)
    assert analyze_hang([tmp_path / "n1", tmp_path / "n2"]).culprits == [2]


@pytest.mark.parametrize("with_groups", [True, False])
def test_rank_without_a_flight_recorder_is_not_accused(tmp_path: Path, with_groups: bool) -> None:
    dumps = hung_job()
    dumps[1] |= {"entries": [], "pg_status": {}} | ({} if with_groups else {"pg_config": {}})
    report = analyze_hang([write(tmp_path, dumps)])
    assert (report.culprits, report.evidence[0].certain) == ([2], True)
    assert any("rank 1" in warning and "TORCH_FR_BUFFER_SIZE" in warning for warning in report.warnings)


def test_rank_without_a_flight_recorder_is_likely_if_all_others_came(tmp_path: Path) -> None:
    dumps = job_dumps(stops={1: 9})
    dumps[1] |= {"entries": [], "pg_status": {}}
    report = analyze_hang([write(tmp_path, dumps)])
    assert [(culprit.rank, culprit.certain) for culprit in report.evidence] == [(1, False)]
    assert "does not show" in report.evidence[0].detail


@pytest.mark.parametrize("change", [{"collective_seq_id": "10"}, {"record_id": None}, {"process_group": "0"}])
def test_unreadable_record_makes_the_culprit_uncertain(tmp_path: Path, change: dict[str, Any]) -> None:
    dumps = hung_job()
    dumps[2]["entries"].append(dumps[0]["entries"][-1] | change)
    report = analyze_hang([write(tmp_path, dumps)])
    assert [(culprit.rank, culprit.certain) for culprit in report.evidence] == [(2, False)]


@pytest.mark.parametrize("version", ["1.5", "2.10", "3.0"])
@pytest.mark.parametrize("field", ["collective_seq_id", "record_id", "process_group", "profiling_name"])
def test_dumps_without_a_readable_record_are_an_error_with_the_field(tmp_path: Path, version: str, field: str) -> None:
    dumps = hung_job()
    for dump in dumps.values():
        dump["version"] = version
        for entry in dump["entries"]:
            del entry[field]
    with pytest.raises(InputError) as error:
        analyze_hang([write(tmp_path, dumps)])
    assert version in str(error.value)
    assert field in str(error.value)


def test_rank_without_a_readable_record_is_left_out(tmp_path: Path) -> None:
    dumps = hung_job()
    for entry in dumps[2]["entries"]:
        entry["collective_seq_id"] = str(entry["collective_seq_id"])
    report = analyze_hang([write(tmp_path, dumps)])
    assert [(culprit.rank, culprit.certain) for culprit in report.evidence] == [(2, False)]
    assert any("dump_2" in warning and "collective_seq_id" in warning for warning in report.warnings)

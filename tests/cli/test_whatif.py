"""``rankscope whatif`` in a terminal and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from tests.cli.json_reports import json_report
from tests.command_line import Cli, one_line_error


def test_json_matches_the_published_schema(cli: Cli, shared_data: Path) -> None:
    traced = shared_data / "whatif" / "trace-ST.parquet"
    report = json_report(cli, "whatif", traced, "--price-per-gpu-hour", "2", "--per-step")
    assert (round(report["slowdown"], 4), round(report["m_stage"], 4), round(report["m_worker"], 4)) == (1.1787, 1.2194, 0.0314)
    assert report["by_stage"][0]["stage"] == 3
    assert len(report["steps"]) == len(report["by_rank"][0]["slowdown_per_step"]) == report["source"]["steps"] == 32
    assert report["cost"]["amount"] == pytest.approx(2 * report["gpu_hours_lost"])


def test_text_fits_80_columns_and_names_slow_ranks_and_stages(cli: Cli, shared_data: Path) -> None:
    completed = cli("whatif", shared_data / "whatif" / "trace-AR.parquet", "--price-per-gpu-hour", "2.5", env={"COLUMNS": "80"})
    lines = completed.stdout.splitlines()
    assert lines[0] == "SLOWDOWN 1.97x"
    assert "100% by the slowest 3% of ranks (M_W) · 0% by the last stage (M_S)" in " ".join(completed.stdout.split())
    assert "Fixing rank 0 alone would recover 100%" in " ".join(lines)
    assert max(map(len, lines)) <= 80
    assert {line.split("  ")[0] for line in lines} >= {"without", "data-parallel rank", "stage", "operation"}


def test_json_omits_steps_by_default(cli: Cli, shared_data: Path) -> None:
    report = json.loads(cli("whatif", shared_data / "whatif" / "trace-ST.parquet", "--format", "json").stdout)
    assert report["steps"] is None
    assert {row["slowdown_per_step"] for row in report["by_rank"]} == {None}


@pytest.mark.parametrize("name", ["nowhere.parquet", "nowhere", "empty.parquet", "other.parquet", "folder"])
def test_unusable_input_is_a_one_line_error_with_status_3(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    assert str(tmp_path / name) in one_line_error(cli("whatif", tmp_path / name))

"""The catalogue is the truth about the page, and the documentation about the catalogue."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE
from rankscope.exporter.commands import exporter as command
from rankscope.exporter.reference import BEGIN, END, with_tables
from rankscope.exporter.simulated import SimulatedSource
from rankscope.exporter.source import NodeSample

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "exporter.md"
UNIT = ROOT / "exporter" / "systemd" / "rankscope-exporter.service"


def test_names_follow_the_conventions() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    for row in CATALOGUE:
        assert re.fullmatch(r"(gpu|rank|rankscope_exporter)_[a-z_]+", row.name), row.name
        assert row.name.endswith("_total") == (row.type == "counter"), row.name
        assert row.unit in row.name.removesuffix("_total").split("_") or not row.unit, row.name
        assert row.labels[:1] == ("uuid",) or row.group != "gpu", row.name
        assert row.help.endswith("."), row.name


def test_everything_on_the_page_is_in_the_catalogue_with_its_labels_and_the_other_way_round(
    start_exporter: Callable[..., Any], fake_nvml: Any, tmp_path: Path
) -> None:
    # given a node where something of everything is to be seen
    fake_nvml.gpus[1]["power"] = "err:3"
    fake_nvml.write()
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "a.prom").write_text('# TYPE rank_x gauge\nrank_x{run_id="r",rank="0"} 1\n')
    (tmp_path / "spool" / "b.prom").write_text("nonsense")

    page = start_exporter(env=fake_nvml.env).page()

    shown = {name: set[str]() for name, _ in page}
    for name, labels in page:
        shown[name] |= {label for label, _ in labels}
    relayed = {"rank_x"}
    assert set(shown) - relayed == set(BY_NAME)
    for row in CATALOGUE:
        assert shown[row.name] == set(row.labels), row.name


def test_the_documentation_is_current() -> None:
    document = DOCUMENT.read_text()

    assert document == with_tables(document), "run: python -m rankscope.exporter.reference docs/exporter.md"
    with pytest.raises(ValueError, match="no "):
        with_tables("a document without markers")
    assert f"{BEGIN}\nold\n{END}" not in with_tables(f"{BEGIN}\nold\n{END}")


def test_every_option_and_every_reason_is_documented() -> None:
    document = DOCUMENT.read_text()
    reasons = re.findall(
        r'RejectedError\("([a-z0-9_]+)"',
        "".join((ROOT / "exporter/src/rankscope/exporter" / name).read_text() for name in ("spool_file.py", "spool.py")),
    )
    assert len(set(reasons)) > 10
    assert [reason for reason in reasons if f"`{reason}`" not in document] == []
    assert "rankscope exporter --help" in document


@pytest.mark.slow
def test_the_commands_of_the_documentation_work(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    commands = re.findall(r"^rankscope (exporter .*--once)", DOCUMENT.read_text(), flags=re.MULTILINE)
    assert commands
    for line in commands:
        assert cli(*shlex.split(line), "--spool", tmp_path / "spool").returncode == 0


def test_the_unit_starts_the_command_and_leaves_nvml_what_it_needs() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    program, *arguments = shlex.split(unit["Service"]["ExecStart"].removeprefix("/usr/bin/env "))

    assert [program, arguments[0]] == ["rankscope", "exporter"]
    parsed = command.make_context("exporter", arguments[1:]).params
    assert parsed["spool"] == Path("/run/rankscope/spool")
    for breaks_nvml in ("PrivateDevices", "ProtectProc", "ProcSubset", "ProtectKernelLogs", "DevicePolicy"):
        assert breaks_nvml not in unit["Service"]


def test_simulated_gpus_are_deterministic_plausible_and_vary_slowly() -> None:
    def at(seconds: float) -> NodeSample:
        times = iter([0.0, seconds])
        return SimulatedSource(4, clock=lambda: next(times)).sample()

    assert at(10) == at(10)
    assert at(10) != at(30)
    before = {(gpu.identity.uuid, one.metric, one.labels): one.value for gpu in at(100).gpus for one in gpu.readings}
    after = {(gpu.identity.uuid, one.metric, one.labels): one.value for gpu in at(101).gpus for one in gpu.readings}
    assert before.keys() == after.keys()
    for key, value in before.items():
        uuid, metric, _ = key
        if metric == "gpu_energy_joules_total":
            # one second of energy is the power, up to how much that changed
            assert after[key] - value == pytest.approx(before[uuid, "gpu_power_watts", ()], rel=0.1)
        else:
            assert after[key] == pytest.approx(value, rel=0.1)
    parts = ("used", "free", "reserved")
    for gpu in at(5).gpus:
        values = {one.metric: one.value for one in gpu.readings}
        assert sum(values[f"gpu_memory_{part}_bytes"] for part in parts) == values["gpu_memory_total_bytes"]
        assert values["gpu_power_watts"] <= values["gpu_power_limit_watts"]
        assert 0 <= values["gpu_utilization_ratio"] <= 1


def test_reading_the_catalogue_loads_no_server_and_no_driver() -> None:
    script = (
        "import sys, rankscope.exporter.catalogue, rankscope.exporter.commands; "
        "print([name for name in ('torch', 'pynvml', 'uvicorn', 'prometheus_client') if name in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_the_number_of_series_stays_within_the_budget(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    # given eight GPUs and one rank that publishes what a recorder does
    (tmp_path / "spool").mkdir()
    from rankscope.runs.metrics import RANK_METRICS

    text = ""
    for metric in RANK_METRICS:
        text += f"# TYPE {metric.name} {metric.type}\n"
        values = ("data", "h2d", "forward", "backward", "optimizer") if metric.labels in (("phase",), ("state",)) else ("x",)
        for value in values:
            labels = "".join(f',{label}="{value}"' for label in metric.labels)
            text += f'{metric.name}{{run_id="r",rank="0"{labels}}} 1\n'
    (tmp_path / "spool" / "a.prom").write_text(text)

    page = start_exporter("--simulate", "8").page()

    per_gpu = Counter(dict(labels)["uuid"] for _, labels in page if "uuid" in dict(labels))
    of_rank = [name for name, labels in page if "rank" in dict(labels)]
    assert len(per_gpu) == 8
    assert max(per_gpu.values()) <= 150
    assert len(RANK_METRICS) < len(of_rank) <= 40

"""``rankscope compare`` in a terminal and in a pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.analysis.conftest import SyntheticRun
from tests.cli.json_reports import json_report
from tests.command_line import Cli, one_line_error

from rankscope.runs.records import Phase


def write_run(path: Path, *, ranks: int = 2, steps: int = 90, forward_us: float = 40_000, seed: int = 0) -> Path:
    phases: dict[Phase, float] = {"forward": forward_us, "backward": 8_000}
    return SyntheticRun(path, ranks, steps, noise=0.01, seed=seed, phases=phases, transfer_us=2_000).write()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    traces = folder / "traces"
    traces.mkdir()
    (traces / "rank-0.json").write_text('{"traceEvents": []}')
    return {
        "traces": traces,
        "trace": traces / "rank-0.json",
        "base": write_run(folder / "base"),
        "same": write_run(folder / "same", seed=1),
        "slow": write_run(folder / "slow", seed=2, forward_us=50_000),
        "wide": write_run(folder / "wide", seed=3, ranks=4, forward_us=45_000),
        "short": write_run(folder / "short", seed=4, steps=10),
        "empty": write_run(folder / "empty", steps=0),
    }


def test_fail_on_worse_returns_status_1_for_a_slower_run(cli: Cli, runs: dict[str, Path]) -> None:
    assert cli("compare", runs["base"], runs["slow"], "--fail-on", "worse").returncode == 1
    assert cli("compare", runs["slow"], runs["base"], "--fail-on", "worse").returncode == 0
    assert cli("compare", runs["base"], runs["slow"], "--fail-on", "worse", "--min-change", "30%").returncode == 0
    assert cli("compare", runs["base"], runs["same"], "--fail-on", "worse").returncode == 0
    assert cli("compare", runs["base"], runs["short"], "--fail-on", "insufficient_data").returncode == 1


def test_json_matches_the_published_schema(cli: Cli, runs: dict[str, Path]) -> None:
    json_report(cli, "compare", runs["base"], runs["slow"])
    json_report(cli, "compare", runs["base"], "--at", "50")
    json_report(cli, "compare", runs["base"], runs["wide"], "--price-per-gpu-hour", "2")


def test_text_names_what_changed_and_the_phase(cli: Cli, runs: dict[str, Path]) -> None:
    completed = cli("compare", runs["base"], runs["slow"])
    assert completed.returncode == 0
    assert completed.stdout.startswith("WORSE\n")
    assert "slow" in completed.stdout.splitlines()[1]
    assert "own: forward" in completed.stdout
    assert "\x1b" not in completed.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["base"], "cannot be compared"),
        (["base", "slow", "--at", "5"], "--at divides one run"),
        (["base", "wide", "--fail-on", "worse"], "--fail-on is for runs of one world size"),
        (["base", "slow", "--fail-on", "ugly"], "'ugly' is not one of"),
        (["base", "slow", "--min-change", "0"], "is no share"),
        (["base", "slow", "--price-per-gpu-hour", "nan"], "is no price"),
        (["base", "--at", "-1"], "not in the range"),
        (["base", "slow", "--steps", "50:20"], "has no step in it"),
        ([], "Missing argument"),
    ],
)
def test_contradictory_arguments_are_usage_errors(cli: Cli, runs: dict[str, Path], arguments: list[str], says: str) -> None:
    completed = cli("compare", *(runs.get(word, word) for word in arguments))
    assert (completed.returncode, completed.stdout) == (2, "")
    assert says in " ".join(completed.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["base", "empty"], "not one step is recorded in attempt 0"),
        (["base", "base"], "it would be compared with itself"),
        (["base", "/nowhere"], "no such file or folder"),
        (["base", "/proc/self/maps"], "not a run directory"),
        (["traces", "base"], "Record both runs (rankscope run -- torchrun ... train.py), or analyse each by itself"),
        (["base", "trace"], "rankscope analyze "),
        (["base", "--at", "5000"], "step 5000 does not divide it: its steps are 0 to 89"),
        (["base", "--at", "20", "--steps", "30:"], "step 20 does not divide it: its steps are 30 to 89"),
        (["base", "slow", "--steps", "90:95"], "no such steps: there are steps 0 to 89"),
    ],
)
def test_incomparable_input_is_a_one_line_error_with_status_3(
    cli: Cli, runs: dict[str, Path], arguments: list[str], says: str
) -> None:
    assert says in one_line_error(cli("compare", *(runs.get(word, word) for word in arguments)))


def test_only_the_chosen_steps_are_compared(cli: Cli, runs: dict[str, Path]) -> None:
    sides = json.loads(cli("compare", runs["base"], runs["slow"], "--steps", "40:70", "--format", "json").stdout)["sides"]
    assert [side["steps"] for side in sides] == [[40, 70], [40, 70]]
    sides = json.loads(cli("compare", runs["base"], "--at", "50", "--steps", "40:70", "--format", "json").stdout)["sides"]
    assert [side["steps"] for side in sides] == [[40, 50], [50, 70]]

"""Example traces in ``tests/data/traces``, checked against values that an independent program computed.

``scripts/example_traces.py`` writes the traces and the values again.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.trace_values import differences, values_of_file, values_of_job
from tests.example_traces import files, gloo, mixed
from tests.example_traces.files import EXPECTED, FOLDER
from tests.trace_truth import values as truth

STORED = files.expected()


def refusal(expected: dict[str, Any], actual: dict[str, Any]) -> bool:
    """Return whether the trace is to be refused; it must be, then, for the reason given."""
    if "refused" in expected:
        assert expected["refused"] in actual.get("refused", "not refused")
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("folder", STORED)
def test_values_of_each_trace_agree_with_the_reference(folder: str) -> None:
    for name, expected in STORED[folder]["traces"].items():
        values = values_of_file(FOLDER / folder / name)
        assert refusal(expected, values) or differences(expected, values) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", [folder for folder, values in STORED.items() if values["job"]])
def test_values_of_each_job_agree_with_the_reference(folder: str) -> None:
    expected, result = STORED[folder]["job"], values_of_job(FOLDER / folder)
    if not refusal(expected, result):
        if expected["imposed"] is None:
            result["imposed"] = None
        assert differences(expected, result) == []


def test_comparison_detects_differences() -> None:
    assert differences({"a_us": 1.0, "rows": [1, None]}, {"a_us": 1.0005, "rows": [1, None]}) == []
    assert len(differences({"a_us": 1.0}, {"a_us": 1.002})) == 1
    assert len(differences({"ratio": 1.0}, {"ratio": 1.0005})) == 1
    assert len(differences({"a_us": None, "b_us": 0.0}, {"a_us": 0.0, "b_us": None})) == 2
    assert len(differences([1.0], [])) == 1


def test_every_example_folder_has_reference_values() -> None:
    assert list(STORED) == files.folders()


def test_example_traces_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 3_000_000


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("folder", STORED)
def test_stored_values_equal_those_of_the_reference_program(folder: str) -> None:
    assert json.loads(json.dumps(files.values(folder))) == STORED[folder], f"{EXPECTED}: run scripts/example_traces.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", files.KINDS)
def test_stored_simulated_traces_equal_the_simulator_output(kind: str) -> None:
    written = dict(files.simulated(kind))
    stored = {path.relative_to(FOLDER).as_posix() for path in (FOLDER / kind).rglob("rank-*")}
    assert set(written) == stored
    # Compressed data depends on the version of the library that compresses.
    changed = [name for name, data in written.items() if content(data) != content((FOLDER / name).read_bytes())]
    assert changed == [], "run scripts/example_traces.py"


@pytest.mark.slow
@pytest.mark.parametrize("make", [mixed.trace, mixed.damaged])
@given(seed=st.integers(0, 2**32))
def test_values_of_any_mixed_trace_agree_with_the_reference(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[int], dict[str, Any]], seed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "rank-0.json"
    path.write_text(json.dumps(make(seed)))
    expected, result = truth.values_of_file(path), values_of_file(path)
    assert refusal(expected, result) or differences(expected, result) == []


@pytest.mark.full
@pytest.mark.slow
def test_newly_recorded_job_agrees_with_the_reference(require_torch: None, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name, data in gloo.record(tmp_path / "run").items():
        (folder / name).write_bytes(data)
        assert differences(truth.values_of_file(folder / name), values_of_file(folder / name)) == []
    assert differences(truth.values_of_job(folder), values_of_job(folder)) == []


def content(data: bytes) -> bytes:
    try:
        return truth.unpacked(data)[0]
    except truth.RefusedError:
        return data


def test_reference_program_uses_neither_rankscope_nor_numpy() -> None:
    for path in Path(truth.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                own = module.startswith(("tests.trace_truth", "backports.zstd"))
                assert own or module.partition(".")[0] in sys.stdlib_module_names, (path.name, module)

"""Set-up script behind every make target: finds a working Python, survives incomplete environments, reports the next action."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# An interpreter that only logs its arguments. `-m venv` and `-m virtualenv` make a folder with a copy of it inside.
STUB = """#!/bin/sh
echo "$0 $*" >>"$LOG"
case "$*" in
    "-m venv"*) [ -z "${NO_VENV:-}" ] || { echo "ensurepip is not available"; exit 1; } ;;
    "-m virtualenv"*) [ -z "${NO_VIRTUALENV:-}" ] || { echo "No module named virtualenv"; exit 1; } ;;
    *"import torch"*) exit "${NO_TORCH:-0}" ;;
    *) exit 0 ;;
esac
for last; do :; done
mkdir -p "$last/bin" && cp "$0" "$last/bin/python"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts" / "setup")
    stub = tmp_path / "bin" / "python3"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    return tmp_path


def setup(folder: Path, part: str = "run", **variables: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the script with the stub as the only Python; return the result and the stub's log."""
    log = folder / "log"
    log.write_text("")
    env = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "LOG": str(log),
        "PYTHON": "python3",
        "TORCH": "",
        **variables,
    }
    completed = subprocess.run(
        ["sh", "scripts/setup", ".venv", part], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    return completed, log.read_text()


def test_setup_creates_the_environment_once(folder: Path) -> None:
    first, asked = setup(folder)
    assert first.returncode == 0, first.stderr
    assert "-m pip install --quiet --constraint constraints.txt --editable .[all]" in asked
    again, asked = setup(folder)
    assert again.returncode == 0
    assert "pip" not in asked


def test_usable_torch_is_kept_and_otherwise_the_pinned_one_installed(folder: Path) -> None:
    completed, asked = setup(folder, TORCH="torch==2.13.0")
    assert "Using the torch that is there" in completed.stderr
    assert "torch==2.13.0" not in asked
    shutil.rmtree(folder / ".venv")
    _, asked = setup(folder, TORCH="torch==2.13.0", TORCH_ARGS="--index-url https://example.invalid/cpu", NO_TORCH="1")
    assert "pip install --quiet --index-url https://example.invalid/cpu torch==2.13.0" in asked


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="has an NVIDIA GPU")
def test_setup_suggests_the_cpu_build_of_torch(folder: Path) -> None:
    completed, _ = setup(folder, TORCH="torch==2.13.0", NO_TORCH="1")
    assert "whl/cpu" in completed.stderr
    shutil.rmtree(folder / ".venv")
    completed, _ = setup(folder, TORCH="torch==2.13.0", TORCH_ARGS="--index-url https://example.invalid/cpu", NO_TORCH="1")
    assert "whl/cpu" not in completed.stderr


def test_incomplete_environment_is_rebuilt(folder: Path) -> None:
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "litter").touch()
    completed, _ = setup(folder)
    assert completed.returncode == 0
    assert not (folder / ".venv" / "litter").exists()


def test_setup_falls_back_to_virtualenv_with_a_hint(folder: Path) -> None:
    completed, asked = setup(folder, NO_VENV="1")
    assert completed.returncode == 0
    assert "-m virtualenv .venv" in asked
    hints = [line for line in completed.stderr.splitlines() if "python3-venv" in line]
    assert len(hints) == 1


def test_missing_venv_and_virtualenv_is_an_error_with_a_hint(folder: Path) -> None:
    completed, _ = setup(folder, NO_VENV="1", NO_VIRTUALENV="1")
    assert completed.returncode == 1
    assert "Install python3-venv or virtualenv" in completed.stderr
    assert not (folder / ".venv").exists()


def test_unusable_python_is_named(folder: Path) -> None:
    completed, _ = setup(folder, PYTHON="/nowhere/python3.12")
    assert completed.returncode == 1
    assert "/nowhere/python3.12" in completed.stderr


def test_missing_python_is_reported_with_the_required_version(folder: Path) -> None:
    # given shims on PATH that exist but do not work
    empty = folder / "broken"
    empty.mkdir()
    for name in ("python3.14", "python3.13", "python3.12", "python3.11", "python3", "python"):
        (empty / name).write_text("#!/bin/sh\nexit 127\n")
        (empty / name).chmod(0o755)
    completed, _ = setup(folder, PATH=f"{empty}:/usr/bin:/bin", PYTHON="")
    assert completed.returncode == 1
    assert "No working Python >= 3.11" in completed.stderr


def test_constraints_pin_neither_torch_nor_cuda() -> None:
    names = [line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    assert len(names) > 50
    # nor packages whose versions some versions of torch restrict: pip would replace them
    assert [name for name in names if name in {"torch", "triton", "sympy", "setuptools"} or name.startswith("nvidia-")] == []
    assert "://" not in (ROOT / "constraints.txt").read_text()

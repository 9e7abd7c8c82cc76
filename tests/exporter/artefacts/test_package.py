"""The self-contained build: really built, unpacked, and run without a Python installation."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "exporter" / "packaging" / "build"


def test_build_script_has_help_and_refuses_unknown_options() -> None:
    explained = subprocess.run([BUILD, "--help"], capture_output=True, text=True, check=True)
    refused = subprocess.run([BUILD, "--fast"], capture_output=True, text=True, check=False)

    assert "PyInstaller" in explained.stdout
    assert "SOURCE_DATE_EPOCH" in explained.stdout
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "--fast" in refused.stderr


needs_pyinstaller = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        importlib.util.find_spec("PyInstaller") is None, reason="PyInstaller is not installed: pip install pyinstaller"
    ),
]


def build(out: Path) -> Path:
    environment = {**os.environ, "BUILD_PYTHON": sys.executable, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([BUILD, "--out", out], env=environment, check=True)
    return out


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root folder of a node with the unpacked tarball."""
    node = tmp_path_factory.mktemp("node")
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(node, filter="fully_trusted")
    return node


def run(node: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program with an empty environment: no PATH, no HOME, no Python."""
    program = node / "opt" / "rankscope" / "rankscope"
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, cwd="/", env=environment, timeout=120
    )


class TestBuild:
    pytestmark = needs_pyinstaller

    def test_package_prints_a_page_without_an_installed_python(self, unpacked: Path) -> None:
        page = run(unpacked, "exporter", "--simulate", "2", "--once")

        assert page.returncode == 0, page.stderr
        assert page.stdout.count("\ngpu_up{") == 2

    def test_package_reads_gpus_from_the_driver(self, unpacked: Path, fake_nvml: Any) -> None:
        page = run(unpacked, "exporter", "--once", **fake_nvml.env)

        assert page.returncode == 0, page.stderr
        assert page.stdout.count("\ngpu_temperature_celsius{") == len(fake_nvml.gpus)

    def test_package_refuses_commands_that_are_not_included(self, unpacked: Path) -> None:
        refused = run(unpacked, "dashboard")

        assert refused.returncode == 2
        assert "'dashboard'" in refused.stderr.splitlines()[-1]

    def test_archive_contains_no_system_directories(self, built: Path) -> None:
        with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
            folders = [member.name for member in archive if member.isdir()]

        assert "opt/rankscope" in folders
        assert [folder for folder in folders if not f"{folder}/".startswith("opt/rankscope/")] == []

    def test_package_contains_unit_manual_configuration_and_licences(self, unpacked: Path) -> None:
        for path in (
            "usr/lib/systemd/system/rankscope-exporter.service",
            "usr/lib/tmpfiles.d/rankscope.conf",
            "etc/rankscope/exporter.toml",
            "usr/share/man/man1/rankscope-exporter.1.gz",
            "opt/rankscope/licenses/rankscope",
            "opt/rankscope/licenses/Python",
        ):
            assert (unpacked / path).is_file(), path
        assert (unpacked / "usr/bin/rankscope").readlink() == Path("/opt/rankscope/rankscope")
        texts = {path.name.lower() for path in (unpacked / "opt/rankscope/licenses").iterdir()}
        for library in ("click", "msgspec", "bcrypt", "prometheus_client"):
            assert any(text.startswith(library) for text in texts), library

    @pytest.mark.campaign  # a second build takes as long as the first
    def test_package_build_is_reproducible(self, built: Path, tmp_path: Path) -> None:
        again = build(tmp_path)

        for archive in built.iterdir():
            first, second = (hashlib.sha256((folder / archive.name).read_bytes()).hexdigest() for folder in (built, again))
            assert first == second, archive.name

    def test_the_debian_package_has_the_same_files(self, built: Path, unpacked: Path, tmp_path: Path) -> None:
        dpkg = shutil.which("dpkg-deb")
        if dpkg is None:
            pytest.skip("dpkg-deb is not installed")
        package = next(built.glob("*.deb"))

        subprocess.run([dpkg, "--extract", package, tmp_path], check=True)

        def files(root: Path) -> set[str]:
            return {str(path.relative_to(root)) for path in root.rglob("*")}

        assert files(tmp_path) == files(unpacked)
        fields = subprocess.run(
            [dpkg, "--field", package, "Package", "Depends"], capture_output=True, text=True, check=True
        ).stdout
        assert fields.startswith("Package: rankscope-exporter\nDepends: libc6 (>= ")

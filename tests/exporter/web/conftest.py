"""One exporter with simulated GPUs, shared by the tests of a file that do not change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.exporter.conftest import RunningExporter, exporters


@dataclass
class Simulated:
    """The exporter, and the folder with its spool and its control socket."""

    exporter: RunningExporter
    folder: Path

    @property
    def control(self) -> Path:
        return self.folder / "control.sock"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    """Exporter with two simulated H100s, and the DCGM page both beside the native one and on its own port."""
    folder = tmp_path_factory.mktemp("simulated")
    with exporters(folder) as start:
        yield Simulated(start("--simulate", "2xH100", "--compat", "dcgm", "--compat.listen-address", "127.0.0.1:0"), folder)


@pytest.fixture
def web_config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "web.yml"
        path.write_text(text)
        return path

    return write

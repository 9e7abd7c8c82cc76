"""Checks of a Ray node before it works, and addresses of clusters; none of these needs a cluster."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.parallel.ray_cluster import cluster_address
from rankscope.analysis.parallel.ray_engine import RayEngine, caller_of, node_task, unwrap_answer
from rankscope.base.errors import InputError, MissingError

HERE = importlib.metadata.version("rankscope")


def own_ip() -> str:
    return "127.0.0.3"


def failing(error: Exception) -> None:
    raise error


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rank-0.json"
    path.write_bytes(b"{}")
    return path


def on_node(file: Path, function: Callable[[Any], Any] = str.upper, item: Any = "a", *, size: int = 2) -> Any:
    """Return the result of a node for a file that has this ``size`` on this machine."""
    outcome, node, pickled = node_task()(caller_of(function), pickle.dumps(item), (os.fspath(file), size))
    assert node == socket.gethostname()
    return unwrap_answer((outcome, "node-7", pickled), file)


def test_node_with_the_same_version_and_file_does_the_work(file: Path) -> None:
    assert on_node(file) == "A"
    # and a path is resolved from the working directory of the command
    assert on_node(Path("rank-0.json")) == "A"


@pytest.mark.parametrize(("installed", "message"), [("0.0.1", f"has rankscope 0.0.1, not {HERE}"), (None, "has no rankscope")])
def test_other_version_is_a_one_line_error_with_node_and_command(
    file: Path, monkeypatch: pytest.MonkeyPatch, installed: str | None, message: str
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    here = caller_of(str.upper)
    with monkeypatch.context() as patched:
        patched.setattr(importlib.metadata, "version", version)
        outcome, _, pickled = node_task()(here, pickle.dumps("a"), None)
    with pytest.raises(MissingError) as refusal:
        unwrap_answer((outcome, "node-7", pickled), file)
    for fact in ("node-7", message, f"pip install 'rankscope[analysis]=={HERE}'"):
        assert fact in str(refusal.value)


def test_node_with_another_or_no_file_is_named(file: Path) -> None:
    with pytest.raises(InputError, match=r"^/.*rank-9\.json: node node-7 of the Ray cluster does not see it \(No such file"):
        on_node(file.with_name("rank-9.json"))
    with pytest.raises(InputError, match=r"node-7 of the Ray cluster has another file there.*--engine local"):
        on_node(file, size=3)


def test_exception_of_a_task_is_raised_in_the_caller(file: Path) -> None:
    with pytest.raises(InputError) as refusal:
        on_node(file, failing, InputError("x.json", "not JSON", place="byte 3"))
    assert (refusal.value.path, refusal.value.place, str(refusal.value)) == ("x.json", "byte 3", "x.json: byte 3: not JSON")
    with pytest.raises(PermissionError) as denied:
        on_node(file, failing, PermissionError(13, "Permission denied", "x.json"))
    assert denied.value.filename == "x.json"
    with pytest.raises(MissingError, match=r"^node node-7 of the Ray cluster: Zstandard needs"):
        on_node(file, failing, MissingError("Zstandard needs …"))
    with pytest.raises(
        MissingError, match=r"node-7 of the Ray cluster lacks the Python package 'numpy'; on all nodes: pip install"
    ):
        on_node(file, failing, ModuleNotFoundError("No module named 'numpy'", name="numpy"))


@pytest.mark.parametrize(
    "address", ["", "head", "10.0.0.1", "10.0.0.1:port", "10.0.0.1:99999", ":6379", "http://head:1/x", "ray://head:10001"]
)
def test_invalid_address_error_shows_the_format(address: str) -> None:
    with pytest.raises(InputError, match="no address of a Ray cluster: give HOST:PORT"):
        cluster_address(address, own_ip)


def test_address_that_refuses_connections_is_a_one_line_error(free_port: Callable[[], int]) -> None:
    address = f"127.0.0.2:{free_port()}"
    with pytest.raises(InputError, match=f"^{address}: no Ray cluster answers there .Connection refused.: give HOST:PORT"):
        cluster_address(address, own_ip)


def test_localhost_is_resolved_as_ray_does() -> None:
    with socket.create_server(("127.0.0.3", 0)) as server:
        port = server.getsockname()[1]
        assert cluster_address(f"localhost:{port}", own_ip) == f"localhost:{port}"
        with pytest.raises(InputError, match="no Ray cluster answers there"):
            cluster_address(f"127.0.0.2:{port}", own_ip)


def test_cluster_is_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="would start a cluster, and only one that is there is used"):
        cluster_address("local", own_ip)
    # nor because the environment requests it
    monkeypatch.setenv("RAY_ADDRESS", "local")
    for address in (None, "auto"):
        with pytest.raises(InputError, match="would start a cluster"):
            cluster_address(address, own_ip)


def test_default_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        address = f"127.0.0.2:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert cluster_address(None, own_ip) == cluster_address("auto", own_ip) == address
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert cluster_address(None, own_ip) == "auto"


def test_missing_ray_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingError, match=r"--engine ray needs the Python package 'ray': pip install 'rankscope\[ray\]'"):
        list(RayEngine().map(str, [1], files=[Path("x")], text_bytes=1))

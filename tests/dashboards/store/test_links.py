"""Symbolic links in and around runs: data outside the served folder is not shown."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.dashboards.bad_runs import change_info
from tests.dashboards.blocks import page_text
from tests.dashboards.recorded_run import START_NS

from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.base.errors import RankscopeError
from rankscope.dashboards.app import create_app
from rankscope.dashboards.store.cache import error_text
from rankscope.dashboards.store.disk import DiskRuns
from rankscope.dashboards.timeline.windows import Window
from rankscope.runs.paths import flight_dir, host_dir, rank_dir

WriteRun = Callable[..., Path]


@pytest.fixture
def secret(tmp_path: Path, write_run: WriteRun) -> Path:
    """Folder of a run outside the served folder."""
    run = write_run(tmp_path / "private" / "secret", run_id="secret", name="secret-project", steps=90)
    for rank in range(4):
        change_info(rank_dir(run, 0, rank) / "rank.json", host="secret-host")
    return run


@pytest.fixture
def root(tmp_path: Path, write_run: WriteRun) -> Path:
    """The served folder, with one run."""
    write_run(tmp_path / "runs" / "own", run_id="own")
    return tmp_path / "runs"


def test_link_to_a_run_outside_the_root_is_listed_but_not_shown(root: Path, secret: Path) -> None:
    (root / "link").symlink_to(secret)
    source = DiskRuns(root)
    assert [run.run_id for run in source.runs()] == ["own", "link"]
    link = source.summary("link")
    assert link.status == "unreadable"
    assert link.problem == f"{root}/link: a symbolic link that leads out of {root}. Nothing of it is shown"
    with pytest.raises(RankscopeError, match="there is no run 'secret'"):
        source.summary("secret")
    with pytest.raises(RankscopeError, match="leads out"):
        source.part("link", "analysis")

    downloaded = create_app(source).server.test_client().get("/run/link/perfetto?window=20&ask=1", base_url="http://localhost")
    assert "leads out" in downloaded.get_json()["error"]
    window = Window(attempt=0, first=20, past=23, ranks=4, start_unix_ns=0)
    for read in (source.window, source.perfetto, partial(source.window_steps, rank=0)):
        with pytest.raises(RankscopeError, match="leads out"):
            read(link, window)

    listed = page_text(source, "/")
    assert "a symbolic link that leads out" in listed
    assert "secret" not in listed
    assert str(secret) not in listed


@pytest.mark.parametrize(
    "inside",
    [
        lambda run: run / "attempts",
        lambda run: run / "attempts" / "000",
        lambda run: run / "attempts" / "000" / "ranks",
        lambda run: rank_dir(run, 0, 2),
        lambda run: rank_dir(run, 0, 2) / "rank.json",
        lambda run: rank_dir(run, 0, 2) / "steps-000000.npy",
        lambda run: rank_dir(run, 0, 2) / "traces",
        lambda run: host_dir(run, "node-0"),
        lambda run: run / "hosts" / ".hidden",
        lambda run: run / "run.json",
        lambda run: run / "control",
        lambda run: run / "findings.jsonl",
    ],
)
def test_target_of_a_link_inside_a_run_is_not_shown(root: Path, secret: Path, inside: Callable[[Path], Path]) -> None:
    link = inside(root / "own")
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        link.rename(link.parent / ".aside")
    link.symlink_to(inside(secret))
    source = DiskRuns(root)

    [run] = source.runs()

    for path in ("/", f"/run/{run.run_id}", f"/run/{run.run_id}/timeline", "/alerts"):
        assert "secret" not in page_text(source, path)
    if run.problem is not None:
        return
    with contextlib.suppress(RankscopeError):  # nothing is left to analyse
        assert b"secret" not in msgspec.json.encode(source.part(run.run_id, "analysis"))
        assert max(source.part(run.run_id, "steps").steps) < 60


def test_raw_traces_behind_links_are_neither_shown_nor_exported(root: Path, secret: Path) -> None:
    def trace(run: Path, rank: int, kernel: str) -> Path:
        file = rank_dir(run, 0, rank) / "traces" / "window-000000020.json"
        file.parent.mkdir(exist_ok=True)
        event = {"ph": "X", "cat": "kernel", "name": kernel, "dur": 100, "pid": 0, "tid": 7}
        times = [{**event, "ts": 1_600_000 + at * 1000} for at in range(100)]
        file.write_text(json.dumps({"traceEvents": times, "baseTimeNanoseconds": START_NS}))
        return file

    own = trace(root / "own", 0, "own_kernel")
    own.with_name("window-000000021.json").symlink_to(trace(secret, 0, "secret_kernel"))
    (rank_dir(root / "own", 0, 1) / "traces").symlink_to(trace(secret, 1, "secret_kernel").parent)
    os.mkfifo(own.with_name("window-000000022.json"))
    source = DiskRuns(root)
    run = source.summary("own")
    [window] = source.windows(run).windows

    shown = source.window(run, window)
    exported = gzip.decompress(source.perfetto(run, window).read_bytes())

    assert "own_kernel" in shown.info.names
    assert not any("secret" in name for name in shown.info.names)
    assert any("symbolic link" in line for line in shown.info.left_out)
    assert any("not a regular file" in line for line in shown.info.left_out)
    assert b"own_kernel" in exported
    assert b"secret" not in exported


def test_flight_recorder_dumps_behind_links_are_not_read(root: Path, secret: Path) -> None:
    flight = flight_dir(secret, 0)
    flight.mkdir()
    dump = flight / "rank-00000-end-nccl.json"
    dump.write_text(json.dumps({"version": "2.10", "entries": [], "pg_config": {"0": {"desc": "secret_group", "ranks": "[0]"}}}))
    flight_dir(root / "own", 0).symlink_to(flight)
    with pytest.raises(RankscopeError, match="symbolic link"):
        analyze_hang([root / "own"])
    assert analyze_hang([dump]).ranks is not None, "it can be read where it is"


def test_run_replaced_by_a_link_is_no_longer_shown(root: Path, secret: Path) -> None:
    source = DiskRuns(root)
    assert source.summary("own").problem is None
    (root / "own").rename(root.parent / "moved")
    (root / "own").symlink_to(secret)
    assert source.summary("own").problem is not None, "goes by its folder's name"


def test_links_within_the_run_folder_are_followed(root: Path, tmp_path: Path) -> None:
    (root / "archive").mkdir()
    (root / "own").rename(root / "archive" / "own")
    (root / "own").symlink_to("archive/own")
    (tmp_path / "alias").symlink_to(root)
    for path in (root, tmp_path / "alias", tmp_path / "alias" / "own"):
        [run] = DiskRuns(path).runs()
        assert run.problem is None, "also where the folder that is served is itself a link"
        assert DiskRuns(path).part("own", "analysis").verdict.rank == 2


def test_dangling_and_circular_links_are_harmless(root: Path) -> None:
    (root / "own" / "circle").symlink_to("circle")
    (root / "own" / "nowhere").symlink_to("nothing")
    (root / "circle").symlink_to("circle")
    [run] = DiskRuns(root).runs()
    assert run.problem is None


def test_folder_with_a_non_utf8_name_is_listed(root: Path) -> None:
    folder = root / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    source = DiskRuns(root)
    assert r"caf\\udce9" in page_text(source, "/")
    assert "not a rankscope run" in page_text(source, "/run/caf%E9")


def test_run_in_a_folder_with_a_non_utf8_name_has_all_views(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    for run_id in ("a", "b"):
        write_run(root / run_id, run_id=run_id)
    trace = rank_dir(root / "a", 0, 0) / "traces" / "window-20.json"
    trace.parent.mkdir()
    trace.write_text("{")
    source = DiskRuns(root)

    assert source.whatif("a").result.slowdown is not None
    assert len(source.compared(["a", "b"]).result.sides) == 2
    run = source.summary("a")
    [damaged] = source.window(run, source.windows(run).windows[0]).info.left_out
    assert r"caf\udce9" in damaged
    assert r"caf\udce9" in error_text(OSError(2, "No such file or directory", root), tmp_path)

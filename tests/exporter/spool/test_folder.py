"""The spool folder: its location, and the owners from which it is trusted."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.conftest import StartExporter
from tests.exporter.spool.spool_files import GOOD, spool_of

from rankscope.exporter.spool.folder import SpoolFolder, default_spool, make_spool
from rankscope.exporter.spool.reading import Spool, SpoolError


def test_missing_folder_is_a_named_error_until_created(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "later")
    with pytest.raises(SpoolError, match=r"later: No such file"):
        spool.read()

    (tmp_path / "later").mkdir()

    assert spool.read().states == {}


def _failing(call: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Return ``call`` that fails for the file of this name; without names, always."""

    def fails(path: Any, *args: Any, **options: Any) -> Any:
        if not names or path in names:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(path, *args, **options)

    return fails


def test_unreadable_spool_is_an_error_with_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "scandir", _failing(os.scandir))

    with pytest.raises(SpoolError, match=re.escape(str(tmp_path))):
        spool_of(tmp_path).read()


def test_unreadable_file_affects_only_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.prom").write_text(GOOD)
    (tmp_path / "b.prom").write_text(GOOD.replace("r1", "r2"))
    monkeypatch.setattr(os, "stat", _failing(os.stat, "b.prom"))

    sample = spool_of(tmp_path).read()

    assert {key.run for key in sample.states} == {"r1"}
    assert sample.rejected == {"unreadable": 1}


def test_folders_in_the_spool_use_no_descriptors(tmp_path: Path) -> None:
    for number in range(64):
        (tmp_path / f"nccl-inspector-{number}").mkdir()
        (tmp_path / f"{number}.prom").mkdir()
    (tmp_path / "rank.prom").write_text(GOOD)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 8, hard))
    try:
        sample = spool_of(tmp_path).read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert sample.ok_files == 1
    assert sample.rejected == {"not_regular": 64}


def test_shared_spool_has_sticky_world_writable_mode(tmp_path: Path) -> None:
    assert make_spool(SpoolFolder(tmp_path / "new" / "spool"), mode=0o1777)
    assert (tmp_path / "new" / "spool").stat().st_mode & 0o7777 == 0o1777
    (tmp_path / "file").write_text("")
    assert not make_spool(SpoolFolder(tmp_path / "file" / "spool"), mode=0o700)


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [(0o755, None, 0o1777), (0o755, "of-an-administrator", 0o755), (0o750, None, 0o750), (0o700, None, 0o700)],
)
def test_empty_kubelet_folder_is_made_world_writable(tmp_path: Path, before: int, name: str | None, after: int) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    spool.chmod(before)
    if name is not None:
        (spool / name).touch()

    assert make_spool(SpoolFolder(spool), mode=0o1777)

    assert spool.stat().st_mode & 0o7777 == after


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_folder_of_another_user_or_behind_a_link_keeps_its_mode(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(spool)
    assert make_spool(SpoolFolder(tmp_path / "link"), mode=0o1777)
    _foreign(spool)
    assert make_spool(SpoolFolder(spool), mode=0o1777)

    assert spool.stat().st_mode & 0o7777 == 0o755


@pytest.fixture
def no_system_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the system spool, where this user cannot create it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("rankscope.exporter.spool.folder.SYSTEM_SPOOL", tmp_path / "file" / "spool")


def test_spool_is_private_without_the_system_folder(no_system_spool: None) -> None:
    runtime = SpoolFolder(Path("/run/user/7/rankscope/spool"), private=True)
    assert default_spool({"XDG_RUNTIME_DIR": "/run/user/7"}) == runtime
    assert default_spool({}) == SpoolFolder(Path(f"/tmp/rankscope-{os.getuid()}/spool"), private=True)


def test_reading_creates_no_system_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "rankscope" / "spool"
    monkeypatch.setattr("rankscope.exporter.spool.folder.SYSTEM_SPOOL", system)

    assert default_spool({"XDG_RUNTIME_DIR": "/run/user/7"}, make=False).private
    assert list(tmp_path.iterdir()) == []

    system.mkdir(parents=True)
    assert default_spool({}, make=False) == SpoolFolder(system)


def test_private_spool_is_closed_to_other_users_and_read(no_system_spool: None, tmp_path: Path) -> None:
    folder = default_spool({"XDG_RUNTIME_DIR": str(tmp_path / "runtime")})
    assert make_spool(folder, mode=0o1777)
    assert [path.stat().st_mode & 0o7777 for path in (folder.path.parent, folder.path)] == [0o700, 0o700]
    (folder.path / "a.prom").write_text(GOOD)

    assert Spool(folder, stale_s=300.0, forget_s=86400.0).read().ok_files == 1


def _foreign(path: Path) -> None:
    os.chown(path, 65534, 65534)


def _group(path: Path) -> None:
    path.chmod(0o770)


def _open(path: Path) -> None:
    path.chmod(0o1777)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("level", ["spool", "parent"])
@pytest.mark.parametrize(
    ("take_over", "words"),
    [
        pytest.param(_foreign, "belongs to another user", marks=pytest.mark.skipif(os.getuid() != 0, reason="needs root")),
        (_group, "can be written by other users"),
        (_open, "can be written by other users"),
        (_link, "a link"),
    ],
)
def test_private_spool_writable_by_others_is_not_read(
    take_over: Callable[[Path], None], words: str, level: str, no_system_spool: None, tmp_path: Path
) -> None:
    folder = default_spool({"XDG_RUNTIME_DIR": str(tmp_path / "runtime")})
    make_spool(folder, mode=0o700)
    (folder.path / "a.prom").write_text(GOOD)
    taken = folder.path if level == "spool" else folder.path.parent
    take_over(taken)

    with pytest.raises(SpoolError, match=rf"{taken}: {words}.*--spool"):
        Spool(folder, stale_s=300.0, forget_s=86400.0).read()


def test_no_spool_is_created_in_a_folder_writable_by_others(no_system_spool: None, tmp_path: Path) -> None:
    folder = default_spool({"XDG_RUNTIME_DIR": str(tmp_path / "runtime")})
    folder.path.parent.mkdir(parents=True)
    folder.path.parent.chmod(0o1777)

    assert not make_spool(folder, mode=0o700)
    assert not folder.path.exists()


def test_untrusted_spool_is_reported_and_other_metrics_continue(start_exporter: StartExporter, tmp_path: Path) -> None:
    spool = tmp_path / "runtime" / "rankscope" / "spool"
    spool.mkdir(parents=True)
    spool.chmod(0o777)
    (spool / "a.prom").write_text(GOOD)
    prelude = (
        "import sys; from pathlib import Path; import rankscope.exporter.spool.folder as folder; "
        "folder.SYSTEM_SPOOL = Path('/dev/null/spool'); at = sys.argv.index('--spool'); del sys.argv[at : at + 2]"
    )

    exporter = start_exporter("--simulate", "1", prelude=prelude, env={"XDG_RUNTIME_DIR": str(tmp_path / "runtime")})

    assert exporter.values("rank_steps_total") == []
    assert exporter.values("gpu_up") == [1.0]
    assert exporter.values("rankscope_exporter_collector_success", collector="spool") == [0.0]
    assert "can be written by other users" in exporter.get("/-/ready").text
    assert f"{spool}: can be written by other users" in exporter.stderr

"""Text file of a rank: replaced atomically, and claimed by its name, so that no two ranks have the same series."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rankscope.base.exposition import escaped
from rankscope.profiler.helper.publishing.metrics_publisher import MetricSample, render
from rankscope.profiler.spool import (
    FORGOTTEN_SECONDS,
    MAX_LABEL_BYTES,
    MAX_SLOTS,
    Claimant,
    SpoolFile,
    label_text,
    remove_own,
)

ODD = 'odd "run"\\ of\na é'


def claimant(run_id: str = "id", *, run: str = "run", rank: int = 3, attempt: int = 0) -> Claimant:
    return Claimant(run, run_id, rank, attempt)


def write(spool: SpoolFile, value: int = 1) -> Path:
    """Write a rank's file, and return its path."""
    own = {"run_id": spool.claimant.run_id, "attempt": str(spool.claimant.attempt), "host": 'x",run_id="forged'}
    spool.write(lambda labels: render(labels, [MetricSample("rank_info", own, 1), MetricSample("rank_steps_total", {}, value)]))
    assert spool.path is not None
    return spool.path


def identity(path: Path) -> Mapping[str, str]:
    families = list(text_string_to_metric_families(path.read_text()))
    (labels,) = (sample.labels for family in families for sample in family.samples if sample.name == "rank_steps_total")
    return labels


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_spool_file_is_replaced_atomically_world_readable_and_removable(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path, claimant(run=f"../{ODD}"))
    for value in (1, 2):
        path = write(spool, value)
    assert names(tmp_path) == [path.name]
    assert path.parent == tmp_path
    assert path.name.startswith("_._odd")
    assert path.name.endswith("-3-0.prom")
    assert identity(path) == {"run": f"../{ODD}", "rank": "3", "slot": "0"}
    assert path.read_text().endswith(" 2\n")
    assert path.stat().st_mode & 0o444 == 0o444
    spool.remove()
    assert names(tmp_path) == []


def test_ranks_of_the_same_name_get_slots_and_freed_slots_are_reused(tmp_path: Path) -> None:
    spools = [SpoolFile(tmp_path, claimant(f"id-{number}")) for number in range(3)]
    paths = [write(spool) for spool in spools]
    assert [identity(path)["slot"] for path in paths] == ["0", "1", "2"]
    # a rank keeps its slot
    assert [write(spool, 7) for spool in spools] == paths

    spools[1].remove()

    assert write(SpoolFile(tmp_path, claimant("id-4"))) == paths[1]
    assert write(SpoolFile(tmp_path, claimant("id-5", rank=4))).name == "run-4-0.prom"


def test_names_that_collide_as_file_names_stay_distinct_as_labels(tmp_path: Path) -> None:
    paths = [write(SpoolFile(tmp_path, claimant(run, run=run))) for run in ("é", "è", "é" * 300)]

    assert [identity(path)["run"] for path in paths] == ["é", "è", "é" * (MAX_LABEL_BYTES // 2)]
    assert len(set(paths)) == 3
    assert all(len(path.name) < 200 for path in paths)


def test_new_attempt_takes_over_files_of_the_previous_attempt(tmp_path: Path) -> None:
    old = SpoolFile(tmp_path, claimant(attempt=0))
    write(old)
    new = SpoolFile(tmp_path, claimant(attempt=1))
    path = write(new)
    assert path.name == "run-3-0.prom"

    # the helper of the old one may still exist
    old.remove()
    assert names(tmp_path) == [path.name]
    assert 'attempt="1"' in path.read_text()
    assert write(old).name == "run-3-1.prom"


@pytest.mark.parametrize(
    ("theirs", "own"),
    [
        (claimant("other"), claimant(attempt=1)),
        (claimant(), claimant("forged", attempt=1)),  # in the name of a host, in quotes
        (claimant(attempt=1), claimant(attempt=1)),
        (claimant(attempt=2), claimant(attempt=1)),
    ],
)
def test_file_of_another_run_or_of_the_same_attempt_is_left_unchanged(theirs: Claimant, own: Claimant, tmp_path: Path) -> None:
    path = write(SpoolFile(tmp_path, theirs))
    before = path.read_text()

    assert write(SpoolFile(tmp_path, own)).name == "run-3-1.prom"
    assert path.read_text() == before


def test_stale_file_of_another_run_is_taken_over(tmp_path: Path) -> None:
    theirs = write(SpoolFile(tmp_path, claimant("another")))
    for age_s, name in ((FORGOTTEN_SECONDS - 1000, "run-3-1.prom"), (FORGOTTEN_SECONDS + 1000, "run-3-0.prom")):
        os.utime(theirs, (time.time() - age_s,) * 2)
        spool = SpoolFile(tmp_path, claimant())
        assert write(spool).name == name
        spool.remove()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_slot_owned_by_another_user_is_not_reused(tmp_path: Path) -> None:
    theirs = write(SpoolFile(tmp_path, claimant(attempt=0)))
    os.chown(theirs, 1001, 1001)
    long_ago = time.time() - 2 * FORGOTTEN_SECONDS
    os.utime(theirs, (long_ago, long_ago))

    assert write(SpoolFile(tmp_path, claimant(attempt=1))).name == "run-3-1.prom"


def test_removed_spool_file_is_rewritten_under_a_free_slot(tmp_path: Path) -> None:
    spool = SpoolFile(tmp_path, claimant())
    path = write(spool)
    path.unlink()
    other = SpoolFile(tmp_path, claimant("other"))
    assert write(other) == path

    assert write(spool).name == "run-3-1.prom"
    other.remove()
    assert write(spool).name == "run-3-1.prom"


def test_planted_link_in_a_shared_folder_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "run-3-0.prom").symlink_to(victim)
    (folder / "run-3-1.prom").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "run-3-2.prom")

    assert write(SpoolFile(folder, claimant())).name == "run-3-3.prom"
    assert victim.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_folder_without_a_free_slot_raises_an_error_with_the_reason(tmp_path: Path) -> None:
    for slot in range(MAX_SLOTS):
        (tmp_path / f"run-3-{slot}.prom").mkdir()

    with pytest.raises(OSError, match="slots of run are taken"):
        write(SpoolFile(tmp_path, claimant()))
    assert not [name for name in names(tmp_path) if name.startswith(".")]


CLAIM = """
import sys
from pathlib import Path
from rankscope.profiler.spool import Claimant, SpoolFile
folder, number = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
spool = SpoolFile(Path(folder), Claimant("run", number, 0, 0))
spool.write(lambda labels: f'rank_info{{slot="{labels["slot"]}"}} 1\\n')
print(spool.path.name)
"""


def test_ranks_claiming_concurrently_get_different_slots(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for number in range(6)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    claimed = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    claimed = [process.communicate()[0].strip() for process in processes]

    assert sorted(claimed) == names(tmp_path) == [f"run-0-{slot}.prom" for slot in range(6)]
    for name in claimed:
        assert f'slot="{name[6:-5]}"' in (tmp_path / name).read_text()


def test_slot_is_claimed_on_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    first = SpoolFile(tmp_path, claimant("a"))

    assert [write(first).name, write(SpoolFile(tmp_path, claimant("b"))).name] == ["run-3-0.prom", "run-3-1.prom"]
    assert write(first, 2).read_text().endswith(" 2\n")
    assert names(tmp_path) == ["run-3-0.prom", "run-3-1.prom"]


def test_user_chosen_names_are_escaped_and_truncated() -> None:
    text = label_text(f"{ODD}\x1b\x00\udcff")

    assert text == f"{ODD}???"
    assert escaped('\\"\n') == '\\\\\\"\\n'
    assert label_text("ä" * 100, 5) == "ää"


def test_only_files_of_this_user_are_removed_after_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.touch()
    (tmp_path / "mine.prom").touch()
    (tmp_path / "other.prom").touch()
    (tmp_path / "link.prom").symlink_to(victim)
    remove_own(tmp_path, ["mine.prom", "link.prom", "gone.prom"])
    assert {entry.name for entry in tmp_path.iterdir()} == {"victim", "other.prom", "link.prom"}
    monkeypatch.setattr(os, "getuid", lambda: victim.stat().st_uid + 1)
    remove_own(tmp_path, ["other.prom"])
    assert (tmp_path / "other.prom").exists()

"""The spool: what ranks leave is relayed, whatever else lies there is refused and counted, and never costs the page."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rank_file import rank_text

from rankscope.exporter.spool.again import Template
from rankscope.exporter.spool.file import MAX_BYTES, MAX_SERIES, parse
from rankscope.exporter.spool.folder import SpoolFolder, default_spool, make_spool
from rankscope.exporter.spool.reading import (
    MAX_BYTES_OF_USER,
    MAX_FILES,
    MAX_FILES_OF_USER,
    MAX_SERIES_OF_USER,
    Spool,
    SpoolError,
    SpoolSample,
)
from rankscope.exporter.spool.series import RankKey, RejectedError, SpoolFile

LABELS = 'run="r1",rank="3",slot="0"'
INFO = f'# TYPE rank_info gauge\nrank_info{{{LABELS},run_id="id-r1"}} 1\n'
R1, R2 = RankKey("r1", "3", "0"), RankKey("r2", "3", "0")
GOOD = f"""\
{INFO}\
# HELP rank_steps_total Training steps completed.
# TYPE rank_steps_total counter
rank_steps_total{{{LABELS}}} 40
# HELP rank_last_step_timestamp_seconds Unix time at which the last step ended.
# TYPE rank_last_step_timestamp_seconds gauge
rank_last_step_timestamp_seconds{{{LABELS}}} 1.7e9
"""


def gauge(labels: str = LABELS, *, name: str = "rank_x", value: str = "1") -> bytes:
    return f"# TYPE {name} gauge\n{name}{{{labels}}} {value}\n".encode()


def gauged(value: float) -> str:
    """A file that is as agreed, with one more series."""
    return INFO + gauge(value=str(value)).decode()


def values_of(sample: SpoolSample) -> list[float]:
    """The values of everything but the identities."""
    return [series.value for family in sample.families if family.name != "rank_info" for series in family.series]


def spool_of(folder: Path, **options: Any) -> Spool:
    return Spool(SpoolFolder(folder), **{"stale_s": 300.0, "forget_s": 86400.0, **options})


def test_a_rank_on_the_page_and_its_silence(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    file = spool / "0-r1-3.prom"
    file.write_text(GOOD.replace("run_id=", 'host="node1",run_id='))

    # given a fresh file, when the page is scraped, then the rank is relayed as it wrote
    exporter = start_exporter("--simulate", "1", "--spool-stale", "5m", "--spool-forget", "2h")
    assert exporter.values("rank_steps_total", run="r1", rank="3") == [40.0]
    assert exporter.values("rank_state", run="r1", rank="3", state="running") == [1.0]
    assert exporter.values("rankscope_exporter_spool_files", state="ok") == [1.0]

    # when nobody writes it any more, then it is silent, and only who it is and its last step are kept
    long_ago = time.time() - 3600
    os.utime(file, (long_ago, long_ago))
    exporter.wait_until(
        lambda: exporter.values("rank_state", run="r1", rank="3") == [1.0] and not exporter.values("rank_steps_total")
    )
    assert exporter.values("rank_state", run="r1", rank="3", state="silent") == [1.0]
    assert exporter.values("rank_last_step_timestamp_seconds", run="r1", rank="3") == [1.7e9]
    assert exporter.values("rank_info", host="node1") == [1.0]
    assert exporter.values("rankscope_exporter_spool_files", state="stale") == [1.0]

    # when that lasts, then it is forgotten
    os.utime(file, (long_ago - 7200, long_ago - 7200))
    exporter.wait_until(lambda: exporter.values("rank_state") == [])
    assert exporter.values("rankscope_exporter_spool_files", state="stale") == [0.0]


def test_hostile_files_cost_themselves_only(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "good.prom").write_text(GOOD)
    (tmp_path / "secret").write_text(GOOD.replace("r1", "stolen"))
    (spool / "link.prom").symlink_to(tmp_path / "secret")
    os.mkfifo(spool / "fifo.prom")
    (spool / "folder.prom").mkdir()
    with (spool / "huge.prom").open("wb") as huge:
        huge.truncate(10 * 2**30)
    (spool / "binary.prom").write_bytes(bytes(range(256)))
    (spool / "prefix.prom").write_text("# TYPE node_load1 gauge\nnode_load1 99\n")
    (spool / "exporters-own.prom").write_bytes(gauge(name="rankscope_exporter_simulated"))
    (spool / "state.prom").write_bytes(gauge(LABELS + ',state="running"', name="rank_state"))
    (spool / "state-total.prom").write_bytes(gauge(name="rank_state_total"))
    (spool / "other-name.txt").write_text("not for us")
    (spool / "overflow.prom").write_bytes(gauge(value="9" * 400))

    exporter = start_exporter("--simulate", "1")

    assert exporter.values("rank_steps_total") == [40.0]
    assert exporter.values("gpu_up") == [1.0]
    assert exporter.values("rankscope_exporter_collector_success", collector="spool") == [1.0]
    assert exporter.values("rankscope_exporter_spool_files", state="ok") == [1.0]
    rejected = {
        dict(labels)["reason"]: value
        for (name, labels), value in exporter.page().items()
        if name == "rankscope_exporter_spool_rejected_files"
    }
    assert rejected == {"not_regular": 3, "too_large": 1, "not_utf8": 1, "wrong_name": 4, "not_prometheus_text": 1}
    page = exporter.get("/metrics").text
    assert "node_load1" not in page
    assert "stolen" not in page


def test_labels_cannot_break_out_of_their_quotes(start_exporter: Callable[..., Any], tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    name = 'x\\"} 1\\ngpu_up{uuid=\\"forged'
    (spool / "a.prom").write_bytes(gauge(f'{LABELS},run_id="{name}"', name="rank_info"))

    exporter = start_exporter("--no-collector.gpu")

    assert exporter.values("rank_info", run_id='x"} 1\ngpu_up{uuid="forged') == [1.0]
    assert exporter.values("gpu_up") == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"rank_x{" + LABELS.encode() + b"} 1\n", "wrong_type"),
        (gauge(name="rank_x_total"), "wrong_type"),
        (f"# TYPE rank_h histogram\nrank_h_sum{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (gauge() + f"# TYPE rank_x_total counter\nrank_x_total{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (gauge('run="r1",slot="0"'), "no_identity"),
        (gauge('run="",rank="1",slot="0"'), "no_identity"),
        (gauge('run="r1",rank="one",slot="0"'), "no_identity"),
        (gauge('run="r1",rank="1"'), "no_identity"),
        (gauge('run="r1",rank="1",slot="00"'), "no_identity"),
        (gauge(), "no_identity"),
        (gauge() + INFO.replace("id-r1", "").encode(), "no_identity"),
        (gauge() + (INFO + INFO.partition("\n")[2].replace("id-r1", "id-r2")).encode(), "no_identity"),
        (gauge() + gauge('run="r1",rank="4",slot="0"', name="rank_y"), "several_ranks"),
        (gauge() + gauge('run="r1",rank="3",slot="1"', name="rank_y"), "several_ranks"),
        (INFO.encode() + gauge() + gauge().partition(b"\n")[2], "repeated_series"),
        (gauge(name="rank_x_duration_seconds"), "wrong_type"),
        (gauge(name="rank_x_count"), "wrong_type"),
        (f"# TYPE rank_x_sum_total counter\nrank_x_sum_total{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (f"# TYPE rank_x_duration_seconds_total counter\nrank_x_duration_seconds_total{{{LABELS}}} 1\n".encode(), "wrong_type"),
        (gauge(value="1 1700000000000"), "timestamp"),
        (gauge(LABELS + ',__name__="rank_y"'), "not_prometheus_text"),
        (gauge(LABELS + ',__own="x"'), "not_prometheus_text"),
        (gauge(LABELS + ',"sp ace"="x"'), "wrong_labels"),
        (gauge(LABELS + "".join(f',l{i}="x"' for i in range(20))), "wrong_labels"),
        (gauge(LABELS + f',l="{"x" * 600}"'), "wrong_labels"),
        (gauge(LABELS + f',l="{"x" * 5000}"'), "not_prometheus_text"),
        (gauge(LABELS, value="one"), "not_prometheus_text"),
        (gauge(LABELS + ',l="\x1b[2J"'), "not_prometheus_text"),
        (b"# TYPE rank_x\n", "not_prometheus_text"),
        (b"\n" * 5000, "too_many_series"),
        (b"# TYPE rank_x gauge\n" + b"".join(gauge(f'{LABELS},l="{i}"') for i in range(MAX_SERIES + 1)), "too_many_series"),
    ],
)
def test_a_file_that_is_not_as_agreed_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(RejectedError) as refused:
        parse(content)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("{%s} 1", {}, 1.0),
        ('{%s,a="1",} 2e3', {"a": "1"}, 2000.0),
        ('{ %s , a = "2" }\t-.5  ', {"a": "2"}, -0.5),
        ('{a="} 1",%s} 2', {"a": "} 1"}, 2.0),
        (r'{%s,a="\\n\n\""} +Inf', {"a": '\\n\n"'}, math.inf),
    ],
)  # fmt: skip
def test_a_line_is_read_as_it_was_meant(line: str, labels: dict[str, str], value: float) -> None:
    _, family = parse(f"{INFO}# TYPE rank_x gauge\nrank_x{line % LABELS}\n".encode()).families

    ((name, read, number),) = [(series.name, dict(series.labels), series.value) for series in family.series]
    assert (name, read, number) == ("rank_x", {"run": "r1", "rank": "3", "slot": "0"} | labels, value)


@pytest.mark.parametrize(
    "line",
    [
        '{%s,a="1" b="2"} 1', '{%s,a="1",a="2"} 1', "{%s,a='1'} 1", '{%s,a="1} 1', "{%s} 0x10", "{%s} 1_000", "{%s}", "{%s",
    ],
)  # fmt: skip
def test_a_line_that_is_none_costs_the_file(line: str) -> None:
    with pytest.raises(RejectedError) as refused:
        parse(f"# TYPE rank_x gauge\nrank_x{line % LABELS}\n".encode())
    assert refused.value.reason == "not_prometheus_text"


@given(text=st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(RejectedError):  # nothing of this kind says whose it is
        parse(text.encode())


def test_of_two_files_for_one_series_the_fresher_counts(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(gauged(1))
    (tmp_path / "b.prom").write_text(gauged(2))
    os.utime(tmp_path / "a.prom", (1000, 1000))
    os.utime(tmp_path / "b.prom", (1050, 1050))

    sample = spool_of(tmp_path, now=lambda: 1060.0).read()

    assert values_of(sample) == [2.0]
    assert sample.duplicates == 2
    assert sample.states == {R1: "running"}


def test_a_stale_duplicate_does_not_make_a_running_rank_silent(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(GOOD)
    (tmp_path / "b.prom").write_text(GOOD)
    os.utime(tmp_path / "a.prom", (1000, 1000))
    os.utime(tmp_path / "b.prom", (2000, 2000))

    sample = spool_of(tmp_path, now=lambda: 2010.0).read()

    assert sample.states == {R1: "running"}
    assert {family.name for family in sample.families} == {"rank_info", "rank_steps_total", "rank_last_step_timestamp_seconds"}


def test_a_file_from_the_future_is_refused_because_it_would_never_be_silent(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(GOOD)
    os.utime(tmp_path / "a.prom", (9000, 9000))

    sample = spool_of(tmp_path, now=lambda: 1000.0).read()

    assert sample.rejected == {"from_the_future": 1}
    assert sample.states == {}


class Clocks:
    """The wall clock as the files have it, plus what somebody set it by; the monotonic clock goes on."""

    def __init__(self) -> None:
        self.set_by_s = 0.0
        self.passed_s = 0.0

    def now(self) -> float:
        return time.time() + self.set_by_s + self.passed_s

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


@pytest.mark.parametrize("step_s", [3600.0, 400_000.0, -3600.0, -400_000.0])
def test_setting_the_clock_makes_nobody_silent_and_nobody_fresh(step_s: float, tmp_path: Path) -> None:
    # given a rank that runs and one that is silent
    clocks = Clocks()
    spool = spool_of(tmp_path, now=clocks.now, monotonic=clocks.monotonic)
    (tmp_path / "running.prom").write_text(GOOD)
    (tmp_path / "silent.prom").write_text(GOOD.replace("r1", "r2"))
    long_ago = time.time() - 1000
    os.utime(tmp_path / "silent.prom", (long_ago, long_ago))
    states = {R1: "running", R2: "silent"}
    assert spool.read().states == states

    # when the clock is set, then nothing changes, even for a file that was written just before
    clocks.set_by_s = step_s
    assert spool.read().states == states
    clocks.set_by_s = 0
    spool.read()
    (tmp_path / "next").write_text(GOOD)
    (tmp_path / "next").replace(tmp_path / "running.prom")
    clocks.set_by_s = step_s
    sample = spool.read()
    assert (sample.states, sample.rejected) == (states, {})

    # and when the rank really stops, then it is silent in time, and forgotten in time
    clocks.passed_s = 400
    assert spool.read().states == {R1: "silent", R2: "silent"}
    clocks.passed_s = 86400 - 900
    assert spool.read().states == {R1: "silent"}


def test_a_file_whose_time_is_set_back_by_hand_is_as_old_as_that(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    (tmp_path / "a.prom").write_text(GOOD)
    assert spool.read().states == {R1: "running"}
    os.utime(tmp_path / "a.prom", (time.time() - 1000,) * 2)

    assert spool.read().states == {R1: "silent"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_a_run_belongs_to_the_user_who_mentioned_it_first(tmp_path: Path) -> None:
    mine = tmp_path / "mine.prom"
    mine.write_text(gauged(1))
    os.chown(mine, 1001, 1001)
    spool = spool_of(tmp_path)
    assert spool.read().ok_files == 1

    forged = tmp_path / "forged.prom"
    forged.write_text(gauged(2))
    os.chown(forged, 1002, 1002)
    sample = spool.read()

    assert values_of(sample) == [1.0]
    assert sample.rejected == {"foreign_owner": 1}
    assert sample.owners == {"id-r1": 1001}


def test_a_rewritten_file_is_read_again_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    file, replacement = tmp_path / "a.prom", tmp_path / ".a.tmp"
    for value in (1.0, 2.0):
        replacement.write_text(gauged(value))
        replacement.replace(file)
        assert values_of(spool.read()) == [value]

    file.unlink()

    assert spool.read().states == {}


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES_OF_USER + 5):
        (tmp_path / f"{number:06d}.prom").write_bytes(b"")

    sample = spool_of(tmp_path).read()

    assert sample.rejected == {"too_many_files": 5, "empty": MAX_FILES_OF_USER}


def test_a_folder_full_of_anything_is_not_read_to_its_end_and_that_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.exporter.spool.reading.MAX_NAMES", 20)
    for number in range(30):
        (tmp_path / f"{number}.txt").write_bytes(b"")

    assert spool_of(tmp_path).read().rejected == {"too_many_files": 1}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_a_user_with_too_many_files_costs_nobody_else(tmp_path: Path) -> None:
    for number in range(MAX_FILES):
        (tmp_path / f"{number}.prom").write_bytes(b"")
        os.chown(tmp_path / f"{number}.prom", 1001, 1001)
    (tmp_path / "mine.prom").write_text(GOOD)
    os.utime(tmp_path / "mine.prom", (time.time() - 100,) * 2)

    sample = spool_of(tmp_path).read()

    assert sample.states == {R1: "running"}
    assert sample.rejected == {"too_many_files": MAX_FILES - MAX_FILES_OF_USER, "empty": MAX_FILES_OF_USER}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_two_users_with_as_many_files_as_each_may_have_cost_nobody_else(tmp_path: Path) -> None:
    for number in range(MAX_FILES):
        (tmp_path / f"{number}.prom").write_bytes(b"")
        os.chown(tmp_path / f"{number}.prom", 1001 + number % 2, 1001)
    (tmp_path / "mine.prom").write_text(GOOD)
    os.utime(tmp_path / "mine.prom", (time.time() - 100,) * 2)

    sample = spool_of(tmp_path).read()

    assert sample.states == {R1: "running"}
    assert sample.rejected == {"too_many_files": 1, "empty": MAX_FILES - 1}


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")
def test_a_crowd_of_names_hides_neither_known_ranks_nor_those_of_others(tmp_path: Path) -> None:
    (tmp_path / "known.prom").write_text(GOOD)
    spool = spool_of(tmp_path)
    spool.read()
    for number in range(8200):
        os.mknod(tmp_path / f"{number}.junk")
        os.mknod(tmp_path / f"{number}.prom")
        os.chown(tmp_path / f"{number}.prom", 1001, 1001)
    (tmp_path / "new.prom").write_text(GOOD.replace("r1", "r2"))

    sample = spool.read()

    assert sample.states == {R1: "running", R2: "running"}
    assert sample.rejected == {"too_many_files": 8200 - MAX_FILES_OF_USER, "empty": MAX_FILES_OF_USER}


def test_ranks_known_before_stay_where_the_list_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "known.prom").write_text(GOOD)
    spool = spool_of(tmp_path)
    spool.read()

    monkeypatch.setattr("rankscope.exporter.spool.reading.MAX_NAMES", 0)

    for _ in range(2):
        sample = spool.read()
        assert sample.states == {R1: "running"}
        assert sample.rejected == {"too_many_files": 1}
    assert spool_of(tmp_path).read().states == {}


def test_a_user_whose_files_are_too_long_together_loses_the_oldest(tmp_path: Path) -> None:
    fits = MAX_BYTES_OF_USER // MAX_BYTES
    for number in range(fits + 3):
        (tmp_path / f"{number}.prom").write_text("#\n" + "#" * 3000 + "\n")
        os.truncate(tmp_path / f"{number}.prom", MAX_BYTES)

    assert spool_of(tmp_path).read().rejected == {"too_many_files": 3, "not_prometheus_text": fits}


def test_a_user_with_too_many_series_loses_the_oldest_and_costs_nobody_else(tmp_path: Path) -> None:
    per_file = 100
    text = "".join(f'rank_x{{{LABELS},l="{number}"}} 1\n' for number in range(per_file - 1))
    files = MAX_SERIES_OF_USER // per_file + 2
    for number in range(files):
        file = tmp_path / f"{number}.prom"
        file.write_text(f"{INFO}# TYPE rank_x gauge\n{text}")
        os.utime(file, (1000 + number, 1000 + number))
    freshest = tmp_path / f"{files - 1}.prom"
    freshest.write_text(GOOD.replace("r1", "r2"))
    os.utime(freshest, (1500, 1500))

    sample = spool_of(tmp_path, now=lambda: 1600.0, stale_s=1000.0).read()

    assert sample.rejected == {"too_many_files": 1}
    assert sample.states[R2] == "running"


def test_a_file_just_too_large_is_refused_and_one_at_the_limit_is_read(tmp_path: Path) -> None:
    padding = "".join(f"# {'x' * 997}\n" for _ in range(MAX_BYTES // 1000 + 1))
    at_limit = GOOD + padding[: MAX_BYTES - len(GOOD) - 1] + "\n"
    (tmp_path / "a.prom").write_text(at_limit)
    assert spool_of(tmp_path).read().ok_files == 1

    (tmp_path / "a.prom").write_text(at_limit + "\n")

    assert spool_of(tmp_path).read().rejected == {"too_large": 1}


def test_a_missing_folder_is_an_error_that_names_it_and_heals(tmp_path: Path) -> None:
    spool = spool_of(tmp_path / "later")
    with pytest.raises(SpoolError, match=r"later: No such file"):
        spool.read()

    (tmp_path / "later").mkdir()

    assert spool.read().states == {}


def test_a_spool_for_all_users_is_like_tmp(tmp_path: Path) -> None:
    assert make_spool(SpoolFolder(tmp_path / "new" / "spool"), mode=0o1777)
    assert (tmp_path / "new" / "spool").stat().st_mode & 0o7777 == 0o1777
    (tmp_path / "file").write_text("")
    assert not make_spool(SpoolFolder(tmp_path / "file" / "spool"), mode=0o700)


@pytest.fixture
def no_system_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where nobody made one and nobody here may."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("rankscope.exporter.spool.folder.SYSTEM_SPOOL", tmp_path / "file" / "spool")


def test_without_the_system_folder_the_spool_is_the_users_own(no_system_spool: None) -> None:
    runtime = SpoolFolder(Path("/run/user/7/rankscope/spool"), private=True)
    assert default_spool({"XDG_RUNTIME_DIR": "/run/user/7"}) == runtime
    assert default_spool({}) == SpoolFolder(Path(f"/tmp/rankscope-{os.getuid()}/spool"), private=True)


def test_who_only_looks_makes_no_system_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = tmp_path / "rankscope" / "spool"
    monkeypatch.setattr("rankscope.exporter.spool.folder.SYSTEM_SPOOL", system)

    assert default_spool({"XDG_RUNTIME_DIR": "/run/user/7"}, make=False).private
    assert list(tmp_path.iterdir()) == []

    system.mkdir(parents=True)
    assert default_spool({}, make=False) == SpoolFolder(system)


def test_a_spool_of_ones_own_is_closed_to_others_and_read(no_system_spool: None, tmp_path: Path) -> None:
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
def test_a_spool_of_ones_own_is_never_read_when_others_could_write_there(
    take_over: Callable[[Path], None], words: str, level: str, no_system_spool: None, tmp_path: Path
) -> None:
    folder = default_spool({"XDG_RUNTIME_DIR": str(tmp_path / "runtime")})
    make_spool(folder, mode=0o700)
    (folder.path / "a.prom").write_text(GOOD)
    taken = folder.path if level == "spool" else folder.path.parent
    take_over(taken)

    with pytest.raises(SpoolError, match=rf"{taken}: {words}.*--spool"):
        Spool(folder, stale_s=300.0, forget_s=86400.0).read()


def test_a_folder_that_others_made_first_gets_no_spool(no_system_spool: None, tmp_path: Path) -> None:
    folder = default_spool({"XDG_RUNTIME_DIR": str(tmp_path / "runtime")})
    folder.path.parent.mkdir(parents=True)
    folder.path.parent.chmod(0o1777)

    assert not make_spool(folder, mode=0o700)
    assert not folder.path.exists()


def test_a_spool_that_cannot_be_trusted_is_reported_and_the_rest_goes_on(
    start_exporter: Callable[..., Any], tmp_path: Path
) -> None:
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


def test_what_the_recorder_publishes_is_relayed_to_the_last_series(tmp_path: Path) -> None:
    text = rank_text()
    (tmp_path / "a.prom").write_text(text)

    sample = spool_of(tmp_path).read()

    lines = [line for line in text.splitlines() if not line.startswith("#")]
    relayed = [one for family in sample.families for one in family.series]
    assert sorted(one.name for one in relayed) == sorted(line.partition("{")[0] for line in lines)
    assert len(lines) <= MAX_SERIES / 2
    assert len(text) < MAX_BYTES / 2
    (duration,) = (family for family in sample.families if family.type == "histogram")
    assert [dict(one.labels).get("le") for one in duration.series][-3:] == ["+Inf", None, None]


def histogram(*buckets: tuple[str, str], total: str = "3.5", count: str = "3", labels: str = "") -> str:
    name, common = "rank_x_duration_seconds", LABELS + labels
    lines = [f'{name}_bucket{{{common},le="{bound}"}} {value}\n' for bound, value in buckets]
    return "".join([*lines, f"{name}_sum{{{common}}} {total}\n", f"{name}_count{{{common}}} {count}\n"])


def histogram_file(text: str) -> bytes:
    return f"{INFO}# TYPE rank_x_duration_seconds histogram\n{text}".encode()


SOUND = (("0.5", "1"), ("1.0", "1"), ("+Inf", "3"))


@pytest.mark.parametrize(
    "text",
    [histogram(*SOUND), histogram(("+Inf", "3")), histogram(*SOUND, labels=',l="a"') + histogram(*SOUND, labels=',l="b"')],
)
def test_a_sound_histogram_is_read(text: str) -> None:
    families = parse(histogram_file(text)).families

    assert [(family.name, family.type) for family in families][1:] == [("rank_x_duration_seconds", "histogram")]
    assert len(families[1].series) == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        histogram(),  # no bucket
        histogram(("1.0", "3")),  # not to infinity
        histogram(("1.0", "1"), ("0.5", "1"), ("+Inf", "3")),  # out of order
        histogram(("1", "1"), ("1.0", "1"), ("+Inf", "3")),  # one bound twice
        histogram(("0.5", "2"), ("1.0", "1"), ("+Inf", "3")),  # fewer in more
        histogram(("0.5", "-1"), ("+Inf", "3")),
        histogram(("0.5", "0.5"), ("+Inf", "3")),
        histogram(("0.5", "NaN"), ("+Inf", "3")),
        histogram(("0.5", "+Inf"), ("+Inf", "+Inf"), count="+Inf"),
        histogram(("NaN", "1"), ("+Inf", "3")),
        histogram(("half", "1"), ("+Inf", "3")),
        histogram(*SOUND, count="4"),
        histogram(*SOUND, total="-1"),
        histogram(*SOUND, total="NaN"),
        histogram(*SOUND).replace("_sum", "_count"),
        histogram(*SOUND).partition("rank_x_duration_seconds_sum")[0],
        histogram(*SOUND, labels=',l="a"') + histogram(*SOUND, labels=',l="b"').partition("rank_x_duration_seconds_count")[0],
        histogram(*SOUND) + histogram(*SOUND, labels=',l="b"') + histogram(("2.0", "1"), ("+Inf", "3")),
    ],
)
def test_a_histogram_that_is_none_costs_the_file(text: str) -> None:
    with pytest.raises(RejectedError) as refused:
        parse(histogram_file(text))
    assert refused.value.reason in {"wrong_histogram", "repeated_series"}


def test_a_file_in_which_only_values_changed_is_read_as_anew_and_keeps_what_did_not(tmp_path: Path) -> None:
    def write(text: str) -> SpoolSample:
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").replace(tmp_path / "a.prom")
        return spool.read()

    spool = spool_of(tmp_path)
    before = {one.name: one for family in write(rank_text(40)).families for one in family.series}
    sample = write(rank_text(50))

    assert sample.families == tuple(sorted(parse(rank_text(50).encode()).families, key=lambda family: family.name))
    after = {one.name: one for family in sample.families for one in family.series}
    assert after["rank_steps_total"].value == 50
    assert after["rank_info"] is before["rank_info"]
    assert after["rank_steps_total"].labels is before["rank_steps_total"].labels
    # a value that cannot be costs the file, and the next good one is read
    assert write(rank_text(60).replace('le="+Inf"} 60', 'le="+Inf"} 59')).rejected == {"wrong_histogram": 1}
    assert write(rank_text(60)).ok_files == 1


@given(text=st.text('0123456789.eE+-NaInf_ \t{}"#\n', max_size=12), place=st.integers(0, 10_000))
def test_reading_only_values_never_differs_from_reading_all(text: str, place: int) -> None:
    good = (INFO + gauge(value="1").decode() + gauge(value="NaN", name="rank_y").decode()).encode()
    file = parse(good)
    template = Template.of(good, file)
    assert template is not None
    changed = bytearray(good)
    at = place % len(changed)
    changed[at : at + 1] = text.encode()

    def outcome(read: Callable[[], SpoolFile | None]) -> Any:
        try:
            found = read()
        except RejectedError as error:
            return error.reason
        return found and repr(found)

    quick = outcome(lambda: template.read(bytes(changed), file))
    assert quick is None or quick == outcome(lambda: parse(bytes(changed)))


def test_two_runs_that_claim_the_same_series_have_slots_of_their_own(tmp_path: Path) -> None:
    # given two ranks that do not know of each other, and the first one's slot
    (tmp_path / "a.prom").write_text(INFO)
    spool = spool_of(tmp_path)
    assert spool.read().states == {R1: "running"}
    (tmp_path / "b.prom").write_text(INFO.replace("id-r1", "id-r2"))
    (tmp_path / "c.prom").write_text(INFO.replace("id-r1", "id-r3").replace('slot="0"', 'slot="1"'))

    for turn in range(4):  # whoever was the last to write
        os.utime(tmp_path / ("a.prom", "b.prom")[turn % 2])
        sample = spool.read()
        (family,) = sample.families
        slots = {dict(one.labels)["run_id"]: dict(one.labels)["slot"] for one in family.series}
        assert slots["id-r1"] == "0"
        assert {slots["id-r2"], slots["id-r3"]} == {"1", "2"}
        assert set(sample.states) == {R1._replace(slot=slot) for slot in "012"}
        assert (sample.duplicates, sample.rejected) == (0, {})

    # when the first is gone, then the others keep theirs
    (tmp_path / "a.prom").unlink()
    assert {dict(one.labels)["run_id"]: dict(one.labels)["slot"] for one in spool.read().families[0].series} == {
        run_id: slot for run_id, slot in slots.items() if run_id != "id-r1"
    }


def test_a_run_that_is_started_again_in_the_same_file_has_the_same_series(tmp_path: Path) -> None:
    spool = spool_of(tmp_path)
    for run_id in ("id-r1", "id-r2"):
        (tmp_path / "next").write_text(GOOD.replace("id-r1", run_id))
        (tmp_path / "next").replace(tmp_path / "a.prom")
        sample = spool.read()
        assert sample.states == {R1: "running"}
        assert [dict(one.labels)["run_id"] for family in sample.families[:1] for one in family.series] == [run_id]


def test_a_rank_that_says_its_recorder_is_off_is_neither_running_nor_silent(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(INFO.encode() + gauge(name="rank_recorder_disabled"))
    (tmp_path / "b.prom").write_bytes(
        INFO.replace("r1", "r2").encode() + gauge(LABELS.replace("r1", "r2"), name="rank_recorder_disabled", value="0")
    )
    spool = spool_of(tmp_path)
    assert spool.read().states == {R1: "disabled", R2: "running"}

    long_ago = time.time() - 1000
    os.utime(tmp_path / "a.prom", (long_ago, long_ago))

    assert spool.read().states == {R1: "silent", R2: "running"}

"""All ranks of one start of an elastic job are in one attempt, although their agents count restarts differently."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.profiler.handovers import handover_of
from tests.profiler.recorded_runs import attached_environment, info_of
from tests.waiting import wait_until

from rankscope.profiler.helper.writing.store import RunStore
from rankscope.profiler.settings import RecorderSettings
from rankscope.profiler.starts import process_start_unix_ns, start_key
from rankscope.runs.paths import attempt_dir
from rankscope.runs.reader import RunReader

JOB = Path(__file__).parent / "jobs" / "restarted.py"
SECOND = 10**9
NOBODY = 2**22 + 1
"""Process id that no process has."""


def joined(  # what may differ between two processes
    run: Path,
    rank: int,
    begun_s: int,
    *,
    key: str | None = "job",
    host: str = "h",
    pid: int = NOBODY,
    attempt: int = 0,
    world_size: int = 2,
) -> RunStore:
    """Return the store of a rank whose process began at ``begun_s``, and had its first step 5 s later."""
    first = (begun_s + 5) * SECOND
    handover = handover_of(run, rank=rank, world_size=world_size, host=host, pid=pid, attempt=attempt, start_unix_ns=first)
    started = msgspec.structs.replace(handover.attempt, start_unix_ns=first, start_key=key)
    store = RunStore(msgspec.structs.replace(handover, attempt=started, process_unix_ns=begun_s * SECOND))
    assert store.flush()
    return store


def test_ranks_of_one_start_share_an_attempt_and_later_starts_get_another(tmp_path: Path) -> None:
    for start in range(3):
        stores = [joined(tmp_path, rank, 1000 + 20 * start, host=f"h{rank}") for rank in (start % 2, 1 - start % 2)]
        assert [store.attempt for store in stores] == [start, start]
    info = info_of(tmp_path, 1, 2)
    assert info.attempt == 2
    about = RunReader(tmp_path).attempt(2)
    assert about is not None
    assert about.attempt == 2


@pytest.mark.parametrize("host", ["h", "another"])
def test_rank_absent_from_the_previous_start_joins_the_next_attempt(tmp_path: Path, host: str) -> None:
    # Given a start in which rank 1 never reached its first step, and rank 0 ended
    before = joined(tmp_path, 0, 1000)
    ended = msgspec.structs.replace(before._handover.rank, end_unix_ns=1006 * SECOND)
    assert before.write_rank(ended)
    # Then it is with rank 0 in the next attempt, in either order
    assert joined(tmp_path, 1, 1008, host=host).attempt == 1
    assert joined(tmp_path, 0, 1008).attempt == 1


def test_time_between_starts_separates_attempts_after_a_lost_host(tmp_path: Path) -> None:
    joined(tmp_path, 0, 1000)
    assert joined(tmp_path, 1, 1100, host="another").attempt == 1


def test_clock_skew_does_not_separate_ranks_of_one_start(tmp_path: Path) -> None:
    stores = [joined(tmp_path, rank, 1000 + skew, host=f"h{rank}") for rank, skew in enumerate((0, 12, -12))]
    assert {store.attempt for store in stores} == {0}


def test_another_job_or_world_size_is_a_separate_attempt(tmp_path: Path) -> None:
    stores = [joined(tmp_path, rank, 1000, key=key) for key in ("one", "two") for rank in (0, 1)]
    assert [store.attempt for store in stores] == [0, 0, 1, 1]
    assert joined(tmp_path, 0, 1000, key="one", world_size=3).attempt == 2


def test_second_process_of_a_live_rank_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time_ns() // SECOND
    assert joined(tmp_path, 0, now, pid=os.getpid()).begun
    assert joined(tmp_path, 0, now - 1).refused
    assert "is already recorded in" in capsys.readouterr().err
    assert not attempt_dir(tmp_path, 1).exists()


def test_attempt_number_is_kept_without_an_agent_and_duplicate_is_refused(tmp_path: Path) -> None:
    assert joined(tmp_path, 0, 1000, key=None, attempt=3, host="another").attempt == 3
    assert joined(tmp_path, 0, 1100, key=None, attempt=3).refused


def test_second_program_of_one_command_is_the_next_attempt(tmp_path: Path) -> None:
    # As a fold after another, each with its own processes
    folds = [[joined(tmp_path, rank, 1000 + 100 * fold, key=None) for rank in range(2)] for fold in range(3)]
    assert [[store.attempt for store in fold] for fold in folds] == [[0, 0], [1, 1], [2, 2]]
    # and then a program with another number of ranks
    assert [joined(tmp_path, rank, 2000, key=None, world_size=4).attempt for rank in range(4)] == [3] * 4


def test_restart_count_is_used_only_without_an_identified_agent() -> None:
    settings = RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1, attempt=3)
    assert settings.elastic_attempt({}) == 3
    assert settings.elastic_attempt({"TORCHELASTIC_RESTART_COUNT": "2"}) == 5
    assert settings.elastic_attempt({"TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "x"}) == 3
    assert start_key({"MASTER_PORT": "1"}) is None
    keys = {start_key({"TORCHELASTIC_RUN_ID": job, "MASTER_PORT": port}) for job in "ab" for port in "12"}
    assert len(keys) == 4


def test_process_start_time_is_available_only_while_the_process_lives() -> None:
    before = time.time_ns()
    with subprocess.Popen(["sleep", "60"]) as child:
        began = process_start_unix_ns(child.pid)
        assert began is not None
        # Ticks of a hundredth of a second
        assert before - SECOND // 50 <= began <= time.time_ns()
        child.kill()
    assert process_start_unix_ns(child.pid) is None
    began_ns = process_start_unix_ns()
    assert began_ns is not None
    assert began_ns < before


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.usefixtures("require_torch")
def test_agents_with_different_restart_counts_share_attempts(tmp_path: Path, free_port: Callable[[], int]) -> None:
    # Given two agents, and a worker of the first that fails
    run, port = tmp_path / "run", free_port()
    environment = attached_environment(run, window_steps=0) | {"OMP_NUM_THREADS": "1"}
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=1"]
    agent += ["--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{port}", "--monitor-interval=0.1"]
    agents = [
        subprocess.Popen([*agent, str(JOB), str(tmp_path), name], env=environment, stderr=subprocess.PIPE, text=True)
        for name in "AB"
    ]
    communicates = [item.communicate(timeout=120)[1] for item in agents]
    assert [item.returncode for item in agents] == [0, 0], communicates
    # Then they have counted differently
    counts = [int((tmp_path / f"{name}-1").read_text().split()[1]) for name in "AB"]
    assert counts == [1, 0]
    # And each start is an attempt of both
    reader = RunReader(run)
    wait_until(
        lambda: all(info is not None and info.end_reason is not None for info in [reader.rank(1, 0), reader.rank(1, 1)]),
        details=lambda: (communicates, {attempt: reader.ranks(attempt) for attempt in reader.attempts()}),
    )
    assert reader.attempts() == [0, 1]
    assert [reader.ranks(attempt) for attempt in (0, 1)] == [[0, 1], [0, 1]]
    assert all(list(reader.steps(attempt, rank)) for attempt in (0, 1) for rank in (0, 1))
    assert not [line for text in communicates for line in text.splitlines() if "rankscope:" in line]

"""The helper's question to NCCL RAS, when a dump is requested or torch has written one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.profiler.handovers import context_of, handover_of
from tests.profiler.request_pipe import RequestPipe
from tests.ras_server import Comm, answer, listening, ras
from tests.waiting import wait_until

from rankscope.profiler.helper.collectives import flight
from rankscope.profiler.helper.collectives import ras as module
from rankscope.profiler.helper.collectives.flight import FlightDumps
from rankscope.runs.control import new_request, post
from rankscope.runs.paths import attempt_dir
from rankscope.runs.ras import RasAnswer, read_answers

Helper = Callable[[int, str], FlightDumps]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    attempt_dir(tmp_path / "run", 0).mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def helper(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    monkeypatch.setattr(module, "APART_SECONDS", 0.0)
    monkeypatch.setattr(flight, "CHECK_SECONDS", 0.0)
    requests = RequestPipe()
    monkeypatch.setattr(flight, "_REQUESTS", requests.writer)

    def made(rank: int, backend: str) -> FlightDumps:
        return FlightDumps(context_of(handover_of(run, rank=rank, world_size=2, backend=backend), tmp_path, lambda _: None))

    yield made
    requests.close()


def kept(task: FlightDumps, run: Path, *, count: int) -> list[RasAnswer]:
    """Tick until ``count`` answers are in the run."""

    def answers() -> list[RasAnswer]:
        task.tick()
        answers = read_answers(run, 0, most=8)
        return answers if len(answers) >= count else []

    enough: list[RasAnswer] = wait_until(answers)
    return enough


def test_requested_dump_records_two_nccl_ras_answers(run: Path, helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    ras_text = answer(Comm({0: 1, 1: 1}))
    with listening(ras(ras_text)) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        task = helper(0, "cpu:gloo,cuda:nccl")
        post(run, new_request("dump"))
        answers = kept(task, run, count=2)
        task.end(vanished=False)
    assert [item.text for item in answers] == [ras_text.decode()] * 2


@pytest.mark.slow
def test_torch_watchdog_dump_records_two_nccl_ras_answers(
    run: Path, tmp_path: Path, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "theirs-"))
    with listening(ras(answer())) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        task = helper(0, "nccl")
        (tmp_path / "theirs-0").write_bytes(b"dump")
        kept(task, run, count=2)
        task.end(vanished=False)


@pytest.mark.parametrize(("rank", "backend", "enabled"), [(1, "nccl", "1"), (0, "gloo", "1"), (0, "nccl", "0")])
def test_nccl_ras_is_queried_only_by_rank_0_of_an_nccl_job_with_ras(
    run: Path, helper: Helper, monkeypatch: pytest.MonkeyPatch, *, rank: int, backend: str, enabled: str
) -> None:
    asked: list[str] = []
    monkeypatch.setenv("NCCL_RAS_ENABLE", enabled)
    with listening(ras(answer(), asked=asked)) as address:
        monkeypatch.setenv("NCCL_RAS_ADDR", address)
        task = helper(rank, backend)
        request = new_request("dump")
        post(run, request)

        def seen() -> bool:
            task.tick()
            return bool(task._requests)

        wait_until(seen)
        task.end(vanished=False)
        if task._ras._thread is not None:
            task._ras._thread.join(60)
    assert asked == []


def test_unreachable_nccl_ras_records_no_answer(run: Path, helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    task = helper(0, "nccl")
    task._ras.ask(0)
    assert task._ras._thread is not None
    task._ras._thread.join(60)
    assert not task._ras._thread.is_alive()
    assert read_answers(run, 0, most=8) == []
    task.end(vanished=False)

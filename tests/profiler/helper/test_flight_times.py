"""Helper's task that records durations of collectives, from dumps of a rank's Flight Recorder."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.flight_dump_files import entry
from tests.profiler.timed_collectives import BASE_US, Helper

from rankscope.base.atomic_files import replace_file
from rankscope.profiler.flight_files import DURATIONS, done_file, dump_file
from rankscope.runs.durations import PART, TRANSFER


def call(number: int, *, ended: bool = True, **more: Any) -> dict[str, Any]:
    """Return the entry of a collective of the rank."""
    created_ns = 1000 * (BASE_US + 1000 * number)
    fields = ({"duration_ms": 0.1} if ended else {}) | more
    return entry(number, "nccl:all_reduce", sequence=number, created_ns=created_ns, sizes=([[64]], [[64]]), ended=ended, **fields)


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    """Helper of a rank whose Flight Recorder keeps 100 operations, with timing, and that has no plugin."""
    environment = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_NCCL_ENABLE_TIMING": "1"}
    helper = Helper(tmp_path, monkeypatch, environment)
    yield helper
    helper.requests.close()


def test_dumps_are_requested_and_yield_each_operation_once(helper: Helper) -> None:
    # given a first dump, in which one operation has not ended
    helper.look()
    helper.dump([call(number) for number in range(9)] + [call(9, ended=False), call(10)])
    helper.look(0.5)
    assert helper.numbers == [*range(9), 10]
    # when the next one overlaps it
    helper.look()
    helper.dump([call(number) for number in range(5, 30)])
    helper.look(0.5)
    # then only what is new is recorded
    assert sorted(helper.numbers) == list(range(30))
    assert helper.blocks[-1].lost == 0
    assert helper.blocks[0].groups[0].ranks == [0, 1]
    # and local memory is released
    assert list(helper.scratch.glob("flight-*")) == []
    assert helper.reported == []


def test_replacement_of_a_killed_helper_records_only_new_operations(helper: Helper) -> None:
    helper.look()
    helper.dump([call(number) for number in range(9)] + [call(9, ended=False)])
    helper.look(0.5)
    helper.replace()
    helper.look()
    helper.dump([call(number) for number in range(12)])
    helper.look(0.5)
    assert sorted(helper.numbers) == list(range(12))
    assert helper.reported == []


def test_overwritten_operations_are_counted_and_logged_once(helper: Helper) -> None:
    for first in (0, 150, 300):
        helper.look(128.0)
        helper.dump([call(number) for number in range(first, first + 100)])
        helper.look(0.5)
    assert [block.lost for block in helper.blocks] == [0, 50, 50]
    assert len(helper.reported) == 1


@pytest.mark.full
@pytest.mark.slow
def test_costly_dumps_are_requested_less_often(helper: Helper) -> None:
    number, dumped_at = 0, []
    for _ in range(2 * 300):
        helper.look(0.5)
        if (received := helper.requests.received()) == [DURATIONS]:
            dumped_at.append(helper.now)
            os.write(helper.requests.writer, f"{DURATIONS}\n".encode())
            number += 10
            helper.dump([call(item) for item in range(max(0, number - 100), number)], took_us=100_000)
        else:
            assert received == []
    # 100 ms are half of 1 % of 20 s, and the next interval is 32 s, by the clock
    assert len(dumped_at) > 5
    assert {after - before for before, after in pairwise(dumped_at[3:])} == {32.0}
    assert all(at % 32 == 0 for at in dumped_at[3:])


def test_operations_of_a_coalesced_batch_are_recorded_with_the_batch(helper: Helper) -> None:
    helper.look()
    part = {"is_p2p": True, "profiling_name": "nccl:send 0->1", "retired": False, "state": "scheduled"}
    batch = call(1, profiling_name="nccl:coalesced", is_p2p=True)
    helper.dump([call(0, ended=False, **part), batch, call(2, ended=False, **part)])
    helper.look(0.5)
    (block,) = helper.blocks
    assert [block.ops[at] for at in block.op] == ["send", "coalesced"]
    assert block.flags == [TRANSFER | PART, TRANSFER]


def test_unresponsive_rank_is_reported_once_and_not_asked_again(helper: Helper) -> None:
    for _ in range(10):
        helper.look(30.0)
    assert helper.requests.received() == [DURATIONS]
    assert len(helper.reported) == 1
    # when its dump comes after all, then it is recorded
    replace_file(
        dump_file(helper.scratch, DURATIONS, "nccl"), pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [call(0)]})
    )
    replace_file(done_file(helper.scratch, DURATIONS), b"10 us")
    helper.look()
    assert helper.numbers == [0]


@pytest.mark.parametrize("damage", [b"", b"\x80\x04.", pickle.dumps({"version": "1", "entries": [1, {}], "pg_config": 3})])
def test_a_damaged_dump_is_reported_once(helper: Helper, damage: bytes) -> None:
    for _ in range(3):
        helper.look(32.0)
        assert helper.requests.received() == [DURATIONS]
        replace_file(dump_file(helper.scratch, DURATIONS, "nccl"), damage)
        replace_file(done_file(helper.scratch, DURATIONS), b"10 us")
        helper.look(0.5)
    assert len(helper.reported) <= 1
    assert helper.numbers == []

"""Measures of a step that can be tested without training."""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from time import perf_counter_ns as now
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from rankscope.profiler.rank import meters
from rankscope.profiler.rank.measures import amount, count, finite, measure
from rankscope.profiler.rank.meters import GcMeter, ThreadMeter


def test_batch_is_measured_by_the_tensors_in_nested_containers() -> None:
    assert measure(torch.zeros(4, 3)) == (4, 12)
    assert measure([torch.zeros(4, 3), {"mask": torch.zeros(4, 5)}, "text"]) == (4, 32)
    assert measure(UserDict(ids=torch.zeros(2, 7))) == (2, 14)
    assert measure((torch.tensor(1.0), torch.zeros(6))) == (6, 7), "a scalar has no samples"
    assert measure("no tensors") == (None, None)


def test_only_plain_finite_numbers_are_accepted() -> None:
    for wrong in (float("inf"), float("nan"), 10**400, "1", None, True, torch.ones(1)):
        assert finite(wrong) is amount(wrong) is count(wrong) is None
    assert (finite(-1), amount(-1), count(-1)) == (-1.0, None, None)
    assert (finite(2.5), amount(2.5), count(2.5)) == (2.5, 2.5, 2)
    assert (amount(2**62), count(2**62)) == (2.0**62, None)


def test_garbage_collection_time_is_read_once() -> None:
    gc.disable()
    meter = GcMeter(now)
    try:
        gc.collect()
        spent, full = meter.read()
        assert spent > 0
        assert full == 1
        assert meter.read() == (0, 0)
    finally:
        gc.enable()
        meter.close()
    gc.collect()
    assert meter.read() == (0, 0)


def test_garbage_collection_on_another_thread_is_not_counted() -> None:
    gc.disable()
    meter = GcMeter(now)
    try:
        other = threading.Thread(target=gc.collect)
        other.start()
        other.join()
        assert meter.read() == (0, 0)
    finally:
        gc.enable()
        meter.close()


def test_gc_meter_runs_no_python_code_during_a_collection() -> None:
    meter = meters.GcMeter(now)
    ran: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            ran.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        gc.collect()
    finally:
        sys.setprofile(None)
    meter.close()
    assert meter.read()[0] > 0
    assert meters.__file__ not in ran


def test_custom_container_batch_is_not_accessed() -> None:
    class Lazy(dict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("it was asked")

    class Damaged(list[Any]):
        def __getitem__(self, _: object) -> Any:
            raise RuntimeError("it was looked into")

    class Table(Mapping[str, Any]):
        asked = False

        def __getitem__(self, _: str) -> Any:
            self.asked = True

        def __iter__(self) -> Iterator[str]:
            return iter(("column",))

        def __len__(self) -> int:
            return 1

    table = Table()
    assert measure(table) == (None, None)
    assert not table.asked
    assert measure([torch.zeros(2, 3), Lazy(x=torch.zeros(2, 5))]) == (2, 6)
    assert measure([torch.zeros(2, 3), Damaged()]) == (None, None), "a measure that fails is none"
    assert measure(OrderedDict(x=torch.zeros(2, 5))) == (2, 10)


def test_thread_counters_increase() -> None:
    meter = ThreadMeter()
    first = meter.read()
    sum(range(10**6))
    second = meter.read()
    meter.close()
    assert second[3] > first[3]
    assert second[:2] >= first[:2]

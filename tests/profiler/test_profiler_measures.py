"""The measures of a step that need no training to be tested."""

from __future__ import annotations

import gc
from collections import UserDict

import pytest

pytestmark = pytest.mark.usefixtures("require_torch")


def test_a_batch_is_measured_by_its_tensors_wherever_they_are() -> None:
    torch = pytest.importorskip("torch")
    from rankscope.profiler.batch import measure

    assert measure(torch.zeros(4, 3)) == (4, 12)
    assert measure([torch.zeros(4, 3), {"mask": torch.zeros(4, 5)}, "text"]) == (4, 32)
    assert measure(UserDict(ids=torch.zeros(2, 7))) == (2, 14)
    assert measure((torch.tensor(1.0), torch.zeros(6))) == (6, 7), "a scalar has no samples"
    assert measure("no tensors") == (None, None)


def test_the_time_of_the_garbage_collector_is_seen_once() -> None:
    from rankscope.profiler.clock import now
    from rankscope.profiler.host import GcMeter

    meter = GcMeter(now)
    gc.collect()
    assert meter.total_ns > 0
    assert meter.full == 1
    meter.close()
    spent = meter.total_ns
    gc.collect()
    assert (meter.total_ns, meter.full) == (spent, 1)

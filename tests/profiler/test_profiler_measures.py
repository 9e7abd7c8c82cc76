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
    spent, full = meter.take()
    assert spent > 0
    assert full
    assert meter.take() == (0, False)
    meter.close()
    gc.collect()
    assert meter.take() == (0, False)


def test_a_schedule_covers_the_same_steps_for_everybody() -> None:
    from rankscope.profiler.windows import Schedule

    def covered(schedule: Schedule) -> list[int]:
        return [step for step in range(30) if schedule.covers(step)]

    assert covered(Schedule(first=5, every=10, steps=2)) == [5, 6, 15, 16, 25, 26]
    assert covered(Schedule(first=5, every=0, steps=3)) == [5, 6, 7]
    assert covered(Schedule(first=5, every=10, steps=0)) == []


def test_the_last_gradient_is_watched_after_it_was_learned(tmp_path: object) -> None:
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    from rankscope.profiler.ddp import LastGradient

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(5)]))
        watch = LastGradient()
        watch.adopt(model)
        for _ in range(5):
            watch.begin()
            before = watch.ready_ns
            model(torch.ones(2, 4)).sum().backward()
            assert (before is None, watch.ready_ns is None) == (True, False)
            assert watch.synchronises()
            watch.end()
        hooked = [name for name, parameter in model.module.named_parameters() if parameter._post_accumulate_grad_hooks]
        assert set(hooked) <= {"0.weight", "0.bias", "1.weight", "1.bias"}
        assert set(hooked) & {"0.weight", "0.bias"}
        with model.no_sync():
            assert not watch.synchronises()
        other = LastGradient()
        other.adopt(model)
        for closed in (watch, other):
            closed.close()
            assert not closed.present
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters()), "all hooks are off again"
        watch.adopt(model)
        del model
        gc.collect()
        assert not watch.synchronises()
    finally:
        dist.destroy_process_group()

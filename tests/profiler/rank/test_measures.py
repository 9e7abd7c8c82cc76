"""Measures of a step that can be tested without training."""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("require_torch")


def test_a_batch_is_measured_by_its_tensors_wherever_they_are() -> None:
    torch = pytest.importorskip("torch")
    from rankscope.profiler.rank.measures import measure

    assert measure(torch.zeros(4, 3)) == (4, 12)
    assert measure([torch.zeros(4, 3), {"mask": torch.zeros(4, 5)}, "text"]) == (4, 32)
    assert measure(UserDict(ids=torch.zeros(2, 7))) == (2, 14)
    assert measure((torch.tensor(1.0), torch.zeros(6))) == (6, 7), "a scalar has no samples"
    assert measure("no tensors") == (None, None)


def test_a_step_has_few_metrics_of_the_script_the_last_value_of_each() -> None:
    pytest.importorskip("torch")
    from rankscope.profiler.events import StepEvents
    from rankscope.profiler.phases import PhaseClock
    from rankscope.profiler.rank.measures import StepMeasures
    from rankscope.profiler.raw import RawStep
    from rankscope.profiler.work import MAX_METRICS

    measures = StepMeasures()
    events = StepEvents(PhaseClock(0), measures)
    for number in range(MAX_METRICS + 2):
        measures.metric(f"m{number}", number)
    for wrong in (float("inf"), "1", None, True):
        measures.metric("m0", wrong)
    measures.metric("m1", -1)
    taken = RawStep(*measures.take(0, events, 1, False, 0)).metrics
    assert taken == {**{f"m{number}": float(number) for number in range(MAX_METRICS)}, "m1": -1.0}
    assert RawStep(*measures.take(1, events, 2, False, 0)).metrics is None
    measures.close()


def test_the_time_of_the_garbage_collector_is_seen_once() -> None:
    from time import perf_counter_ns as now

    from rankscope.profiler.rank.meters import GcMeter

    meter = GcMeter(now)
    gc.collect()
    spent, full = meter.read()
    assert spent > 0
    assert full == 1
    meter.close()
    gc.collect()
    assert meter.read() == (spent, 1)


def test_collections_on_other_threads_are_not_this_threads() -> None:
    from time import perf_counter_ns as now

    from rankscope.profiler.rank.meters import GcMeter

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


def test_no_python_runs_in_a_collection_where_a_signal_handler_could_raise_in_vain() -> None:
    from time import perf_counter_ns as now

    from rankscope.profiler.rank import meters

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


def test_a_batch_that_is_no_plain_container_is_not_asked() -> None:
    torch = pytest.importorskip("torch")
    from rankscope.profiler.rank.measures import measure

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


def test_the_thread_is_metered_once_in_a_while_for_all_steps_since(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from rankscope.profiler.rank import measures as module
    from rankscope.profiler.rank.meters import READ_EVERY_NS

    monkeypatch.setattr(module, "now", lambda: 0)
    measures = module.StepMeasures()
    events: Any = SimpleNamespace(start=0, noted=[])

    def span(step: int, ended: int) -> Any:
        return measures.take(step, events, ended, False, 0)[-3]

    # Steps that end before a reading is due are part of the next one; a long step has its own
    assert [span(0, 1000), span(1, READ_EVERY_NS - 1)] == [None, None]
    first = span(2, READ_EVERY_NS)
    assert [span(3, READ_EVERY_NS + 1), span(4, 2 * READ_EVERY_NS)[0], span(5, 3 * READ_EVERY_NS)[0]] == [None, 3, 5]
    assert first[0] == 0
    assert first[2][0] >= first[1][0]
    # The recorder's own time between two steps is in none
    measures.restart(7)
    assert span(7, 10 * READ_EVERY_NS)[0] == 7
    # Before a pause for the recorder no reading may be pending
    measures.use_due_ns = 0
    assert span(8, 10 * READ_EVERY_NS + 1)[0] == 8
    measures.close()

"""Hardware events, derived from the samples of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.dashboards.charts.palette import PALETTES
from rankscope.dashboards.data.events import KINDS, THROTTLES, EventFinder, HardwareEvent, StepClock, most_important, on_steps
from rankscope.runs.records import HardwareSample

SECOND = 10**9
LIGHT = PALETTES["light"]


def events_of(samples: Iterable[dict[str, Any]]) -> list[HardwareEvent]:
    """Return the events found in samples taken one per second."""
    finder = EventFinder("node-1", "GPU-1")
    for second, values in enumerate(samples):
        finder.add(HardwareSample(unix_ns=second * SECOND, gpu_uuid="GPU-1", **values))
    return finder.events_so_far()


def times(event: HardwareEvent) -> tuple[int, int]:
    return event.unix_ns // SECOND, event.until_unix_ns // SECOND


def test_throttling_is_one_event_from_first_to_last_sample() -> None:
    hot: dict[str, Any] = {"throttle_reasons": ["hw_thermal"]}
    cool: dict[str, Any] = {"throttle_reasons": []}
    first, second = events_of([cool, hot, hot, hot, cool, cool, hot])
    assert (first.kind, times(first)) == ("hw_thermal", (1, 3))
    assert times(second) == (6, 6)
    assert "heat" in first.detail


def test_missing_throttle_reasons_neither_end_nor_start_an_event() -> None:
    hot: dict[str, Any] = {"throttle_reasons": ["hw_thermal"]}
    assert [times(event) for event in events_of([hot, {}, {}, hot])] == [(0, 3)]
    assert events_of([{}, {}]) == []
    assert events_of([{"throttle_reasons": ["gpu_idle"]}]) == []


@pytest.mark.parametrize(
    ("counter", "kind"), [("xid_errors", "xid"), ("ecc_uncorrected_errors", "ecc"), ("pcie_replays", "pcie_link")]
)
def test_counter_increase_is_an_event_and_its_initial_value_is_not(counter: str, kind: str) -> None:
    (event,) = events_of([{counter: value} for value in (7, 7, 8, 10, 10)])
    assert (event.kind, times(event)) == (kind, (2, 3))
    assert event.detail.endswith(": 3")


def test_reset_counter_counts_from_zero() -> None:
    (event,) = events_of([{"ecc_uncorrected_errors": value} for value in (9, 2, 2)])
    assert event.detail.endswith(": 2")


def test_application_xid_errors_are_no_gpu_events() -> None:
    assert events_of([{"xid_errors": 0, "xid_errors_of_programs": 0}, {"xid_errors": 3, "xid_errors_of_programs": 3}]) == []


def test_narrowed_pcie_link_is_an_event_unless_the_gpu_is_idle() -> None:
    def link(width: int, use: float) -> dict[str, Any]:
        return {"pcie_link_width": width, "utilization_ratio": use}

    (event,) = events_of([link(16, 0.9), link(8, 0.01), link(16, 0.9), link(8, 0.9), link(8, 0.9)])
    assert (event.kind, times(event)) == ("pcie_link", (3, 4))
    assert event.detail == "PCIe link at 8 lanes, it had 16"
    (down,) = events_of([{"nvlinks_down": 0}, {"nvlinks_down": 2}])
    assert (down.kind, down.detail) == ("nvlink", "2 NVLinks down")


def test_sustained_clock_drop_is_an_event_and_one_low_sample_is_not() -> None:
    def clocks(*values: float) -> list[dict[str, Any]]:
        return [{"sm_clock_hertz": value * 1e6, "utilization_ratio": 0.95} for value in values]

    usual = [1980.0] * 6
    assert events_of(clocks(*usual, 1200, *usual)) == []
    assert events_of(clocks(*usual, 1200)) == [], "so far"
    (event,) = events_of(clocks(*usual, 1200, 1190, *usual))
    assert (event.kind, times(event)) == ("clock_drop", (6, 7))
    assert event.detail == "SM clock 1,190 MHz, usual while busy are 1,980"


@given(st.lists(st.lists(st.sampled_from([*THROTTLES, "gpu_idle"]), unique=True), max_size=30))
def test_events_cover_exactly_the_samples_with_their_throttle_reason(reasons: list[list[str]]) -> None:
    covered = {
        (event.kind, second)
        for event in events_of([{"throttle_reasons": item} for item in reasons])
        for second in range(times(event)[0], times(event)[1] + 1)
    }
    assert covered == {(reason, at) for at, item in enumerate(reasons) for reason in item if reason != "gpu_idle"}


def test_most_important_events_are_kept_and_the_others_counted() -> None:
    flapping = events_of([{"throttle_reasons": ["sw_power_cap"] if second % 2 else []} for second in range(100)])
    errors = events_of([{"xid_errors": 0}, {"xid_errors": 1}])
    events = most_important([*flapping, *errors], left_out=4, most=10)
    assert len(events.events) == 10
    assert events.left_out == 4 + len(flapping) + 1 - 10
    assert "xid" in {event.kind for event in events.events}
    assert [event.unix_ns for event in events.events] == sorted(event.unix_ns for event in events.events)
    assert {event.kind for event in events.events} <= set(KINDS)


def test_events_of_a_flapping_reason_are_counted_beyond_the_limit() -> None:
    finder = EventFinder("node-1", "GPU-1")
    for second in range(1000):
        reasons = ["sw_power_cap"] if second % 2 else []
        finder.add(HardwareSample(unix_ns=second * SECOND, gpu_uuid="GPU-1", throttle_reasons=reasons, xid_errors=second // 999))
    events = finder.events_so_far()
    assert len(events) + finder.left_out == 501
    assert "xid" in {event.kind for event in events}


def test_events_are_assigned_to_the_step_in_progress() -> None:
    event = HardwareEvent(unix_ns=25, until_unix_ns=47, host="a", gpu_uuid="GPU-1", kind="xid", detail="")
    before = HardwareEvent(unix_ns=5, until_unix_ns=5, host="a", gpu_uuid="GPU-1", kind="xid", detail="")
    elsewhere = HardwareEvent(unix_ns=25, until_unix_ns=25, host="b", gpu_uuid="GPU-2", kind="xid", detail="")
    clock = StepClock(np.array([100, 101, 102, 103]), np.array([10, 20, 0, 40]))
    steps = [
        (item.step, item.until_step) for item in on_steps(most_important([event, before, elsewhere], 0), {"a": clock}).events
    ]
    assert steps == [(None, None), (101, 103), (None, None)]

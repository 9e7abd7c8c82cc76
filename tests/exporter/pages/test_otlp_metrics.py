"""The page's data as OpenTelemetry's: status, start times, temporality, histograms, names."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from opentelemetry.sdk.metrics.export import AggregationTemporality
from opentelemetry.sdk.resources import Resource
from tests.exporter.pages.golden_node import H100, node
from tests.exporter.pages.otlp_page import page_of, spooled_histogram

from rankscope.exporter.catalogue import CATALOGUE
from rankscope.exporter.pages.otlp_metrics import OtlpMetrics
from rankscope.exporter.pages.otlp_names import otel_name
from rankscope.exporter.pages.page import Page
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.source import FleetState, Reading


@pytest.mark.parametrize(
    ("reading", "status"),
    [
        (Reading("gpu_recovery_action", 1, (("action", "gpu_reset"),)), "degraded"),
        (Reading("gpu_fabric_healthy", 0), "degraded"),
        (Reading("gpu_row_remap_failure", 1), "predicted_failure"),
        (Reading("gpu_row_remap_failure", 0), "ok"),
    ],
)
def test_what_the_driver_asks_for_is_a_status(reading: Reading, status: str) -> None:
    state = node()
    sample = state.gpus[0].sample
    assert sample is not None
    gpu = msgspec.structs.replace(state.gpus[0], sample=msgspec.structs.replace(sample, readings=(reading,)))

    assert _states(msgspec.structs.replace(state, gpus=(gpu,))) == {status}


def test_of_a_gpu_that_was_released_nobody_knows_how_it_is() -> None:
    fleet = SimulatedFleet("2")
    fleet.release("1", ttl_s=60)

    data = OtlpMetrics(Page("node1", fleet), Resource({})).collect()
    (status,) = (metric for metric in data.resource_metrics[0].scope_metrics[0].metrics if metric.name == "hw.status")

    assert {(point.attributes or {})["hw.id"] for point in status.data.data_points} == {fleet.state().gpus[0].identity.uuid}


def _states(state: FleetState) -> set[str]:
    data = OtlpMetrics(page_of(state), Resource({})).collect()
    (status,) = (metric for metric in data.resource_metrics[0].scope_metrics[0].metrics if metric.name == "hw.status")
    return {str((point.attributes or {})["hw.state"]) for point in status.data.data_points if getattr(point, "value", 0) == 1}


class _Node:
    """One GPU with one counter, at times a test decides."""

    def __init__(self, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE) -> None:
        self.now_ns = 1_000
        self.joules: float | None = 500.0
        first = node().gpus[0]
        assert first.sample is not None
        self._gpu, self._sample = first, first.sample
        self._metrics = OtlpMetrics(page_of(self._state), Resource({}), temporality=temporality, now_ns=lambda: self.now_ns)

    def _state(self) -> FleetState:
        readings = () if self.joules is None else (Reading("gpu_energy_joules_total", self.joules),)
        gpu = msgspec.structs.replace(self._gpu, sample=msgspec.structs.replace(self._sample, readings=readings))
        return FleetState((gpu,), None, {}, 0, 0, None, None)

    def energy(self, at_ns: int, joules: float | None) -> tuple[int, int, float] | None:
        """Start, time and value of what is sent."""
        self.now_ns, self.joules = at_ns, joules
        metrics = self._metrics.collect().resource_metrics[0].scope_metrics[0].metrics
        for metric in metrics:
            if metric.name == "hw.energy":
                (point,) = metric.data.data_points
                assert point.start_time_unix_nano is not None
                return point.start_time_unix_nano, point.time_unix_nano, point.value  # type: ignore[union-attr]
        return None


def test_a_counter_keeps_its_start_until_it_begins_anew() -> None:
    counter = _Node()

    assert counter.energy(2_000, 500) == (1_000, 2_000, 500)
    assert counter.energy(3_000, 700) == (1_000, 3_000, 700)
    # the driver was loaded anew
    assert counter.energy(4_000, 10) == (3_000, 4_000, 10)
    assert counter.energy(5_000, 20) == (3_000, 5_000, 20)
    # nothing stale: away, then back as a new one
    assert counter.energy(6_000, None) is None
    assert counter.energy(7_000, 30) == (6_000, 7_000, 30)
    # somebody set the clock back
    start, at, _ = counter.energy(1_500, 40) or (0, 0, 0)
    assert start == 6_000
    assert at > 7_000


def test_delta_sends_what_was_added_and_never_what_was_before() -> None:
    counter = _Node(AggregationTemporality.DELTA)

    assert counter.energy(2_000, 500) is None
    assert counter.energy(3_000, 700) == (2_000, 3_000, 200)
    assert counter.energy(4_000, 10) == (3_000, 4_000, 10)


@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_a_histogram_of_a_rank_has_the_counts_of_each_bucket_alone_and_begins_anew_with_the_rank(
    temporality: AggregationTemporality,
) -> None:
    times = itertools.count(1000)
    page = page_of(node())
    metrics = OtlpMetrics(page, Resource({}), temporality=temporality, now_ns=lambda: next(times))
    found = []
    for sample in (
        spooled_histogram(1, 2, 0, total=9.5),
        spooled_histogram(2, 2, 1, total=40.5),
        spooled_histogram(0, 1, 0, total=2.5),  # started again
    ):
        page.spool = page_of(node(), sample).spool
        (resource,) = metrics.collect().resource_metrics
        points = [
            point
            for metric in resource.scope_metrics[0].metrics
            if metric.name == "rankscope.rank.step_duration"
            for point in metric.data.data_points
        ]
        found += [(one.start_time_unix_nano, one.time_unix_nano, list(one.bucket_counts), one.count, one.sum) for one in points]  # type: ignore[union-attr]
        for one in points:
            assert list(one.explicit_bounds) == [1.0, 10.0]  # type: ignore[union-attr]
            assert one.attributes is not None
            assert {one.attributes[key] for key in ("hw.id", "rankscope.run_id", "rankscope.rank")} == {H100, "id-r", "3"}

    cumulative = [(1000, 1001, [1, 2, 0], 3, 9.5), (1000, 1002, [2, 2, 1], 5, 40.5), (1002, 1003, [0, 1, 0], 1, 2.5)]
    delta = [(1001, 1002, [1, 0, 1], 2, 31.0), (1002, 1003, [0, 1, 0], 1, 2.5)]
    assert found == (cumulative if temporality is AggregationTemporality.CUMULATIVE else delta)


def test_every_name_is_one_instrument() -> None:
    kinds: dict[str, set[tuple[str, str]]] = {}
    for row in CATALOGUE:
        otel = otel_name(row.name, row.type)
        if otel is not None:
            kinds.setdefault(otel.name, set()).add((otel.kind, otel.unit))
            placeholders = {label for label in row.labels if any(f"{{{label}}}" in value for value in otel.attributes.values())}
            # what tells series apart has to be in the attributes
            assert not otel.attributes or placeholders >= set(row.labels) - {"uuid"}, row.name
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}
    assert len(kinds) > 70

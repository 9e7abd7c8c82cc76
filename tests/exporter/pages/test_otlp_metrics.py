"""Measurements of the page through the SDK: status, start times, temporality, histograms, lifetimes, names."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.metrics import ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, Metric, MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from tests.exporter.pages.golden_node import H100, node
from tests.exporter.pages.otlp_page import page_of, spooled_histogram

from rankscope.exporter.catalogue import CATALOGUE
from rankscope.exporter.pages.otlp_metrics import otel_name
from rankscope.exporter.pages.otlp_pipeline import OtlpPipelines
from rankscope.exporter.pages.page import Page
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.source import FleetState, Reading
from rankscope.exporter.spool.series import SpoolFamily, SpoolSeries


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


def test_a_released_gpu_has_no_status() -> None:
    fleet = SimulatedFleet("2")
    fleet.release("1", ttl_s=60)

    status = Exported(Page("node1", fleet)).metrics()["hw.status"]

    assert {(point.attributes or {})["hw.id"] for point in status.data.data_points} == {fleet.state().gpus[0].identity.uuid}


def _states(state: FleetState) -> set[str]:
    status = Exported(page_of(state)).metrics()["hw.status"]
    return {str((point.attributes or {})["hw.state"]) for point in status.data.data_points if getattr(point, "value", 0) == 1}


class Exported(MetricExporter):
    """In-memory exporter of a page's OTLP pipelines."""

    def __init__(self, page: Page, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE) -> None:
        super().__init__({ObservableCounter: temporality})
        self.pipelines = OtlpPipelines(page, Resource({}), self)
        self._messages: list[MetricsData] = []

    def metrics(self) -> dict[str, Metric]:
        """Export once more and return the metrics by name; a name in two messages is taken from the node's."""
        self._messages.clear()
        assert self.pipelines.export(60) is None
        found = [
            metric
            for message in self._messages
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return {metric.name: metric for metric in reversed(found)}

    def points(self, name: str) -> list[Any]:
        """Export once more and return the points of one metric."""
        metric = self.metrics().get(name)
        return [*metric.data.data_points] if metric is not None else []

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **_kwargs: Any) -> MetricExportResult:
        self._messages.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **_kwargs: Any) -> None:
        pass


class _Node:
    """One GPU with one counter, whose value a test sets."""

    def __init__(self, temporality: AggregationTemporality = AggregationTemporality.CUMULATIVE) -> None:
        self.joules: float | None = None
        first = node().gpus[0]
        assert first.sample is not None
        self._gpu, self._sample = first, first.sample
        self._exported = Exported(page_of(self._state), temporality)

    def _state(self) -> FleetState:
        readings = () if self.joules is None else (Reading("gpu_energy_joules_total", self.joules),)
        gpu = msgspec.structs.replace(self._gpu, sample=msgspec.structs.replace(self._sample, readings=readings))
        return FleetState((gpu,), None, {}, 0, 0, None, None)

    def energy(self, joules: float | None) -> Any:
        """Set the counter, export, and return the exported point, if any."""
        self.joules = joules
        points = self._exported.points("hw.energy")
        assert len(points) <= 1
        return points[0] if points else None


def test_a_counter_never_decreases_and_keeps_its_start() -> None:
    counter = _Node()

    first = counter.energy(500)
    assert first.value == 500
    assert counter.energy(700).value == 700
    # the driver was reloaded
    assert counter.energy(10).value == 710
    assert counter.energy(20).value == 720
    # no stale point while the series is absent
    assert counter.energy(None) is None
    last = counter.energy(30)
    assert last.value == 730
    assert first.start_time_unix_nano == last.start_time_unix_nano <= first.time_unix_nano < last.time_unix_nano


def test_delta_sends_what_was_added_and_never_what_was_before() -> None:
    counter = _Node(AggregationTemporality.DELTA)

    points = [counter.energy(joules) for joules in (500, 700, 10)]

    assert [point.value for point in points] == [0, 200, 10]
    assert [point.start_time_unix_nano for point in points[1:]] == [point.time_unix_nano for point in points[:-1]]


@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_a_histogram_of_a_rank_goes_out_as_counters_that_survive_a_restart_of_the_rank(
    temporality: AggregationTemporality,
) -> None:
    page = page_of(node())
    exported = Exported(page, temporality)
    found = []
    for sample in (
        spooled_histogram(1, 2, 0, total=9.5),
        spooled_histogram(2, 2, 1, total=40.5),
        spooled_histogram(0, 1, 0, total=2.5),  # the rank was restarted
    ):
        page.spool = page_of(node(), sample).spool
        metrics = exported.metrics()
        buckets, total, count = (metrics[f"rankscope.rank.step_duration.{part}"] for part in ("bucket", "sum", "count"))
        assert (buckets.unit, total.unit, count.unit) == ("1", "s", "1")
        by_bound = {(point.attributes or {})["le"]: getattr(point, "value", None) for point in buckets.data.data_points}
        for point in (*buckets.data.data_points, *total.data.data_points):
            assert point.attributes is not None
            assert {point.attributes[key] for key in ("hw.id", "rankscope.run_id", "rankscope.rank")} == {H100, "id-r", "3"}
        assert by_bound["+Inf"] == getattr(count.data.data_points[0], "value", None)
        found.append((*by_bound.values(), getattr(total.data.data_points[0], "value", None)))

    cumulative = [(1, 3, 3, 9.5), (2, 4, 5, 40.5), (2, 5, 6, 43)]
    delta = [(0, 0, 0, 0), (1, 1, 2, 31), (0, 1, 1, 2.5)]
    assert found == (cumulative if temporality is AggregationTemporality.CUMULATIVE else delta)


def test_the_series_of_a_run_end_with_it_and_begin_anew_while_those_of_the_node_go_on() -> None:
    page = page_of(node(), spooled_histogram(1, 0, 0, total=0.5))
    with_ranks, without = page.spool, None
    exported = Exported(page)
    before = exported.metrics()

    page.spool = without
    assert not [name for name in exported.metrics() if name.startswith("rankscope.rank.")]
    page.spool = with_ranks
    after = exported.metrics()

    starts = [
        [metrics[name].data.data_points[0].start_time_unix_nano for metrics in (before, after)]
        for name in ("hw.energy", "rankscope.rank.step_duration.count")
    ]
    assert starts[0][0] == starts[0][1]
    assert starts[1][0] < starts[1][1]


def test_what_no_instrument_accepts_is_left_out_and_costs_nothing_else() -> None:
    rank = (("rank", "3"), ("run", "r"), ("slot", "0"))
    loss = SpoolFamily("rank_loss", "gauge", "Loss.", (SpoolSeries("rank_loss", rank, float("nan")),))
    sample = spooled_histogram(1, 0, 0, total=0.5)
    page = page_of(node(), dataclasses.replace(sample, families=(*sample.families, loss)))

    names = Exported(page).metrics().keys()

    assert "rankscope.rank.loss" not in names
    assert names >= {"rankscope.rank.step_duration.sum", "hw.power"}


def test_a_failed_export_has_the_first_reason_and_the_next_series_are_tried() -> None:
    page = page_of(node(), spooled_histogram(1, 0, 0, total=0.5))
    exported = Exported(page)
    attempts: list[MetricsData] = []

    def export(metrics_data: MetricsData, **_kwargs: Any) -> MetricExportResult:
        attempts.append(metrics_data)
        logging.getLogger("opentelemetry.exporter").warning("attempt %d", len(attempts))
        return MetricExportResult.FAILURE

    exported.export = export  # type: ignore[assignment,method-assign]

    assert exported.pipelines.export(60) == "attempt 1"
    assert len(attempts) == 3  # the node, the MIG devices, the run


def test_every_name_is_one_instrument() -> None:
    kinds: dict[str, set[tuple[str, str]]] = {}
    for row in CATALOGUE:
        otel = otel_name(row.name, row.type)
        if otel is not None:
            kinds.setdefault(otel.name, set()).add((otel.kind, otel.unit))
            placeholders = {label for label in row.labels if any(f"{{{label}}}" in value for value in otel.attributes.values())}
            # labels that distinguish series must be in the attributes
            assert not otel.attributes or placeholders >= set(row.labels) - {"uuid"}, row.name
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}
    assert len(kinds) > 70

"""Messages of the page for OTLP: status, start times, temporality, histograms, lifetimes, names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric
from opentelemetry.sdk.resources import Resource
from tests.exporter.pages.golden_node import H100, loop, node, node_with, page_of, spooled_histogram

from rankscope.exporter.catalogue import CATALOGUE
from rankscope.exporter.pages.otlp_message import MessageBuilder
from rankscope.exporter.pages.otlp_metrics import measurements, otel_name
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.source import FleetState, Reading, Series
from rankscope.exporter.spool.series import SpoolFamily


@pytest.mark.parametrize(
    ("reading", "status"),
    [
        (Reading("gpu_recovery_action", 1, (("action", "gpu_reset"),)), "degraded"),
        (Reading("gpu_fabric_healthy", 0), "degraded"),
        (Reading("gpu_row_remap_failure", 1), "predicted_failure"),
        (Reading("gpu_row_remap_failure", 0), "ok"),
    ],
)
def test_recovery_action_maps_to_a_hardware_status(reading: Reading, status: str) -> None:
    point_of_state = Exported(page_of(node_with(readings=(reading,)))).points("hw.status")

    assert {point.attributes["hw.state"] for point in point_of_state if point.value == 1} == {status}


def test_a_released_gpu_has_no_status() -> None:
    fleet = SimulatedFleet("2")
    fleet.release("1", ttl_s=60)

    points = Exported(MetricsPage("node1", fleet)).points("hw.status")

    assert {point.attributes["hw.id"] for point in points} == {fleet.state().gpus[0].identity.uuid}


class Exported:
    """Messages of a page, as a collector gets them."""

    def __init__(self, page: MetricsPage, *, deltas: bool = False) -> None:
        self._page = page
        self._builder = MessageBuilder(Resource({}), deltas=deltas)

    def metrics(self, *, accepted: bool = True) -> dict[str, Metric]:
        """Build one more message and return its metrics by name."""
        message = self._builder.message(measurements(self._page))
        if accepted:
            self._builder.accept()
        ((scope,),) = (resource.scope_metrics for resource in message.resource_metrics)
        by_key = {metric.name: metric for metric in scope.metrics}
        assert len(by_key) == len(scope.metrics)
        return by_key

    def points(self, name: str, *, accepted: bool = True) -> list[Any]:
        """Build one more message and return the points of one metric."""
        metric = self.metrics(accepted=accepted).get(name)
        return [*metric.data.data_points] if metric is not None else []


class _Counter:
    """One GPU with one counter, whose value a test sets."""

    def __init__(self, *, deltas: bool = False) -> None:
        self.joules: float | None = None
        self._exported = Exported(page_of(self._state), deltas=deltas)

    def _state(self) -> FleetState:
        readings = () if self.joules is None else (Reading("gpu_energy_joules_total", self.joules),)
        return node_with(readings=readings)

    def energy(self, joules: float | None, *, accepted: bool = True) -> Any:
        """Set the counter, export, and return the exported point, if any."""
        self.joules = joules
        points = self._exported.points("hw.energy", accepted=accepted)
        assert len(points) <= 1
        return points[0] if points else None


def test_a_counter_keeps_its_start_until_it_is_reset() -> None:
    counter = _Counter()

    first, second = counter.energy(500), counter.energy(700)
    assert (first.value, second.value) == (500, 700)
    assert first.start_time_unix_nano == second.start_time_unix_nano <= first.time_unix_nano < second.time_unix_nano
    # no stale point while the series is absent, as while the GPU is down
    assert counter.energy(None) is None
    assert counter.energy(800).start_time_unix_nano == first.start_time_unix_nano
    # the driver was reloaded
    last = counter.energy(900)
    reset = counter.energy(10)
    assert (reset.value, reset.start_time_unix_nano) == (10, last.time_unix_nano)
    after = counter.energy(20)
    assert (after.value, after.start_time_unix_nano) == (20, last.time_unix_nano)


def test_deltas_count_from_the_last_accepted_message() -> None:
    counter = _Counter(deltas=True)

    points = [counter.energy(joules) for joules in (500, 700, 10)]

    assert [point.value for point in points] == [0, 200, 10]
    assert [point.start_time_unix_nano for point in points[1:]] == [point.time_unix_nano for point in points[:-1]]
    assert counter.energy(20, accepted=False).value == 10
    again = counter.energy(40)
    assert (again.value, again.start_time_unix_nano) == (30, points[-1].time_unix_nano)


@pytest.mark.parametrize("deltas", [False, True])
def test_rank_histogram_survives_a_restart_of_the_rank(deltas: bool) -> None:
    page = page_of(node())
    exported = Exported(page, deltas=deltas)
    collected = []
    for sample in (
        spooled_histogram(1, 2, 0, total=9.5),
        spooled_histogram(2, 2, 1, total=40.5),
        spooled_histogram(0, 1, 0, total=2.5),  # the rank was restarted
    ):
        page.spool = loop("spool", sample)
        metric = exported.metrics()["rankscope.rank.step_duration"]
        (point,) = metric.data.data_points
        assert isinstance(point, HistogramDataPoint)
        assert (metric.unit, tuple(point.explicit_bounds)) == ("s", (1.0, 10.0))
        assert point.attributes is not None
        assert {point.attributes[key] for key in ("hw.id", "rankscope.run_id", "rankscope.rank")} == {H100, "id-r", "3"}
        assert point.count == sum(point.bucket_counts)
        collected.append((tuple(point.bucket_counts), point.sum))

    cumulative = [((1, 2, 0), 9.5), ((2, 2, 1), 40.5), ((0, 1, 0), 2.5)]
    assert collected == ([((0, 0, 0), 0), ((1, 0, 1), 31), ((0, 1, 0), 2.5)] if deltas else cumulative)


def test_ended_run_leaves_no_data_points_or_state() -> None:
    page = page_of(node(), spool=loop("spool", spooled_histogram(1, 0, 0, total=0.5)))
    exported = Exported(page)
    with_run = exported.metrics()
    assert "rankscope.rank.step_duration" in with_run

    page.spool = None
    kept = []
    for _ in range(100):
        assert not [name for name in exported.metrics() if name.startswith("rankscope.rank.")]
        kept.append(len(exported._builder._accepted))
    assert kept[0] == kept[10] > kept[-1]


def test_nan_values_are_omitted_without_affecting_others() -> None:
    rank = (("rank", "3"), ("run", "r"), ("slot", "0"))
    loss = SpoolFamily("rank_loss", "gauge", "Loss.", (Series("rank_loss", float("nan"), rank),))
    sample = spooled_histogram(1, 0, 0, total=0.5)
    page = page_of(node(), spool=loop("spool", dataclasses.replace(sample, families=(*sample.families, loss))))

    names = Exported(page).metrics().keys()

    assert "rankscope.rank.loss" not in names
    assert names >= {"rankscope.rank.step_duration", "hw.power"}


def test_every_otel_name_has_one_type_and_unit() -> None:
    kinds: dict[str, set[tuple[str, str]]] = {}
    for row in CATALOGUE:
        otel = otel_name(row.name, row.type)
        if otel is not None:
            kinds.setdefault(otel.name, set()).add((otel.kind, otel.unit))
            placeholders = {label for label in row.labels if any(f"{{{label}}}" in value for value in otel.attributes.values())}
            # labels that distinguish series must be in the attributes
            assert not otel.attributes or placeholders >= set(row.labels) - {"uuid"}, row.name
    assert {name: kind for name, kind in kinds.items() if len(kind) > 1} == {}
    assert len(kinds) > 70

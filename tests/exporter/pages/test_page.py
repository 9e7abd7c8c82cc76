"""From a node's state to its page, byte for byte, and the reports of problems on it."""

from __future__ import annotations

import math
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver, mixed_gpus
from tests.exporter.pages.golden_node import A100, DIVIDED, GOLDEN, H100, HUNG, loop, node, node_with, page_of, sample_of

from rankscope.exporter.catalogue import BY_NAME, CATALOGUE
from rankscope.exporter.pages.page import MetricsPage
from rankscope.exporter.source import Absent, FleetState, Reading, Series
from rankscope.exporter.spool.reading import SpoolSample
from rankscope.exporter.spool.series import RankKey, SpoolFamily

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def state() -> FleetState:
    return node()


JOBS = (
    Series("gpu_job_info", 1, (("uuid", H100), ("job_id", "4711"), ("user", 'o"k'), ("pod_k8s", "train-0"))),
    Series("gpu_allocated", 1, (("uuid", H100),)),
)
XIDS = (Series("gpu_xid_errors_total", 1, (("uuid", HUNG), ("xid", "79"))), Series("gpu_xid_last_code", 79, (("uuid", HUNG),)))


def _spooled(*families: tuple[str, str, float]) -> SpoolSample:
    labels = (("rank", "0"), ("run", "r"), ("slot", "0"))
    return SpoolSample(
        families=tuple(
            SpoolFamily(name, kind, "Of a rank.", (Series(name, value, labels),))  # type: ignore[arg-type]
            for name, kind, value in families
        ),
        states={RankKey("r", "0", "0"): "running", RankKey("r", "1", "0"): "silent"},
        ok_files=1,
        stale_files=1,
        rejected={"too_large": 2},
        duplicates=0,
    )


def _with_histogram(sample: SpoolSample) -> SpoolSample:
    name, labels = "rank_step_duration_seconds", sample.families[0].series[0].labels
    series = [(f"{name}_bucket", value, (("le", bound), *labels)) for bound, value in (("1.0", 30.0), ("+Inf", 40.0))]
    series += [(f"{name}_sum", 32.5, labels), (f"{name}_count", 40, labels)]
    histogram = SpoolFamily(name, "histogram", "Of a rank.", tuple(Series(*item) for item in series))
    return replace(sample, families=(histogram, *sample.families))


def full_page(state: FleetState) -> MetricsPage:
    return page_of(
        state,
        spool=loop("spool", _with_histogram(_spooled(("rank_steps_total", "counter", 40)))),
        jobs=loop("jobs", JOBS),
        xid=loop("xid", XIDS),
    )


@pytest.fixture
def page(state: FleetState) -> MetricsPage:
    return full_page(state)


def series(page: MetricsPage, collectors: Iterable[str] | None = None) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    families = page.families(None if collectors is None else frozenset(collectors))
    return {family.name: {frozenset(point.labels): point.value for point in family.points} for family in families}


def _of(page: MetricsPage, name: str, **labels: str) -> list[float]:
    return [value for have, value in series(page).get(name, {}).items() if labels.items() <= have]


def _without_versions(body: str) -> str:
    return body.replace(platform.python_version(), "PYTHON").replace(f'version="{version("rankscope")}"', 'version="VERSION"')


def test_page_matches_the_golden_file(page: MetricsPage) -> None:
    assert _without_versions(page.render()[0].decode()) == (GOLDEN / "node.txt").read_text(), (
        f"if that is meant: python {__file__}"
    )


def test_page_passes_promtool_and_openmetrics_parsing(page: MetricsPage, require_program: Callable[[str], str]) -> None:
    checked = subprocess.run(
        [require_program("promtool"), "check", "metrics"], input=page.render()[0], capture_output=True, check=False
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    assert len(list(parse_openmetrics(page.render(OPENMETRICS)[0].decode()))) == len(page.families())  # type: ignore[no-untyped-call]


def test_families_and_labels_follow_the_catalogue_order(page: MetricsPage) -> None:
    families = page.families()

    own = [family.name for family in families if family.name in BY_NAME]
    assert own == [row.name for row in CATALOGUE if row.name in own]
    assert [family.name for family in families[len(own) :]] == ["rank_step_duration_seconds", "rank_steps_total"]
    for family in families[: len(own)]:
        for point in family.points:
            names = [name for name, _ in point.labels]
            assert names == [name for name in BY_NAME[family.name].labels if name in names], family.name


def test_hung_gpu_keeps_only_identity_and_error_series(page: MetricsPage) -> None:
    about_it = {
        name: value for name, sample in series(page).items() for labels, value in sample.items() if ("uuid", HUNG) in labels
    }

    assert about_it == {
        "gpu_info": 1,
        "gpu_up": 0,
        "gpu_down_info": 1,
        "gpu_down_since_timestamp_seconds": 1.7e9,
        "gpu_sample_age_seconds": 7.5,
        "gpu_xid_errors_total": 1,
        "gpu_xid_last_code": 79,
        "rankscope_exporter_gpu_process_restarts_total": 1,
    }
    assert _of(page, "gpu_down_info", uuid=HUNG, reason="hung") == [1]


def test_collector_success_considers_only_gpus_that_are_up(page: MetricsPage) -> None:
    success = {dict(labels)["collector"]: value for labels, value in series(page)["rankscope_exporter_collector_success"].items()}
    slowest = _of(page, "rankscope_exporter_collector_duration_seconds", collector="temperature")

    assert [name for name, value in success.items() if value == 0] == ["ecc"]
    assert {"gpu", "power", "spool", "jobs", "xid"} <= success.keys()
    assert slowest == [0.0002]


def test_problems_name_the_gpu_and_the_call(page: MetricsPage) -> None:
    collector, hung, unidentified = page.problems()

    assert collector == ("ecc", f"{A100}: NVML_ERROR_UNKNOWN in nvmlDeviceGetEccMode")
    assert hung == (f"gpu {HUNG}", "hung in nvmlDeviceGetPowerUsage")
    assert unidentified[0] == "gpu 00000000:8a:00.0"
    assert "nvmlDeviceGetUUID: gpu_is_lost" in unidentified[1]


def test_unidentified_gpus_are_a_problem_unless_bound_to_another_driver(state: FleetState) -> None:
    foreign = (("00000000:8a:00.0", "not_in_driver", "it is on the PCI bus, but bound to vfio-pci"),)
    state = msgspec.structs.replace(state, gpus=(), unidentified=3, unidentified_gpus=foreign)

    ((about, text),) = page_of(state).problems()
    assert (about, text.endswith(": 2")) == ("gpu", True)


def test_unresponsive_driver_is_reported_as_a_problem(state: FleetState) -> None:
    assert _of(page_of(state), "rankscope_exporter_driver_answers") == [1]
    state = msgspec.structs.replace(
        state,
        gpus=(),
        unidentified=0,
        unidentified_gpus=(),
        driver_answers=False,
        driver_problem="NVML: nvmlInit hangs",
        driver_problem_reason="hung",
    )
    page = page_of(state)

    ((about, text),) = page.problems()
    assert (about, "NVML: nvmlInit hangs" in text) == ("driver", True)
    assert _of(page, "rankscope_exporter_driver_answers") == [0]
    assert _of(page, "rankscope_exporter_driver_problem_info") == [1]
    never = page_of(msgspec.structs.replace(state, driver_answers=None))
    assert _of(never, "rankscope_exporter_driver_answers") == []


def test_mig_job_series_end_only_with_the_mig_device(state: FleetState) -> None:
    uuid = sample_of(2).mig_devices[0].uuid
    jobs = tuple(Series("gpu_allocated", 1, (("uuid", item),)) for item in (uuid, "MIG-destroyed", DIVIDED))
    now = [node_with(2)]
    page = page_of(lambda: now[0], jobs=loop("jobs", jobs))

    def allocated() -> set[str]:
        return {dict(labels)["uuid"] for labels in series(page)["gpu_allocated"]}

    assert allocated() == {uuid, DIVIDED}
    hung = msgspec.structs.replace(state.gpus[2], up=False, sample=None, reason="hung")
    now[0] = msgspec.structs.replace(state, gpus=(hung,))
    assert allocated() == {uuid, DIVIDED}
    now[0] = node_with(2, mig_devices=())
    assert allocated() == {DIVIDED}


def test_page_without_a_driver_reports_the_problem() -> None:
    nothing = FleetState((), None, {"pci": 8}, 8, 0, None, "the driver's library is not there")
    page = page_of(nothing, spool=loop("spool", None, reason="no sample yet", fresh=False))

    assert page.problems() == [("gpu", "the driver's library is not there"), ("spool", "no sample yet")]
    assert _of(page, "rankscope_exporter_collector_success", collector="gpu") == [0]
    assert _of(page, "rankscope_exporter_collector_success", collector="spool") == [0]
    assert _of(page, "gpu_devices", source="pci") == [8]
    assert _of(page, "rankscope_exporter_unidentified_gpus") == [8]
    assert not _of(page, "rankscope_exporter_driver_info")
    assert not _of(page, "nvswitch_devices")


def test_collectors_fail_if_no_gpu_is_up(state: FleetState) -> None:
    page = page_of(msgspec.structs.replace(state, gpus=state.gpus[3:]))

    assert _of(page, "rankscope_exporter_collector_success", collector="power") == [0]


def test_stale_values_are_omitted(state: FleetState) -> None:
    page = page_of(state, jobs=loop("jobs", JOBS, reason="the last sample is too old", fresh=False))

    assert not _of(page, "gpu_job_info")
    assert _of(page, "rankscope_exporter_collector_success", collector="jobs") == [0]


def test_gpu_in_use_is_absent_for_a_gpu_that_is_down(state: FleetState) -> None:
    # given a pass over the jobs made before two GPUs went down, one of them with MIG devices
    def page_with(*down: int) -> MetricsPage:
        gpus = [
            msgspec.structs.replace(gpu, up=False, sample=None) if index in down else gpu for index, gpu in enumerate(state.gpus)
        ]
        uuids = [H100, *(mig.uuid for mig in sample_of(2).mig_devices)]
        collected = [Series(name, 1, (("uuid", uuid),)) for uuid in uuids for name in ("gpu_in_use", "gpu_allocated")]
        return page_of(msgspec.structs.replace(state, gpus=tuple(gpus)), jobs=loop("jobs", tuple(collected)))

    before = page_with()
    assert len(_of(before, "gpu_in_use")) == 4
    assert len(_of(page_with(0), "gpu_in_use")) == 3
    # its remembered MIG devices keep their allocation
    before.fleet = page_with(0, 2).fleet
    assert (len(_of(before, "gpu_in_use")), len(_of(before, "gpu_allocated"))) == (0, 4)


def test_scrape_can_select_collectors(page: MetricsPage) -> None:
    asked = series(page, ["clocks", "spool"])

    assert "gpu_clock_hertz" in asked
    assert "rank_steps_total" in asked
    assert {"gpu_up", "gpu_power_watts", "gpu_job_info"} & asked.keys() == set()
    # only absent metrics of these collectors are listed
    lacking = {(dict(labels)["metric"], dict(labels)["series"]) for labels in asked["gpu_metric_absent_info"]}
    assert lacking == {("gpu_clock_hertz", "clock=sm")}
    health = {dict(labels)["collector"] for labels in asked["rankscope_exporter_collector_success"]}
    assert health == {"clocks", "spool"}
    assert "rank_steps_total" not in series(page, ["clocks"])


def test_ambiguous_openmetrics_names_fall_back_to_text_format(state: FleetState) -> None:
    both = _spooled(("rank_steps", "gauge", 7), ("rank_steps_total", "counter", 40))
    body, content_type = page_of(state, spool=loop("spool", both)).render(OPENMETRICS)

    assert content_type.startswith("text/plain")
    assert b'rank_steps{rank="0",run="r",slot="0"} 7\n' in body
    assert b'rank_steps_total{rank="0",run="r",slot="0"} 40\n' in body


def test_negative_rank_counter_is_not_relayed() -> None:
    both = _spooled(("rank_odd_total", "counter", -1), ("rank_other_total", "counter", float("nan")), ("rank_x", "gauge", -1))
    relayed = series(page_of(None, spool=loop("spool", both)))

    assert {"rank_x"} == {name for name in relayed if name.startswith("rank_") and name != "rank_state"}


def test_unknown_metric_is_logged_and_affects_no_other(caplog: pytest.LogCaptureFixture) -> None:
    page = page_of(None, jobs=loop("jobs", (Series("gpu_jobz", 1), *JOBS)))

    for _ in range(3):
        assert _of(page, "gpu_allocated") == [1]
    (record,) = caplog.records
    assert "gpu_jobz" in record.getMessage()


READINGS = st.builds(
    Reading,
    st.sampled_from(["gpu_clock_hertz", "gpu_power_watts", "gpu_mig_memory_used_bytes"]),
    st.sampled_from([0.0, 1.0, 2.5, math.nan]),
    st.sampled_from([(), (("clock", "sm"),), (("clock", "video"),)]),
    st.sampled_from(["", "MIG-1"]),
)


@given(st.lists(st.lists(READINGS, max_size=6), min_size=2, max_size=4))
def test_cached_page_equals_a_fresh_page(passes: list[list[Reading]]) -> None:
    # given one page over several passes, in which readings appear, disappear, change, move or are duplicated
    absent = (Absent("gpu_mig_sm_active_ratio", "first_sample"),) * 2  # of two MIG devices that were just created
    states = [node_with(readings=tuple(readings), absent=absent) for readings in passes]
    shown = iter(states)
    lasting = page_of(lambda: next(shown))

    for state in states:
        body = lasting.render()[0].decode()

        # then each page equals that of a fresh page object, and Prometheus would accept it
        assert body == page_of(state).render()[0].decode()
        names = [line.rpartition(" ")[0] for line in body.splitlines() if not line.startswith("#")]
        assert len(names) == len(set(names))


# Series that depend on the time of the scrape.
MOVING = re.compile(
    r"^(gpu_busy_seconds_total|gpu_\w+_active_seconds_total|\w+_age_seconds|\w+_duration_seconds|gpu_down_since_timestamp_seconds|gpu_last_reset_timestamp_seconds"
    r")((?:{.*})?) \S+$",
    re.MULTILINE,
)


@pytest.mark.slow
def test_page_of_the_exporter_process_matches_the_golden_file(
    start_exporter: StartExporter, fake_nvml_library: Path, tmp_path: Path
) -> None:
    # given an H100, an A100, an H100 divided by MIG, and one that is lost
    gpus = mixed_gpus()
    # The number of parts and driver samples in an interval depends on timing, so all of them have equal values.
    for gpu in (gpus[0], gpus[2], gpus[3]):
        gpu |= {"gpm.2": 60, "gpm.5": 25}
    for gpu in gpus:
        gpu |= {"samples_period_us": 1000}
    driver = FakeDriver(tmp_path / "driver", fake_nvml_library, gpus)
    exporter = start_exporter("--compat", "dcgm", "--no-xid.kernel-log", "--no-collector.jobs", env=driver.env)
    exporter.wait_until(lambda: len(exporter.values("gpu_xid_last_code")) == 4)
    driver.lose(3)
    exporter.wait_until(lambda: exporter.values("gpu_down_info", reason="lost") == [1])
    exporter.wait_until(lambda: exporter.values("gpu_metric_absent_info", reason="first_sample") == [])
    exporter.wait_until(
        lambda: len(exporter.values("gpu_sm_active_ratio")) == 2 and len(exporter.values("gpu_mig_sm_active_ratio")) == 2
    )

    page = tmp_path / "exporter.txt"
    page.write_text(MOVING.sub(r"\1\2 ~", _without_versions(exporter.get("/metrics").text)))
    assert page.read_text() == (GOLDEN / page.name).read_text(), f"if that is meant: cp {page} {GOLDEN}"


if __name__ == "__main__":
    (GOLDEN / "node.txt").write_text(_without_versions(full_page(node()).render()[0].decode()))

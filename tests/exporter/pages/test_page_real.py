"""The real exporter over the fake driver: its page, byte for byte."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fake_driver import FakeDriver, a100_state, h100_state, mig_state
from tests.exporter.pages.golden_node import GOLDEN

# Series that depend on the time of the scrape.
MOVING = re.compile(
    r"^(gpu_busy_seconds_total|gpu_\w+_active_seconds_total|\w+_age_seconds|\w+_duration_seconds|gpu_down_since_timestamp_seconds|gpu_last_reset_timestamp_seconds"
    r")((?:{.*})?) \S+$",
    re.MULTILINE,
)


def _still(page: str) -> str:
    page = page.replace(f'version="{version("rankscope")}"', 'version="VERSION"', 1).replace(platform.python_version(), "PYTHON")
    return MOVING.sub(r"\1\2 ~", page)


@pytest.mark.slow
def test_the_page_of_a_node_is_the_golden_one(
    start_exporter: Callable[..., Any], fake_nvml_library: Path, tmp_path: Path
) -> None:
    # given an H100, an A100, an H100 divided by MIG, and one that is lost
    gpus = [h100_state(0), a100_state(1), mig_state(2, [(4, "4g.40gb"), (3, "3g.40gb")]), h100_state(3)]
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
    page.write_text(_still(exporter.get("/metrics").text))
    assert page.read_text() == (GOLDEN / page.name).read_text(), f"if that is meant: cp {page} {GOLDEN}"

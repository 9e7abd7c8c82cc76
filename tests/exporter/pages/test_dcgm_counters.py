"""The counters file of dcgm-exporter: what it selects, and how its mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.exporter.pages.golden_node import node, page_of

from rankscope.base.errors import InputError
from rankscope.exporter.catalogue import CATALOGUE, COLLECTORS, DEFAULT_COLLECTORS
from rankscope.exporter.pages.dcgm import DcgmPage
from rankscope.exporter.pages.dcgm_counters import counters_of, default_counters, read_counters, with_collectors
from rankscope.exporter.settings import ExporterSettings

# Names, types and label order of dcgm-exporter 3 and 4 without a counters file.
DEFAULT_SET = {
    "DEV_SM_CLOCK": "gauge",
    "DEV_MEM_CLOCK": "gauge",
    "DEV_MEMORY_TEMP": "gauge",
    "DEV_GPU_TEMP": "gauge",
    "DEV_POWER_USAGE": "gauge",
    "DEV_TOTAL_ENERGY_CONSUMPTION": "counter",
    "DEV_PCIE_REPLAY_COUNTER": "counter",
    "DEV_GPU_UTIL": "gauge",
    "DEV_MEM_COPY_UTIL": "gauge",
    "DEV_ENC_UTIL": "gauge",
    "DEV_DEC_UTIL": "gauge",
    "DEV_XID_ERRORS": "gauge",
    "DEV_FB_FREE": "gauge",
    "DEV_FB_USED": "gauge",
    "DEV_FB_RESERVED": "gauge",
    "DEV_NVLINK_BANDWIDTH_TOTAL": "counter",
    "DEV_VGPU_LICENSE_STATUS": "gauge",
    "DEV_CORRECTABLE_REMAPPED_ROWS": "counter",
    "DEV_UNCORRECTABLE_REMAPPED_ROWS": "counter",
    "DEV_ROW_REMAP_FAILURE": "gauge",
    "PROF_GR_ENGINE_ACTIVE": "gauge",
    "PROF_PIPE_TENSOR_ACTIVE": "gauge",
    "PROF_DRAM_ACTIVE": "gauge",
    "PROF_PCIE_TX_BYTES": "gauge",
    "PROF_PCIE_RX_BYTES": "gauge",
}


def test_the_default_set_has_the_names_and_types_of_dcgm_exporter() -> None:
    assert {counter.name.removeprefix("DCGM_FI_"): counter.type for counter in default_counters().metrics} == DEFAULT_SET

    body = DcgmPage(page_of(node(), collectors=frozenset(COLLECTORS))).render()[0].decode()

    shown = {tuple(line.removeprefix("# TYPE DCGM_FI_").split()) for line in body.splitlines() if line.startswith("# TYPE")}
    assert len(shown) > 15
    assert shown <= DEFAULT_SET.items()


def test_counters_do_not_enable_collectors_disabled_by_the_user() -> None:
    asked = ExporterSettings(
        collectors=DEFAULT_COLLECTORS - {"gpm"}, collectors_off=frozenset({"gpm"}), host="node1", compat_dcgm=True
    )

    collectors = with_collectors(asked, counters_of(asked)).collectors

    assert "encoder" in collectors
    assert "gpm" not in collectors


COUNTERS = """\
# my counters
DCGM_FI_DEV_GPU_TEMP, gauge, Heat, in degrees.

  # and more
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, "Corrected, ""all"" kinds."
DCGM_FI_PROF_SM_ACTIVE, gauge, SMs.
DCGM_FI_PROF_PIPE_FP64_ACTIVE, gauge
DCGM_FI_DEV_NO_SUCH_THING, gauge, Nobody knows.
DCGM_EXP_P2P_STATUS, gauge, Computed by the other one.
DCGM_FI_DRIVER_VERSION, label, Driver.
DCGM_FI_DEV_SERIAL, label, Serial.
DCGM_FI_DEV_BRAND, label, Brand.
"""


def test_counters_file_defines_names_types_and_help(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "counters.csv"
    file.write_text(COUNTERS, encoding="utf-8-sig")  # with a byte order mark, as some editors save it
    served = DcgmPage(page_of(node(), collectors=frozenset(COLLECTORS)), read_counters(file))
    body = served.render()[0].decode()

    assert served.render()[0].decode() == body
    families = {family.name: family for family in parse_text(body)}
    assert families.keys() == {
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    }
    assert "# HELP DCGM_FI_DEV_GPU_TEMP Heat, in degrees.\n" in body
    assert '# HELP DCGM_FI_DEV_ECC_SBE_VOL_TOTAL Corrected, "all" kinds.\n' in body
    assert 'Hostname="node1",DCGM_FI_DEV_SERIAL="165000",DCGM_FI_DRIVER_VERSION="570.86.15"} ' in body
    refused = ("DCGM_FI_DEV_NO_SUCH_THING", "DCGM_EXP_P2P_STATUS", "DCGM_FI_DEV_BRAND")
    for name in refused:
        assert body.count(f"# {name} not available: ") == 1
        assert sum(name in record.getMessage() for record in caplog.records) == 1  # not once per page


@pytest.mark.parametrize(
    ("content", "where", "reason"),
    [
        ("# fine\nDCGM_FI_DEV_GPU_TEMP gauge help\n", ": line 2:", "NAME, type, help"),
        ("DCGM_FI_DEV_GPU_TEMP, histogram, x\n", ": line 1:", "'histogram'"),
        ("DCGM_FI_DEV_GPU_TEMP\n", ": line 1:", "gauge, counter, label"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge, "open\n', ": line 1:", "NAME, type, help"),
        ("\nnode_cpu, gauge, x\n", ": line 2:", "'node_cpu'"),
        ("# nothing\n", ":", "no line names a metric"),
        ("DCGM_FI_DEV_NO_SUCH_THING, gauge, x\n", ":", "no line names a metric"),
        (b"DCGM_FI_DEV_GPU_TEMP, gauge, \xff\n", ":", "UTF-8"),
        (b"#" * (1 << 21), ":", "1 MiB"),
        (None, ":", "No such file"),
    ],
)
def test_error_in_a_malformed_file_names_file_and_line(
    tmp_path: Path, content: str | bytes | None, where: str, reason: str
) -> None:
    file = tmp_path / "counters.csv"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(InputError) as refusal:
        read_counters(file)

    assert str(refusal.value).startswith(f"{file}{where}")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_every_dcgm_name_has_one_type_and_help() -> None:
    kinds: dict[str, set[tuple[str, str, bool]]] = {}
    for row in CATALOGUE:
        for entry in row.dcgm:
            kinds.setdefault(entry.full_name, set()).add((entry.type, entry.help, entry.default_on))
            assert entry.help.endswith(".")
    assert {name for name, kind in kinds.items() if len(kind) != 1} == set()

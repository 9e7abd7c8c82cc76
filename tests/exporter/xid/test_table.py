"""The table of Xids: complete for important codes, with few enough critical ones for a series of every GPU."""

from __future__ import annotations

import subprocess
import sys

from rankscope.exporter.catalogue import BY_NAME
from rankscope.exporter.xids import ACTIONABLE, CRITICAL, FALLEN_OFF_THE_BUS, GRADED, SOURCE, SOURCES, XIDS


def test_every_code_is_explained_and_what_asks_for_an_action_names_one() -> None:
    assert list(XIDS) == sorted(XIDS)
    for xid in XIDS.values():
        assert xid.meaning.endswith("."), xid
        assert xid.name == xid.name.lower(), xid
        assert not xid.actionable or xid.action != "none", xid
        assert xid.actionable or xid.action not in ("contact_vendor", "reset_gpu", "reboot"), xid
    assert SOURCE.url.startswith("https://docs.nvidia.com/")


def test_the_well_known_ones_are_where_everybody_expects_them() -> None:
    assert {48, 64, 74, 79, 94, 95, 119, 120, 140} <= set(ACTIONABLE)
    assert not {13, 31, 43, 45, 63} & set(ACTIONABLE)
    assert XIDS[FALLEN_OFF_THE_BUS].action == "reboot"


def test_the_codes_of_new_generations_are_known() -> None:
    assert set(range(143, 177)) <= set(XIDS)
    assert set(range(144, 151)) == GRADED
    assert {XIDS[code].actionable for code in (167, 169, 173)} == {True}
    assert {xid.source for xid in XIDS.values()} == SOURCES.keys()


def test_there_are_few_that_are_series_of_every_gpu() -> None:
    assert len(CRITICAL) < 20
    assert all(xid.actionable for xid in XIDS.values() if xid.critical)


def test_the_table_needs_nothing_of_the_exporters_extra() -> None:
    script = """
import sys
for name in ("prometheus_client", "uvicorn", "h11", "pynvml", "bcrypt"):
    sys.modules[name] = None
from rankscope.exporter.xids import XIDS
print(len(XIDS))
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(completed.stdout) == len(XIDS)


def test_the_metrics_are_in_the_catalogue_with_their_labels() -> None:
    assert BY_NAME["gpu_xid_errors_total"].labels == ("uuid", "xid", "severity")
    assert BY_NAME["nvswitch_sxid_errors_total"].labels == ("pci_bus_id", "sxid", "severity")

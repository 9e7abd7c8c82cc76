"""Whether a watcher still watches, asked over HTTP."""

from __future__ import annotations

import httpx
import pytest

from rankscope.alerts.watch.page import STUCK_AFTER_S, Watched, WatcherPage
from rankscope.base.errors import InputError

SEEN = Watched(runs=3, firing=1, troubles=0, untold=2)


def test_the_last_evaluation_is_served_and_one_that_is_long_ago_is_no_health() -> None:
    now_s = [100.0]
    page = WatcherPage(clock=lambda: 1_700_000_000.0 + now_s[0], elapsed=lambda: now_s[0])
    port = page.serve("127.0.0.1", 0)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        # Before the first evaluation nothing is known: no zeros
        assert client.get("/metrics").text == ""
        assert client.get("/-/healthy").status_code == 200
        page.evaluated(SEEN)
        lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
        assert lines == [
            "rankscope_watcher_runs 3",
            "rankscope_watcher_alerts_firing 1",
            "rankscope_watcher_troubles 0",
            "rankscope_watcher_untold_receivers 2",
            "rankscope_watcher_evaluated_timestamp_seconds 1700000100.000",
        ]
        now_s[0] += STUCK_AFTER_S
        stuck = client.get("/-/healthy")
        assert (stuck.status_code, stuck.text) == (503, "no evaluation for 300 s\n")
        page.evaluated(SEEN)
        assert client.get("/-/healthy").status_code == 200
        assert client.get("/else").status_code == 404


def test_an_address_that_is_taken_is_said() -> None:
    port = WatcherPage().serve("127.0.0.1", 0)
    with pytest.raises(InputError, match="choose another with --listen"):
        WatcherPage().serve("127.0.0.1", port)

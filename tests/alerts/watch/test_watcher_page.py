"""Health and metrics of the watcher over HTTP."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import wait_until
from tests.watched_job import AT_ONCE, WatchProcess

from rankscope.alerts.store.database import AlertStore
from rankscope.alerts.watch.watcher_page import STUCK_AFTER_S, Evaluation, WatcherPage
from rankscope.base.errors import InputError

FINISHED = "\nrankscope_watcher_finished 1\n"
SEEN = Evaluation(runs=3, firing=1, problems=0, undelivered=2)


def test_page_shows_the_last_evaluation_and_becomes_unhealthy_if_old() -> None:
    now_s = [100.0]
    page = WatcherPage(clock=lambda: 1_700_000_000.0 + now_s[0], elapsed=lambda: now_s[0])
    port = page.serve("127.0.0.1", 0)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        # Before the first evaluation the page has no samples, rather than zeros
        assert client.get("/metrics").text == ""
        assert client.get("/-/healthy").status_code == 200
        page.evaluated(SEEN)
        lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
        assert lines == [
            "rankscope_watcher_runs 3",
            "rankscope_watcher_alerts_firing 1",
            "rankscope_watcher_problems 0",
            "rankscope_watcher_undelivered_receivers 2",
            "rankscope_watcher_finished 0",
            "rankscope_watcher_evaluated_timestamp_seconds 1700000100",
        ]
        now_s[0] += STUCK_AFTER_S
        stuck = client.get("/-/healthy")
        assert (stuck.status_code, stuck.text) == (503, "no evaluation for 300 s\n")
        page.evaluated(SEEN)
        assert client.get("/-/healthy").status_code == 200
        assert client.get("/else").status_code == 404


def test_address_in_use_is_an_error() -> None:
    port = WatcherPage().serve("127.0.0.1", 0)
    with pytest.raises(InputError, match="choose another with --listen"):
        WatcherPage().serve("127.0.0.1", port)


def test_the_end_is_reported_to_every_client_that_scraped() -> None:
    page = WatcherPage()
    page.evaluated(SEEN)
    assert page.finish(0.0)  # no client scrapes it
    page = WatcherPage()
    page.evaluated(SEEN)
    assert FINISHED not in page.metrics().decode()
    for client in ("10.0.0.1", "10.0.0.2"):  # a redundant pair of Prometheus servers
        page.scraped(client, finished=False)
    collected: list[bool] = []
    ending = threading.Thread(target=lambda: collected.append(page.finish(300)))
    ending.start()
    wait_until(lambda: FINISHED in page.metrics().decode())
    page.scraped("10.0.0.1", finished=True)
    assert ending.is_alive()
    page.scraped("10.0.0.2", finished=True)
    ending.join()
    assert collected == [True]


def test_wait_for_a_missing_client_is_bounded() -> None:
    now_s = [0.0]
    page = WatcherPage(elapsed=lambda: now_s[0])
    page.evaluated(SEEN)
    page.scraped("10.0.0.1", finished=False)
    assert not page.finish(0.0)
    page = WatcherPage(elapsed=lambda: now_s[0])
    page.evaluated(SEEN)
    page.scraped("10.0.0.1", finished=False)
    now_s[0] = 3600.0
    assert page.finish(0.0)


@pytest.mark.slow
def test_watcher_waits_for_the_scrape_of_the_end(make_run: Any, tmp_path: Path) -> None:
    run, state = make_run(slow=None), tmp_path / "state"
    with WatchProcess(run.path, *AT_ONCE, "--listen", "127.0.0.1:0", "--state", state) as watch:
        url = wait_until(lambda: re.search(r"http://\S+/metrics", watch.errors()))[0]

        def shows(value: str) -> bool:
            return value in httpx.get(url, trust_env=False).text

        wait_until(lambda: shows("\nrankscope_watcher_finished 0\n"))
        with AlertStore(state) as store:
            assert shows(f'\nrankscope_watcher_info{{store="{store.id}"}} 1\n')
        run.end()
        wait_until(lambda: shows(FINISHED))
        assert watch.process.wait(300) == 0

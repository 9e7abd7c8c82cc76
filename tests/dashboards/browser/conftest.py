"""Servers of runs, and browser pages that must log no errors or warnings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page
from tests.dashboards.browser.pages import PATIENCE_MS
from tests.dashboards.gpu_samples import samples_of, write_samples
from tests.dashboards.served import serving

from rankscope.runs.paths import rank_dir

HOSTILE_NAME = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e שלום " + "W" * 10_000
HOSTS = (
    '=HYPERLINK("http://evil.example")',
    "<a href='https://evil.example'><b>b</b></a>",
    "\u202e\u2067gnp.exe\u200b",
    "+1" + "W" * 10_000,
)
"""Host names of the ranks of the hostile run."""


def homes_below(folder: Path) -> dict[str, str]:
    """Return environment variables for a command with its cache and state in ``folder``."""
    return {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Function ``serve(path, *options, NAME=value)`` that runs the command until the module ends and returns its address."""
    with ExitStack() as stack:

        def serve(path: Path, *options: str, **environment: str) -> str:
            homes = homes_below(tmp_path_factory.mktemp("homes"))
            return stack.enter_context(serving(path, *options, **homes, **environment))[1]

        yield serve


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, write_run: Callable[..., Path]) -> Iterator[str]:
    """Address of three runs that no test changes: ``run-1``, a straggler with GPU samples; ``a``, sound; ``b``, hostile."""
    folder = tmp_path_factory.mktemp("site")
    straggler = write_run(folder / "runs" / "run-1")
    write_samples(straggler, "node-1", samples_of(2), samples_of(3))
    write_run(folder / "runs" / "a", run_id="a", name="<b>sound</b>", slow_rank=None)
    hostile = write_run(folder / "runs" / "b", run_id="b", name=HOSTILE_NAME, simulated=True)
    for rank, host in enumerate(HOSTS):
        about = rank_dir(hostile, 0, rank) / "rank.json"
        about.write_text(json.dumps({**json.loads(about.read_text()), "host": host, "gpu_uuid": f"@{host}"}))
    with serving(folder / "runs", **homes_below(folder)) as (_, url):
        yield url


@pytest.fixture(scope="session")
def run_url(site: str) -> str:
    """Address of the straggler run's page."""
    return f"{site}/run/run-1"


@contextmanager
def _opened(browser: Browser, url: str, **context: Any) -> Iterator[Page]:
    host = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    complaints: list[str] = []

    with browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **context}) as session:
        page = session.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: complaints.append(message.text) if _is_complaint(message) else None)
        page.on(
            "pageerror", lambda error: complaints.append(error.stack or str(error)) if not _is_of_a_removed_graph(error) else None
        )
        page.on("request", lambda request: complaints.append(request.url) if _elsewhere(request.url, host) else None)
        page.on(
            "response",
            lambda response: complaints.append(f"{response.status} {response.url}") if response.status >= 400 else None,
        )
        page.goto(url)
        yield page
        page.wait_for_load_state("networkidle")
        assert complaints == []


def _is_complaint(message: ConsoleMessage) -> bool:
    """Return whether a message is an error or warning. Dash's table may warn when its page is left; this is harmless."""
    return message.type in {"error", "warning"} and "as the grid has been destroyed" not in message.text


def _is_of_a_removed_graph(error: Error) -> bool:
    """Return whether Dash tried to redraw a graph that is no longer in the page.

    A figure that changes while Plotly still draws its first version is drawn again afterwards, also on a page left meanwhile.
    This is harmless: the promise that fails had nothing else to do.
    """
    return "reading 'classList'" in error.message and "dcc/async-graph.js" in (error.stack or "")


def _elsewhere(url: str, host: str) -> bool:
    return not url.startswith((f"{host}/", "data:", "blob:"))


@pytest.fixture(scope="module")
def opened(browser: Browser) -> Callable[..., AbstractContextManager[Page]]:
    """Context manager ``opened(url, **context)`` of a page that must log no errors and make no requests to other hosts."""
    return partial(_opened, browser)

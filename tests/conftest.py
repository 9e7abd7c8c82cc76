"""Fixtures for all tests: programs, reference data, ports, the command line."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.command_line import run_in_process, run_process
from tests.needs import program, skip_or_fail

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A busy machine may take any time for an example.
settings.register_profile("quick", deadline=None, max_examples=10)  # `make check` and `make test`
settings.register_profile("long", deadline=None, max_examples=200)  # `make test-full`
settings.load_profile("quick")

# Shells start background processes with SIGINT ignored, and all processes that tests send Ctrl-C to would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
STARTING_PROCESSES = {"cli_process", "start_exporter"}  # fixtures
LONG_FIXTURES = {"synthetic", "make_run", "write_run", "add_windows", "analyse", "example_traces", "shared_data"}
"""Fixtures with which a test draws a whole run, or reads real traces: a seventh of the fast tests, and half of their time."""
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep caches and states of tests out of the user's folders."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower().replace("_", "-"))))
        yield


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """Function ``require_program("promtool")``, which returns its path, or skips (fails in CI) with the install hint."""
    return program


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let tests without a page run their own event loop, although Playwright's counts as running in this thread."""
    if "browser" in getattr(item, "fixturenames", ()):
        return (yield)
    of_playwright = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return (yield)
    finally:
        asyncio._set_running_loop(of_playwright)


@pytest.fixture(scope="session")
def browser(require_program: Callable[[str], str]) -> Iterator[Browser]:
    """The system's Chromium, one for all tests of a worker."""
    path = require_program("chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=60_000)  # a busy machine is slow, and the default of 5 s is not under test
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=BROWSER_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of public reference data beside the checkout (``../shared/data``)."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        skip_or_fail("the reference data (../shared/data) is not here")
    return path


@pytest.fixture(scope="session")
def traces(shared_data: Path) -> Path:
    """Folder of the public traces."""
    return shared_data / "traces"


@pytest.fixture(scope="session")
def example_traces() -> Path:
    """Folder of the traces that the simulator and the recorder wrote; every clone has them."""
    return ROOT / "tests" / "data" / "traces"


@pytest.fixture(scope="session")
def require_torch() -> None:
    """Torch; without it the test is skipped (fails in CI)."""
    if importlib.util.find_spec("torch") is None:
        skip_or_fail("torch is not installed: make install")


@pytest.fixture(scope="session")
def require_ray() -> None:
    """Ray; without it the test is skipped (fails in CI)."""
    if importlib.util.find_spec("ray") is None:
        skip_or_fail("ray is not installed: pip install 'rankscope[ray]'")


@pytest.fixture
def free_port() -> Iterator[Callable[[], int]]:
    """Function ``free_port()``, which returns an unused port on 127.0.0.1, reserved until the test ends.

    A socket that is bound and does not listen reserves it. The server under test binds beside it with SO_REUSEADDR, which
    servers of Go and Python set.
    """
    with contextlib.ExitStack() as stack:

        def reserve() -> int:
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            return int(sock.getsockname()[1])

        yield reserve


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from modules and tests: it would look at a million objects again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)  # a test makes many lasting objects at once, as all records of a run


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they do, and put the files with slow tests first: none is left over at the end."""
    cases: Counter[str] = Counter()
    slow: Counter[Path] = Counter()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) is not None:
            test = item.nodeid.partition("[")[0]
            (every,) = sampled.args
            # Along the diagonal of a grid, so that each value of each parameter has its turn.
            if cases[test] % every != cases[test] // every % every:
                item.add_marker(pytest.mark.full)
            cases[test] += 1
        fixtures = getattr(item, "fixturenames", ())
        if not STARTING_PROCESSES.isdisjoint(fixtures):
            item.add_marker(pytest.mark.slow)
        slow[item.path] += item.get_closest_marker("slow") is not None
        if not LONG_FIXTURES.isdisjoint(fixtures):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session")
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Function ``cli("analyze", path)``, which runs the command in the process of the test; returns its status and output."""
    return run_in_process


@pytest.fixture(scope="session")
def cli_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Function ``cli_process("analyze", path)``, which runs the real command: for servers, signals, memory, imports."""
    return run_process


@pytest.fixture
def without_privilege() -> list[str]:
    """Command prefix with which permissions apply, also where root runs the tests."""
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []

"""Take the pictures of the dashboard's pages and of the report in docs/images.

    python scripts/page_pictures.py RUN FOLDER

RUN is a recorded run with a straggler, such as that of ``rankscope demo``. README.md has the verdict of the pictured run, so both
change together. The list of runs shows runs that the tests write. compare.png is of two runs of docs/tutorial.md. Reduce the
pictures to 200 colours afterwards, for example with pngquant.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from tests.conftest import BROWSER_ARGUMENTS
from tests.dashboards.recorded_run import write_run
from tests.step_files import Rows, change, steps_file

SHOWN_FOLDER = "/shared/runs"
"""Folder of the runs in the pictures."""
PAGES: Mapping[str, tuple[str, int, int, str]] = {
    "overview": ("", 1280, 1130, "light"),
    "ranks-dark": ("/ranks", 1280, 520, "dark"),
    "timeline": ("/timeline", 1280, 755, "light"),
    "narrow": ("", 360, 900, "light"),
}
"""View, width, height and scheme of each picture of the run."""
_DAY_NS = 86_400_000_000_000


def write_list(folder: Path) -> None:
    """Write runs for the picture of the list: a live one, a sound one, a straggler, one that ended badly."""
    now = time.time_ns()
    live = write_run(
        folder / "gpt-2", run_id="gpt-2", name="gpt-2", slow_rank=1, finished=False, start_unix_ns=now - 5_000_000_000
    )
    for rank in range(4):
        change(steps_file(live, rank), _until_now)
    write_run(
        folder / "bert-fixed", run_id="bert-fixed", name="bert-base, local disk", slow_rank=None, start_unix_ns=now - _DAY_NS
    )
    write_run(folder / "bert-slow", run_id="bert-slow", name="bert-base", start_unix_ns=now - _DAY_NS - _DAY_NS // 5)
    ends: Any = {1: "killed", 3: "crash"}
    write_run(folder / "t5", run_id="t5", name="t5-large", slow_rank=3, ends=ends, start_unix_ns=now - 2 * _DAY_NS)


def _until_now(rows: Rows) -> Rows:
    rows["start_unix_ns"] += time.time_ns() - int(rows["start_unix_ns"].max())
    return rows


@contextmanager
def serving(path: Path, cache: Path) -> Iterator[str]:
    """Serve runs; yield the address."""
    command = [sys.executable, "-m", "rankscope", "dashboard", str(path), "--port", "0", "--cache", str(cache)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        try:
            assert match is not None
            yield match[0]
        finally:
            process.terminate()


def take(browser: Browser, url: str, target: Path, *, width: int, height: int, scheme: Any, folder: Path, until: str) -> None:
    """Take a picture of a page once it has the text ``until``; ``folder`` is shown as another one."""
    with browser.new_context(viewport={"width": width, "height": max(height, 900)}, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(url)
        page.get_by_text(until).first.wait_for(timeout=120_000)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(2_000)
        page.evaluate(
            """([old, shown]) => {
                const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
                while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(old, shown);
            }""",
            [str(folder), SHOWN_FOLDER],
        )
        page.screenshot(path=target, clip={"x": 0, "y": 0, "width": width, "height": height})


def main(run: Path, images: Path) -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=BROWSER_ARGUMENTS)
        write_list(Path(scratch) / "runs")
        with serving(run, Path(scratch) / "cache") as url:
            address = _only_run(browser, url)
            for name, (view, width, height, scheme) in PAGES.items():
                take(
                    browser, f"{address}{view}", images / f"{name}.png", width=width, height=height, scheme=scheme,
                    folder=run.parent, until="Do next" if not view else "Picked rank",
                )  # fmt: skip
        with serving(Path(scratch) / "runs", Path(scratch) / "cache") as url:
            take(
                browser, f"{url}/?picked=bert-slow", images / "runs.png", width=1440, height=640, scheme="light",
                folder=Path(scratch) / "runs", until="Compute bound",
            )  # fmt: skip
        report = Path(scratch) / "report.html"
        subprocess.run([sys.executable, "-m", "rankscope", "report", str(run), "-o", str(report)], check=True)
        take(
            browser, report.as_uri(), images / "report.png", width=1280, height=900, scheme="light", folder=run.parent,
            until="Do next",
        )  # fmt: skip
        browser.close()


def _only_run(browser: Browser, url: str) -> str:
    """Return the address of the run to which the front page leads."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(url)
        page.wait_for_url(re.compile("/run/"), timeout=120_000)
        return page.url.split("?", maxsplit=1)[0].rstrip("/")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]))

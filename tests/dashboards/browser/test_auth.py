"""Logging in, and runs that were made to do harm, in a real browser."""

from __future__ import annotations

import csv
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.dashboards.browser.test_overview import PATIENCE_MS, Opened, ready

from rankscope.runs.control import Inbox
from rankscope.runs.paths import rank_dir

pytestmark = pytest.mark.slow

SECRET = "0123456789abcdef0123456789abcdef"


@contextmanager
def serving(path: Path, **environment: str) -> Iterator[str]:
    """The command; yields its address."""
    command = [sys.executable, "-m", "rankscope", "dashboard", str(path), "--listen", "127.0.0.1:0"]
    around = {**os.environ, "PYTHONUNBUFFERED": "1", "XDG_CACHE_HOME": str(path.parent / "cache"), **environment}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=around) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        try:
            assert match is not None, line
            yield match[0]
        finally:
            process.terminate()


@contextmanager
def another_site(content: str) -> Iterator[str]:
    """A page under another name; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def test_logging_in_leads_to_the_page_that_was_asked_for(
    tmp_path: Path, write_run: Callable[..., Path], browser: Browser
) -> None:
    run = write_run(tmp_path / "run", finished=False)
    with serving(run, RANKSCOPE_DASHBOARD_TOKEN=SECRET) as url, browser.new_context() as session:
        page = session.new_page()
        page.set_default_timeout(PATIENCE_MS)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if "401" not in message.text else None)
        page.goto(f"{url}/run/run-1/ranks?rank=2")
        expect(page).to_have_url(re.compile(r"/login\?next="))
        page.get_by_label("Token").fill("a wrong one")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("That is not the token.")
        page.get_by_label("Token").fill(SECRET)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{url}/run/run-1/ranks?rank=2")
        ready(page)
        assert SECRET not in page.evaluate("document.cookie"), "scripts do not see it"

        # when somebody follows a link on another site, then they are still logged in
        hostile = f"""<a href="{url}/run/run-1/ranks?rank=1">look</a>
            <form method="post" action="{url}/api/run/run-1/capture" enctype="text/plain">
            <input name='{{"steps":1,"x":"' value='"}}'><button>win</button></form>"""
        with another_site(hostile) as site:
            page.goto(site)
            page.get_by_text("look").click()
            expect(page).to_have_url(f"{url}/run/run-1/ranks?rank=1")
            ready(page)
            # and a form there cannot ask the run for anything
            page.goto(site)
            with page.expect_response(f"{url}/api/run/run-1/capture") as refused:
                page.get_by_text("win").click()
            assert refused.value.status in (401, 403)
        inbox = Inbox(run, "capture", since_unix_ns=0, report=pytest.fail)
        assert inbox.pending(now=True) == []

        # but the page itself can
        page.goto(f"{url}/run/run-1/ranks")
        ready(page)
        status = page.evaluate(
            """fetch("/api/run/run-1/capture", {method: "POST", body: '{"steps": 2}',
               headers: {"Content-Type": "application/json", "X-Rankscope-Request": "capture"}}).then(answer => answer.status)"""
        )
        assert status == 202
        assert [request.steps for request in Inbox(run, "capture", since_unix_ns=0, report=pytest.fail).pending(now=True)] == [2]

        # when the session has ended, then the page that is open says so
        session.clear_cookies()
        page.get_by_text("Dark", exact=True).click()
        expect(page).to_have_url(re.compile(r"/login\?next="), timeout=PATIENCE_MS)
        page.get_by_label("Token").fill(SECRET)
        page.keyboard.press("Enter")
        ready(page)
        page.get_by_role("link", name="Log in or out").click()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.goto(f"{url}/run/run-1/ranks")
        expect(page).to_have_url(re.compile(r"/login\?next="))
        assert [complaint for complaint in complaints if "Content Security Policy" in complaint] == []


HOSTS = (
    '=HYPERLINK("http://evil.example")',
    "<a href='https://evil.example'><b>b</b></a>",
    "\u202e\u2067gnp.exe\u200b",
    "+1" + "W" * 10_000,
)


def test_a_hostile_run_does_nothing_in_the_page(tmp_path: Path, write_run: Callable[..., Path], opened: Opened) -> None:
    name = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e שלום " + "W" * 10_000
    run = write_run(tmp_path / "runs" / "a", name=name)
    for rank, host in enumerate(HOSTS):
        about = rank_dir(run, 0, rank) / "rank.json"
        about.write_text(json.dumps({**json.loads(about.read_text()), "host": host, "gpu_uuid": f"@{host}"}))
    write_run(tmp_path / "runs" / "b", run_id="b")
    with serving(tmp_path / "runs") as url, opened(url, viewport={"width": 360, "height": 740}) as page:
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        expect(page.locator(".run-link")).to_have_count(2, timeout=PATIENCE_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.locator(".run-link").filter(has_text="<img").click()
        expect(page.locator("#verdict-sentence")).to_contain_text(r"\u202e\u2067gnp.exe", timeout=PATIENCE_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_role("link", name="Ranks × steps").click()
        ready(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.locator("img[src=x]").count() == 0
        assert page.locator("a[href*=evil]").count() == 0
        assert "\u202e" not in page.content()

        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV", exact=True).click()
        with download.value.path().open(encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == 4
        assert rows[0]["Host"] == "'" + HOSTS[0]
        assert rows[1]["Host"] == HOSTS[1]
        assert rows[2]["Host"] == r"\u202e\u2067gnp.exe\u200b"
        assert rows[3]["Host"].startswith("'+1WWW")
        assert all(row["GPU"].startswith("'@") for row in rows)
        assert float(rows[2]["Own ms"]) > 2 * float(rows[1]["Own ms"])

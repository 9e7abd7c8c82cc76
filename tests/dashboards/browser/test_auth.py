"""Logging in, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect
from playwright.sync_api import TimeoutError as NotInTimeError
from tests.dashboards.browser.pages import PATIENCE_MS, another_site, fits, ranks_drawn, serious

from rankscope.runs.control import ControlInbox

pytestmark = pytest.mark.slow

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, write_run: Callable[..., Path]) -> Path:
    """Folder of a live run."""
    return write_run(tmp_path_factory.mktemp("live") / "run", finished=False)


@pytest.fixture(scope="module")
def url(run: Path, serve: Callable[..., str]) -> str:
    """Address of the server of the run, which requires the token."""
    return serve(run, RANKSCOPE_DASHBOARD_TOKEN=SECRET)


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_login_form_is_accessible(url: str, browser: Browser, scheme: Literal["light", "dark"]) -> None:
    with browser.new_context(color_scheme=scheme, viewport={"width": 360, "height": 740}) as session:
        page = session.new_page()
        page.goto(url)
        page.get_by_label("Token").fill("a wrong one")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_be_visible()
        assert serious(page) == []
        assert fits(page)


def test_login_leads_to_the_requested_page(run: Path, url: str, browser: Browser) -> None:
    with browser.new_context() as session:
        page = session.new_page()
        page.set_default_timeout(PATIENCE_MS)
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if "401" not in message.text else None)
        page.goto(f"{url}/run/run-1/ranks?rank=2")
        expect(page).to_have_url(re.compile(r"/login\?next="))
        page.get_by_label("Token").fill("a wrong one")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("token")
        page.get_by_label("Token").fill(SECRET)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{url}/run/run-1/ranks?rank=2")
        ranks_drawn(page)
        assert SECRET not in page.evaluate("document.cookie"), "scripts do not see it"

        # when the user follows a link on another site, then the session is still valid
        hostile = f"""<a href="{url}/run/run-1/ranks?rank=1">look</a>
            <form method="post" action="{url}/api/run/run-1/capture" enctype="text/plain">
            <input name='{{"steps":1,"x":"' value='"}}'><button>win</button></form>"""
        with another_site(hostile) as site:
            page.goto(site)
            page.get_by_text("look").click()
            expect(page).to_have_url(f"{url}/run/run-1/ranks?rank=1")
            ranks_drawn(page)
            # and a form on that site cannot send requests to the run
            page.goto(site)
            with page.expect_response(f"{url}/api/run/run-1/capture") as refused:
                page.get_by_text("win").click()
            assert refused.value.status in (401, 403)
        inbox = ControlInbox(run, "capture", since_unix_ns=0, report=pytest.fail)
        assert inbox.pending(now=True) == []

        # but rankscope's own page can
        page.goto(f"{url}/run/run-1/ranks")
        ranks_drawn(page)
        status = page.evaluate(
            """fetch("/api/run/run-1/capture", {method: "POST", body: '{"steps": 2}',
               headers: {"Content-Type": "application/json", "X-Rankscope-Request": "capture"}}).then(answer => answer.status)"""
        )
        assert status == 202
        assert [
            request.steps for request in ControlInbox(run, "capture", since_unix_ns=0, report=pytest.fail).pending(now=True)
        ] == [2]

        # when the session has ended, then the open page goes to the login
        session.clear_cookies()
        with suppress(NotInTimeError):  # the page of a live run may poll first
            page.get_by_text("Dark", exact=True).click(timeout=3_000)
        expect(page).to_have_url(re.compile(r"/login\?next="))
        page.get_by_label("Token").fill(SECRET)
        page.keyboard.press("Enter")
        ranks_drawn(page)
        page.get_by_role("link", name="Log in or out").click()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.goto(f"{url}/run/run-1/ranks")
        expect(page).to_have_url(re.compile(r"/login\?next="))
        assert [complaint for complaint in complaints if "Content Security Policy" in complaint] == []

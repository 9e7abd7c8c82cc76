"""Answers that a server may repeat without calling the application again."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import bcrypt
import pytest

from rankscope.base import http
from rankscope.base.http import Request, Response
from rankscope.exporter.pages.page import Page
from rankscope.exporter.simulated import SimulatedFleet
from rankscope.exporter.web.access import WebAccess
from rankscope.exporter.web.app import App


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def scrape(path: str = "/metrics", **headers: str) -> Request:
    return Request("GET", path, "", headers, "192.0.2.1", tls=False)


def repeated(response: Response) -> Response | None:
    return response.again() if response.again is not None else None


def app(web_config: Path | None = None) -> App:
    return App(Page("node", SimulatedFleet("1", interval_s=1)), WebAccess(web_config), interval_s=1)


def test_a_page_is_repeated_while_it_is_new_enough() -> None:
    async def main() -> None:
        exporter = app()
        for accepted in ("identity", "gzip"):
            first = await exporter.web(scrape(**{"accept-encoding": accepted}))
            again = repeated(first)
            assert again is not None
            assert (again.status, again.body, again.headers) == (first.status, first.body, first.headers)
        exporter.control._changed()  # as a release does
        assert repeated(first) is None
        for path in ("/-/ready", "/-/healthy", "/nowhere"):
            assert repeated(await exporter.web(scrape(path))) is None

    asyncio.run(main())


def test_no_page_is_repeated_for_a_user_whose_password_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LOOK_EVERY_S", 0)
    web_config = tmp_path / "web.yml"
    headers = "http_server_config: {headers: {X-Frame-Options: deny}}\n"
    web_config.write_text(f"{headers}basic_auth_users: {{scraper: {hashed('first')}}}\n")
    right = "Basic " + base64.b64encode(b"scraper:first").decode()

    async def main() -> None:
        exporter = app(web_config)
        assert repeated(await exporter.web(scrape())) is None  # 401
        first = await exporter.web(scrape(authorization=right))
        again = repeated(first)
        assert again is not None
        assert ("x-frame-options", "deny") in again.headers
        assert (first.status, again.headers) == (200, first.headers)

        web_config.write_text(f"{headers}basic_auth_users: {{scraper: {hashed('second, and longer')}}}\n ")

        assert repeated(first) is None
        assert (await exporter.web(scrape(authorization=right))).status == 401

    asyncio.run(main())

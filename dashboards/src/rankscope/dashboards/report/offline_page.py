"""Self-contained HTML file. It opens from a disk and makes no requests; its content security policy forbids them."""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Final

import msgspec
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

_PAGE: Final = """<!DOCTYPE html>
<html lang="en" data-mantine-color-scheme="light" data-file="{file}">
<head>
<meta charset="UTF-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="{generator}">
<title>{title}</title>
<link rel="icon" type="image/svg+xml" href="data:image/svg+xml;base64,{icon}">
<style>
{style}
</style>
<script>{script}</script>
</head>
<body>
{body}
<script type="application/gzip" id="figures">{figures}</script>
<script type="application/gzip" id="plotly">{plotly}</script>
</body>
</html>
"""


def offline_page(*, title: str, file: str, generator: str, body: str, figures: dict[str, Any]) -> bytes:
    """Return the file. ``body``: HTML. ``figures``: name to the figure that page.js draws. ``file``: prefix of saved files."""
    script = _text("report/page.js")
    plotly = get_plotlyjs()
    return _PAGE.format(
        title=escape(title),
        file=escape(file),
        generator=escape(generator),
        policy=escape(content_security_policy(script, plotly)),
        icon=base64.b64encode(_text("assets/icons/rankscope.svg").encode()).decode(),
        style=_text("assets/style.css") + _text("report/page.css"),
        script=script,
        body=body,
        figures=packed(msgspec.json.encode(figures)),
        plotly=_packed_plotly(),
    ).encode()


def content_security_policy(*scripts: str) -> str:
    """Return a policy that allows only these scripts to run and nothing to be loaded.

    Inline styles are allowed because Plotly sets them, and ``data:`` and ``blob:`` images because it saves figures by them.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def packed(data: bytes) -> str:
    """Return ``data`` as gzip in base64, for embedding in HTML. It has no timestamp, so the output is reproducible."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


@cache
def _packed_plotly() -> str:
    return packed(get_plotlyjs().encode())


def _text(name: str) -> str:
    return (files("rankscope.dashboards") / name).read_text("utf-8")

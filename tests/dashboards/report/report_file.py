"""Report of a run in memory, and its parts as a browser sees them."""

from __future__ import annotations

import base64
import gzip
import re
from html.parser import HTMLParser
from typing import Any

from tests.dashboards.blocks import run_of

from rankscope.dashboards.model.state import PageState
from rankscope.dashboards.report.document import Report, report

MADE_NS = 1_795_000_000_000_000_000
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&"


class Parsed(HTMLParser):
    """Tags and text of the file, as a browser parses them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._begins: list[tuple[str, int]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._begins.append((tag, len(self.text)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def texts(self, *tags: str) -> list[str]:
        """Return the text from each of these tags to the next one."""
        begins = [at for name, at in self._begins if name in tags]
        return [self.text[at:end].strip() for at, end in zip(begins, [*begins[1:], len(self.text)], strict=True)]

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(attribute)) is not None]


def made(source: Any, state: PageState | None = None) -> Report:
    """Return a report of the run ``run-1`` of ``source``."""
    return report(run_of(source), state or PageState(), made_unix_ns=MADE_NS, on_progress=lambda _: None)


def unpacked(page: str, name: str) -> Any:
    """Return a decompressed part of the file."""
    match = re.search(f'id="{name}">([^<]*)<', page)
    assert match is not None
    return gzip.decompress(base64.b64decode(match[1])).decode()

"""The Prometheus rule file and the runbooks that come with it."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Final

from rankscope.runs.errors import InputError
from rankscope.runs.writer import write_atomically

RULES_FILE: Final = "rankscope.rules.yaml"
DEFAULT_DASHBOARD: Final = "http://127.0.0.1:8050"
DEFAULT_RUNBOOKS: Final = "runbooks"
"""Relative to the exported rule file; ``--runbook-url`` says where the pages are served."""

_SAFE_BASE: Final = re.compile(r"[A-Za-z0-9._~:/\[\]@%+-]+")


def rules_text(*, dashboard_url: str = DEFAULT_DASHBOARD, runbook_url: str = DEFAULT_RUNBOOKS) -> str:
    """The rule file, with the addresses of the dashboard and of the runbooks put in. Raises ``ValueError`` for a bad address."""
    text = (files("rankscope.alerts") / "rules" / RULES_FILE).read_text(encoding="utf-8")
    for base in (dashboard_url, runbook_url):
        # It is put into YAML and into Prometheus's templates: nothing that either could read as more than text.
        if not _SAFE_BASE.fullmatch(base):
            raise ValueError(f"not a plain address: {base!r}")
    text = text.replace(f"dashboard_url: {DEFAULT_DASHBOARD}", f"dashboard_url: {dashboard_url.rstrip('/')}")
    return text.replace(f"runbook_url: {DEFAULT_RUNBOOKS}/", f"runbook_url: {runbook_url.rstrip('/')}/")


def runbooks() -> dict[str, str]:
    """Alert name to its runbook page (Markdown)."""
    folder = files("rankscope.alerts") / "runbooks"
    pages = sorted(folder.iterdir(), key=lambda page: page.name)
    return {page.name.removesuffix(".md"): page.read_text(encoding="utf-8") for page in pages if page.name.endswith(".md")}


def export(folder: Path, *, dashboard_url: str = DEFAULT_DASHBOARD, runbook_url: str = DEFAULT_RUNBOOKS) -> list[Path]:
    """Write the rule file and ``runbooks/*.md`` into ``folder``; returns what was written. Raises ``InputError``."""
    contents = {folder / RULES_FILE: rules_text(dashboard_url=dashboard_url, runbook_url=runbook_url)}
    contents |= {folder / "runbooks" / f"{name}.md": page for name, page in runbooks().items()}
    for path, text in contents.items():
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            raise InputError(path, error.strerror or str(error)) from error
    return list(contents)

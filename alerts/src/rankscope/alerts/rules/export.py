"""Export of the rule file and the runbooks to a folder."""

from __future__ import annotations

from pathlib import Path

from rankscope.alerts.rules.rule_file import DEFAULT_DASHBOARD, DEFAULT_RUNBOOKS, RULES_FILE, rules_text, runbooks
from rankscope.alerts.rules.thresholds import Tables
from rankscope.base.atomic_files import replace_file
from rankscope.base.errors import InputError


def export_rules(
    folder: Path,
    *,
    dashboard_url: str = DEFAULT_DASHBOARD,
    runbook_url: str = DEFAULT_RUNBOOKS,
    settings: Tables | None = None,
) -> list[Path]:
    """Write the rule file and ``runbooks/*.md`` into ``folder``, over earlier ones; return the written paths.

    Raises ``InputError`` for a folder that cannot be written, ``ValueError`` for a bad address.
    """
    texts = {RULES_FILE: rules_text(dashboard_url=dashboard_url, runbook_url=runbook_url, settings=settings)}
    texts |= {f"runbooks/{name}.md": page for name, page in runbooks(settings).items()}
    for name, text in texts.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            replace_file(folder / name, text.encode())
        except OSError as error:
            raise InputError(folder / name, error.strerror or str(error)) from error
    return [folder / name for name in texts]

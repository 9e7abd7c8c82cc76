"""The Prometheus rule file and the runbooks that come with it.

The rules are written in several files of ``rules/``, each valid YAML with ``${...}`` where a threshold stands; one file is made
of them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from rankscope.alerts.thresholds import SHARED, Tables, Value, duration_seconds, thresholds
from rankscope.alerts.xid_policy import POLICIES
from rankscope.exporter.xids import XIDS
from rankscope.runs.errors import InputError
from rankscope.runs.writer import write_atomically

RULES_FILE: Final = "rankscope.rules.yaml"
PARTS: Final = (
    "nodes.rules.yaml",
    "ranks.rules.yaml",
    "gpus.rules.yaml",
    "xids.rules.yaml",
    "boards.rules.yaml",
    "training.alerts.yaml",
    "gpus.alerts.yaml",
    "states.alerts.yaml",
    "xids.alerts.yaml",
    "links.alerts.yaml",
    "nodes.alerts.yaml",
)
DEFAULT_DASHBOARD: Final = "http://127.0.0.1:8050"
DEFAULT_RUNBOOKS: Final = "runbooks"
"""Relative to the exported rule file; ``--runbook-url`` says where the pages are served."""

_SAFE_BASE: Final = re.compile(r"[A-Za-z0-9._~:/\[\]@%+-]+")
_HEAD: Final = """\
# Rules over the metrics of the training ranks and of the node exporter, made by `rankscope alerts rules export`: change
# thresholds in a file (`rankscope alerts rules thresholds` prints one to start from) rather than here.
#
# Aggregations name the labels they keep, so that it does not matter how many exporters or scrape jobs see the same rank. In a
# path a space is %20, not the + that urlquery makes of it (of a + it makes %2B).
groups:
"""
_ALERT: Final = re.compile(r"^      - alert: (\w+)\n(?:(?!      - |  - ).*\n)*", re.MULTILINE)
_GROUP: Final = re.compile(r"^  - name: .*\n    rules:\n(?!      )", re.MULTILINE)
_NOT_KEPT: Final = "        keep_firing_for: 0s\n"
_SETTING: Final = re.compile(r"\$\{([\w.]+)\}")


def rules_text(
    *, dashboard_url: str = DEFAULT_DASHBOARD, runbook_url: str = DEFAULT_RUNBOOKS, settings: Tables | None = None
) -> str:
    """The rule file, with the addresses of the dashboard and of the runbooks and the thresholds put in.

    ``settings`` are the defaults unless given. Raises ``ValueError`` for a bad address.
    """
    for base in (dashboard_url, runbook_url):
        # It is put into YAML and into Prometheus's templates: nothing that either could read as more than text.
        if not _SAFE_BASE.fullmatch(base):
            raise ValueError(f"not a plain address: {base!r}")
    text = _with_settings(_parts(), thresholds() if settings is None else settings)
    text = text.replace(f"dashboard_url: {DEFAULT_DASHBOARD}", f"dashboard_url: {dashboard_url.rstrip('/')}")
    return _HEAD + text.replace(f"runbook_url: {DEFAULT_RUNBOOKS}/", f"runbook_url: {runbook_url.rstrip('/')}/")


def runbooks() -> dict[str, str]:
    """Alert name to its runbook page (Markdown)."""
    folder = files("rankscope.alerts") / "runbooks"
    pages = sorted(folder.iterdir(), key=lambda page: page.name)
    return {page.name.removesuffix(".md"): page.read_text(encoding="utf-8") for page in pages if page.name.endswith(".md")}


def export(
    folder: Path,
    *,
    dashboard_url: str = DEFAULT_DASHBOARD,
    runbook_url: str = DEFAULT_RUNBOOKS,
    settings: Tables | None = None,
) -> list[Path]:
    """Write the rule file and ``runbooks/*.md`` into ``folder``; returns what was written. Raises ``InputError``."""
    contents = {folder / RULES_FILE: rules_text(dashboard_url=dashboard_url, runbook_url=runbook_url, settings=settings)}
    contents |= {folder / "runbooks" / f"{name}.md": page for name, page in runbooks().items()}
    for path, text in contents.items():
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            raise InputError(path, error.strerror or str(error)) from error
    return list(contents)


def _parts() -> str:
    return "\n".join(_rule_file(part).partition("groups:\n")[2] for part in PARTS)


def _rule_file(name: str) -> str:
    return (files("rankscope.alerts") / "rules" / name).read_text(encoding="utf-8")


def _with_settings(text: str, tables: Tables) -> str:
    """What is left out is gone; ``${name}`` is a setting of the alert or a phrase, ``${table.name}`` a setting that is shared."""
    shared: dict[str, Value] = {
        f"{table}.{name}": value for table in SHARED for name, value in _with_seconds(tables[table]).items()
    }
    shared |= tomllib.loads(_rule_file("phrases.toml")) | _of_xids() | {"price": _price(tables["price"])}

    def alert(match: re.Match[str]) -> str:
        mine = tables[match[1]]
        return _filled(match[0], {**shared, **_with_seconds(mine), "alert": match[1]}) if mine["enabled"] else ""

    return _filled(_GROUP.sub("", _ALERT.sub(alert, text)), shared).replace(_NOT_KEPT, "")


def _filled(text: str, values: Mapping[str, Value]) -> str:
    while _SETTING.search(text):  # phrases are made of phrases
        text = _SETTING.sub(lambda match: _written(values[match[1]]), text)
    return text


def _written(value: Value) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _with_seconds(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Besides every duration how many seconds it is, for arithmetic."""
    lengths = {name: duration_seconds(value) for name, value in settings.items() if isinstance(value, str)}
    return {**settings, **{f"{name}_seconds": length for name, length in lengths.items() if length is not None}}


def _of_xids() -> dict[str, Value]:
    """Per alert the codes it is about, as a regular expression, and as a template what each means."""
    by_alert = {policy.alert: policy.codes for policy in POLICIES}
    codes = {f"xids.{alert}": "|".join(map(str, codes)) for alert, codes in by_alert.items()}
    meanings = {f"meanings.{alert}": _meanings(codes) for alert, codes in by_alert.items()}
    return {**codes, **meanings}


def _meanings(codes: Sequence[int]) -> str:
    cases = [f'if eq $labels.xid "{code}" }}}}{XIDS[code].meaning}' for code in codes]
    return "{{ " + "\n            {{- else ".join(cases) + "{{ end }}"


def _price(settings: Mapping[str, Value]) -> str:
    """An expression without a value where no price is known."""
    if "per_gpu_hour" not in settings:
        return "vector(0) > 0"
    return f'label_replace(vector({settings["per_gpu_hour"]}), "currency", "{settings["currency"]}", "", "")'

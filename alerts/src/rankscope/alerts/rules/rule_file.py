"""The Prometheus rule file and the runbooks that come with it.

Several files in ``rules/`` hold the rules, each valid YAML with ``${...}`` placeholders for thresholds. They are merged into one
file.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rankscope.alerts.rules.thresholds import SEVERITY_OF, SHARED, Tables, Value, duration_seconds, duration_text, load_thresholds
from rankscope.alerts.rules.xid_policy import POLICIES
from rankscope.alerts.watch.conditions.budgets import BUDGETS, Budgets
from rankscope.alerts.watch.liveness.monitor import Patience
from rankscope.base.atomic_files import replace_file
from rankscope.base.errors import InputError
from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.xids import XIDS

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
    "receiver.alerts.yaml",
)
DEFAULT_DASHBOARD: Final = "http://127.0.0.1:8050"
DEFAULT_RUNBOOKS: Final = "runbooks"
"""Relative to the exported rule file; ``--runbook-url`` sets the address that serves the pages."""

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
    """Render the rule file with the thresholds and the addresses of the dashboard and the runbooks.

    ``settings`` are the default thresholds unless given. Raises ``ValueError`` for a bad address, without quoting it.
    """
    for name, base in (("dashboard", dashboard_url), ("runbook", runbook_url)):
        if "@" in (base.partition("//")[2] or base).partition("/")[0]:
            raise ValueError(f"the {name} URL contains a user, which every alert would show: leave out the part before the @")
        # The address becomes part of YAML and of Prometheus templates: only characters that are plain text in both.
        if not _SAFE_BASE.fullmatch(base):
            raise ValueError(f"the {name} URL is not a plain address: letters, digits and ._~:/[]@%+- only")
    text = _with_settings(_parts(), load_thresholds() if settings is None else settings)
    text = text.replace(f"dashboard_url: {DEFAULT_DASHBOARD}", f"dashboard_url: {dashboard_url.rstrip('/')}")
    return _HEAD + text.replace(f"runbook_url: {DEFAULT_RUNBOOKS}/", f"runbook_url: {runbook_url.rstrip('/')}/")


def runbooks(settings: Tables | None = None) -> Mapping[str, str]:
    """Runbook (Markdown) of each alert by name, with the numbers of ``settings`` (default: the shipped thresholds)."""
    return _default_runbooks() if settings is None else _filled_runbooks(settings)


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


@functools.cache
def _default_runbooks() -> Mapping[str, str]:
    return MappingProxyType(_filled_runbooks(load_thresholds()))


def _filled_runbooks(tables: Tables) -> dict[str, str]:
    shared = _shared(tables) | _watcher_defaults() | _xid_lists() | _phrases()["runbook"]
    filled = {}
    folder = files("rankscope.alerts") / "runbooks"
    for page in sorted(folder.iterdir(), key=lambda page: page.name):
        if page.name.endswith(".md"):
            name = page.name.removesuffix(".md")
            settings = tables.get(name, {"severity": SEVERITY_OF[name]})
            values = {**shared, **_measured(settings), "alert": name}
            filled[name] = _filled(page.read_text(encoding="utf-8"), values)
    return filled


def _parts() -> str:
    return "\n".join(_rule_file(part).partition("groups:\n")[2] for part in PARTS)


def _rule_file(name: str) -> str:
    return (files("rankscope.alerts") / "rules" / name).read_text(encoding="utf-8")


def _with_settings(text: str, tables: Tables) -> str:
    """Fill in placeholders and remove disabled alerts.

    ``${name}`` is a setting of the alert or a phrase, ``${table.name}`` a shared setting.
    """
    phrases = {name: text for name, text in _phrases().items() if name != "runbook"}
    gpu_collectors = "|".join(name for name, collector in COLLECTORS.items() if collector.reads_gpu)
    shared = _shared(tables) | phrases | _xid_values() | {"price": _price(tables["price"]), "gpu_collectors": gpu_collectors}

    def alert(match: re.Match[str]) -> str:
        table = tables[match[1]]
        values = {**shared, **_measured(table), "alert": match[1], "excepted": _excepted(table)}
        return _filled(match[0], values) if table["enabled"] else ""

    return _filled(_GROUP.sub("", _ALERT.sub(alert, text)), shared).replace(_NOT_KEPT, "")


def _filled(text: str, values: Mapping[str, Value]) -> str:
    while _SETTING.search(text):  # phrases may contain phrases
        text = _SETTING.sub(lambda match: _format_value(values[match[1]]), text)
    return text


def _format_value(value: Value) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _phrases() -> dict[str, Any]:
    return tomllib.loads(_rule_file("phrases.toml"))


def _shared(tables: Tables) -> dict[str, Value]:
    return {f"{table}.{name}": value for table in SHARED for name, value in _measured(tables[table]).items()}


def _watcher_defaults() -> dict[str, Value]:
    """Default thresholds of the watcher's alerts as text for the runbooks."""
    budgets, patience = Budgets(), Patience()
    return {
        **{f"budget.{name}.percent": f"{100 * getattr(budgets, name):.15g} %" for name in BUDGETS},
        "watcher.silent_after.words": duration_text(patience.silent_after_s),
        "watcher.silent_steps": f"{patience.silent_steps:g}",
    }


def _measured(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Add derived values to ``settings``: durations in seconds for arithmetic, durations and ratios as text."""
    lengths = {name: duration_seconds(value) for name, value in settings.items() if isinstance(value, str)}
    parsed = {name: length for name, length in lengths.items() if length is not None}
    seconds = {name: value for name, value in settings.items() if name.endswith("seconds") and not isinstance(value, str)}
    return {
        **settings,
        **{f"{name}_seconds": length for name, length in parsed.items()},
        **{f"{name}.words": duration_text(float(length)) for name, length in {**parsed, **seconds}.items()},
        **{f"{name}.percent": f"{100 * float(value):.15g} %" for name, value in settings.items() if name.endswith("_ratio")},
    }


def _excepted(settings: Mapping[str, Value]) -> str:
    """Return the part of an expression that leaves out the hosts and models of ``except_hosts`` and ``except_models``."""
    labels = {"host": settings.get("except_hosts"), "model": settings.get("except_models")}
    return "".join(f' unless on (uuid) uuid:gpu_info:latest{{{name}=~"{value}"}}' for name, value in labels.items() if value)


def _xid_values() -> dict[str, Value]:
    """Values for the Xids of each alert: a regular expression of the codes, and a template of their meanings."""
    by_alert: dict[str, tuple[int, ...]] = {}
    for policy in POLICIES:
        by_alert[policy.alert] = (*by_alert.get(policy.alert, ()), *policy.codes)
    codes = {f"xids.{alert}": "|".join(map(str, codes)) for alert, codes in by_alert.items()}
    meanings = {f"meanings.{alert}": _meanings(codes) for alert, codes in by_alert.items()}
    return {**codes, **meanings}


def _xid_lists() -> dict[str, Value]:
    """Lists of an alert's Xids for its runbook: of those with the same usual action, and of all."""
    lists: dict[str, list[str]] = {}
    for policy in POLICIES:
        for code in policy.codes:
            for key in (policy.alert, f"{policy.alert}.{XIDS[code].action}"):
                lists.setdefault(f"xids.{key}", []).append(str(code))
    return {name: ", ".join(codes) for name, codes in lists.items()}


def _meanings(codes: Sequence[int]) -> str:
    cases = [f'if eq $labels.xid "{code}" }}}}{XIDS[code].meaning}' for code in codes]
    return "{{ " + "\n            {{- else ".join(cases) + "{{ end }}"


def _price(settings: Mapping[str, Value]) -> str:
    """Expression of the price of a GPU-hour; without a configured price it returns no sample."""
    if "per_gpu_hour" not in settings:
        return "vector(0) > 0"
    return f'label_replace(vector({settings["per_gpu_hour"]}), "currency", "{settings["currency"]}", "", "")'

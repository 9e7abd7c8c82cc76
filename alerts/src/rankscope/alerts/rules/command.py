"""``rankscope alerts rules``: the rule file, its thresholds, the runbooks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import click
import msgspec

from rankscope.base.http import is_loopback
from rankscope.base.options import format_option, http_url

_dashboard: Final = click.option(
    "--dashboard-url",
    type=http_url,
    metavar="URL",
    default="http://127.0.0.1:8050",
    show_default=True,
    help="Dashboard that alerts link to.",
)
_runbooks: Final = click.option(
    "--runbook-url", default="runbooks", show_default=True, help="Where the runbooks are served: https://wiki.example/rankscope"
)
thresholds_option: Final = click.option(
    "--thresholds",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with other thresholds: numbers, durations, severities, disabled alerts, the price of a GPU.",
)


def _addressed(command: Callable[..., Any]) -> Callable[..., Any]:
    return thresholds_option(_dashboard(_runbooks(command)))


@click.group(short_help="Show or export the Prometheus rules and their runbooks.")
def rules() -> None:
    """Show or export Prometheus rules, their runbooks and thresholds."""


@rules.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@_addressed
def export(folder: Path, *, thresholds: Path | None, dashboard_url: str, runbook_url: str) -> None:
    """Write the rule file and one runbook per alert into DIR.

    Files of an earlier export are replaced, also edited ones: keep your own changes in --thresholds.

    \b
    Examples:
      rankscope alerts rules export rules
      rankscope alerts rules export rules --thresholds ours.toml
      rankscope alerts rules export rules --dashboard-url https://gpu.example

    Exit status: 0 done, 2 usage, 3 the file of thresholds is wrong, or DIR cannot be written.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.rules.rule_file import export_rules
    from rankscope.alerts.rules.thresholds import load_thresholds as read

    settings = read(thresholds)
    try:
        written = export_rules(folder, dashboard_url=dashboard_url, runbook_url=runbook_url, settings=settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for path in written:
        click.echo(f"wrote {path}", err=True)
    _warn_of_links(dashboard_url, runbook_url)


@rules.command()
@_addressed
def show(thresholds: Path | None, dashboard_url: str, runbook_url: str) -> None:
    """Print the rule file.

    \b
    Example:
      rankscope alerts rules show --thresholds ours.toml > rankscope.rules.yaml
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.rules.rule_file import rules_text
    from rankscope.alerts.rules.thresholds import load_thresholds as read

    settings = read(thresholds)
    try:
        click.echo(rules_text(dashboard_url=dashboard_url, runbook_url=runbook_url, settings=settings), nl=False)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _warn_of_links(dashboard_url, runbook_url)


def _warn_of_links(dashboard_url: str, runbook_url: str) -> None:
    """Warn about links in alerts that do not work on another machine."""
    for option, url in (("--dashboard-url", dashboard_url), ("--runbook-url", runbook_url)):
        if problem := _unreachable(url):
            click.echo(f"rankscope: warning: alerts link to {url}, {problem}; {option} sets another address", err=True)


def _unreachable(url: str) -> str:
    """Return the reason why a link that begins with ``url`` fails on another machine; empty if it may work."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not host:
        return "a relative path that a browser cannot open from a chat or a pager"
    return "which only this machine can open" if is_loopback(host) else ""


@rules.command("thresholds")
def default_thresholds() -> None:
    """Print the default thresholds, a file to start from.

    Comments give the meaning and the unit of each.

    \b
    Example:
      rankscope alerts rules thresholds > ours.toml
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.rules.thresholds import default_text

    click.echo(default_text(), nl=False)


@click.command()
@click.argument("questions", metavar="XID|ALERT...", nargs=-1, required=True)
@format_option("json: one object, of the schema that `rankscope schema explain` prints.")
def explain(questions: tuple[str, ...], format_: Literal["text", "json"]) -> None:
    """Explain an Xid error or an alert, and what to do about it.

    For an Xid: meaning, usual cause, usual action, source with its date; then the policy (which alert reports it, whether the
    node is drained) and the runbook. For an alert: default thresholds and runbook.

    \b
    Examples:
      rankscope alerts explain 79
      rankscope alerts explain GpuDown
      rankscope alerts explain 13 31 94 --format json

    Exit status: 0 done, also for an unknown Xid, 2 no such alert.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.rules.explain import UnknownAlertError, explain_text, explanation_of

    try:
        explanation = explanation_of(questions)
    except UnknownAlertError as error:
        raise click.UsageError(str(error)) from error
    click.echo(msgspec.json.encode(explanation).decode() if format_ == "json" else explain_text(explanation))

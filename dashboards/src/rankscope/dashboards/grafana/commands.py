"""``rankscope grafana``: list and export the boards for Grafana. Needs no extra."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import click

from rankscope.base.options import format_option, http_url
from rankscope.dashboards.grafana.export import export as write
from rankscope.dashboards.grafana.shipped import shipped

SCHEMA: Final = "rankscope.grafana/1"

_PLAIN: Final = re.compile(r"[A-Za-z0-9._~:/\[\]%+-]+")


class _Uid(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """A uid that Grafana accepts."""

    name = "uid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check the uid."""
        if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", value) is None:
            self.fail(f"{value!r} is not a uid: up to 40 letters, digits, - and _, as Grafana shows in the address", param, ctx)
        return str(value)


def _address(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Check an address that a board puts in front of ``/run/…``, and return it without a trailing slash."""
    if value is None:
        return None
    if _PLAIN.fullmatch(http_url(value)) is None:
        raise click.BadParameter("expected an address like https://host:port/path, without a user, a query or a fragment")
    return value.rstrip("/")


@click.group()
def grafana() -> None:
    """List and export boards for Grafana: hosts, GPUs, runs, alerts."""


@grafana.command(
    epilog="""
\b
Examples:
  rankscope grafana export grafana
  rankscope grafana export grafana --dashboard-url https://rankscope.example
"""
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=True))
@click.option("--datasource-uid", type=_Uid(), help="Prometheus that the boards choose first.  [default: Grafana's own choice]")
@click.option(
    "--dashboard-url",
    callback=_address,
    metavar="URL",
    help="Where `rankscope dashboard` is served: links to the evidence lead there.  [default: http://127.0.0.1:8050]",
)
@format_option("json: one object with the files that were written.")
def export(folder: Path, datasource_uid: str | None, dashboard_url: str | None, format_: str) -> None:
    """Write the boards into DIR, with what tells Grafana where they are.

    Files of the same names are replaced, others stay. DIR/README.md says how to mount it.
    """
    written = write(folder, datasource_uid=datasource_uid, dashboard_url=dashboard_url)
    if format_ == "json":
        click.echo(json.dumps({"schema": SCHEMA, "files": [str(path) for path in written]}))
        return
    for path in written:
        click.echo(str(path))


@grafana.command("list")
@format_option("json: one object with all boards.")
def list_boards(format_: str) -> None:
    """List the boards."""
    boards = shipped()
    if format_ == "json":
        rows = [{name: getattr(board, name) for name in ("uid", "title", "description", "panels")} for board in boards]
        click.echo(json.dumps({"schema": SCHEMA, "boards": rows}))
        return
    for board in boards:
        click.echo(f"{board.uid:24} {board.panels:3} panels  {board.title}: {board.description}")

"""``rankscope alerts explain``."""

from __future__ import annotations

from typing import Literal

import click
import msgspec

from rankscope.alerts.options import format_option


@click.command()
@click.argument("questions", metavar="XID|ALERT...", nargs=-1, required=True)
@format_option("json: one object, of the schema that `rankscope schema explain` prints.")
def explain(questions: tuple[str, ...], format_: Literal["text", "json"]) -> None:
    """What an Xid error or an alert means, and what to do about it.

    Of an Xid: its meaning, where it mostly comes from, the usual action, the source and when it was read; then our policy, which
    is which alert tells of it and whether the node is drained, and the runbook. Of an alert: what it compares with by default,
    and its runbook.

    \b
    Examples:
      rankscope alerts explain 79
      rankscope alerts explain GpuDown
      rankscope alerts explain 13 31 94 --format json

    Exit status: 0 done, also for an Xid that nothing is known about, 2 no such alert.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.explain import UnknownAlertError
    from rankscope.alerts.explain import explain as explained
    from rankscope.alerts.explain_text import explain_text

    try:
        explanation = explained(questions)
    except UnknownAlertError as error:
        raise click.UsageError(str(error)) from error
    click.echo(msgspec.json.encode(explanation).decode() if format_ == "json" else explain_text(explanation))

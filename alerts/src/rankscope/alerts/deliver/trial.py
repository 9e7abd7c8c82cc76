"""``rankscope alerts test-webhook`` and its result. What needs an extra is imported when it is used."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import click
import msgspec

from rankscope.alerts.options import targets_option
from rankscope.base.options import format_option, http_url
from rankscope.base.text import one_line


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one test alert at one target. ``answer`` is in words; ``seconds`` is the duration."""

    target: str
    status: Literal["firing", "resolved"]
    delivered: bool
    answer: str
    seconds: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``test-webhook --format json``."""

    schema: Literal["rankscope.test-webhook/1"] = "rankscope.test-webhook/1"
    ok: bool
    results: list[Tried]


@click.command(name="test-webhook")
@targets_option
@click.option("--target", metavar="NAME", help="Only this one of the targets in --config.")
@click.option("--webhook", type=http_url, metavar="URL", envvar="RANKSCOPE_ALERTS_WEBHOOK", help="Or an address.")
@format_option("json: one object, rankscope.test-webhook/1.")
@click.pass_context
def test_webhook(
    ctx: click.Context,
    *,
    config: Path | None,
    target: str | None,
    webhook: str | None,
    format_: Literal["text", "json"],
) -> None:
    """Send a test alert that fires and ends, and say what was answered.

    It is labelled as a test and as simulated, and takes the way that every alert takes: template, signature, proxy, authorities.

    \b
    Examples:
      rankscope alerts test-webhook --config alerts.toml
      rankscope alerts test-webhook --config alerts.toml --target oncall
      rankscope alerts test-webhook --webhook https://hooks.example/T0/B0

    Exit status: 0 delivered, 1 not delivered, 3 the file cannot be read.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.deliver.target import webhook_target
    from rankscope.alerts.deliver.targets import load_targets
    from rankscope.alerts.deliver.trial_alert import try_targets

    if config is None and (webhook is None or target is not None):
        raise click.UsageError("give --config FILE, or --webhook URL without --target")
    targets = load_targets(config) if config is not None else []
    if target is not None:
        names = ", ".join(one.name for one in targets)
        targets = [one for one in targets if one.name == target]
        if not targets:
            raise click.UsageError(f"there is no target {target!r} in {config}; there are {names}")
    elif webhook is not None:
        targets.append(webhook_target(webhook))
    trial = try_targets(targets, now_unix_ns=time.time_ns())
    if format_ == "json":
        click.echo(msgspec.json.encode(trial))
    else:
        for tried in trial.results:
            verdict = "delivered" if tried.delivered else "NOT delivered"
            click.echo(one_line(f"{tried.target}: {tried.status}: {verdict}: {tried.answer} after {tried.seconds:.3f} s"))
    if not trial.ok:
        ctx.exit(1)

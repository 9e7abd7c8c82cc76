"""``rankscope alerts test-webhook`` and its result. What needs an extra is imported when it is used."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from rankscope.alerts.alert import Alert
from rankscope.alerts.payload import Notice, payload_alert
from rankscope.base.options import format_option, http_url
from rankscope.base.text import one_line

if TYPE_CHECKING:
    from rankscope.alerts.deliver.targets import Target


class TrialAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one test alert at one target. ``answer`` is a text; ``seconds`` is the duration."""

    target: str
    status: Literal["firing", "resolved"]
    delivered: bool
    answer: str
    seconds: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``test-webhook --format json``."""

    schema: Literal["rankscope.test-webhook/1"] = "rankscope.test-webhook/1"
    ok: bool
    results: list[TrialAttempt]


targets_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Targets to send to, in TOML: see docs/webhooks.md.",
)
"""``--config`` of ``test-webhook`` and ``watch``: the file with the operator's targets."""


@click.command(name="test-webhook", short_help="Send a test alert, firing and resolved, and print the answers.")
@targets_option
@click.option("--target", metavar="NAME", help="Test only this target of --config.")
@click.option("--webhook", type=http_url, metavar="URL", envvar="RANKSCOPE_ALERTS_WEBHOOK", help="Address to test instead.")
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
    """Send a firing and a resolved test alert, and print the answers.

    The alert is labelled as a test and as simulated. Template, signature, proxy and certificates are those of every alert.

    \b
    Examples:
      rankscope alerts test-webhook --config alerts.toml
      rankscope alerts test-webhook --config alerts.toml --target oncall
      rankscope alerts test-webhook --webhook https://hooks.example/T0/B0

    Exit status: 0 delivered, 1 not delivered, 3 the file cannot be read.
    """  # noqa: D301 - \b is for click
    from rankscope.alerts.deliver.target_file import load_targets
    from rankscope.alerts.deliver.targets import webhook_target

    if config is None and (webhook is None or target is not None):
        raise click.UsageError("name a target: --config FILE, or --webhook URL (without --target)")
    targets = load_targets(config) if config is not None else []
    if target is not None:
        names = ", ".join(configured.name for configured in targets)
        targets = [configured for configured in targets if configured.name == target]
        if not targets:
            raise click.UsageError(f"there is no target {target!r} in {config}; there are {names}")
    elif webhook is not None:
        targets.append(webhook_target(webhook))
    trial = try_targets(targets, now_unix_ns=time.time_ns())
    if format_ == "json":
        click.echo(msgspec.json.encode(trial))
    else:
        for attempt in trial.results:
            verdict = "delivered" if attempt.delivered else "NOT delivered"
            click.echo(one_line(f"{attempt.target}: {attempt.status}: {verdict}: {attempt.answer} after {attempt.seconds:.3f} s"))
    if not trial.ok:
        ctx.exit(1)


def try_targets(targets: Sequence[Target], *, now_unix_ns: int) -> Trial:
    """Send each target a firing and a resolved test alert. A target that does not accept the first gets no second."""
    results = [attempt for target in targets for attempt in _attempts(target, now_unix_ns)]
    return Trial(ok=all(attempt.delivered for attempt in results), results=results)


def trial_notice(now_unix_ns: int, *, ended: bool) -> Notice:
    """Build an alert that is clearly a test."""
    labels = {
        "alertname": "RankscopeTest",
        "severity": "info",
        "run_id": f"test-{now_unix_ns // 10**9}",
        "rank": "0",
        "host": "none",
    }
    annotations = {
        "summary": "[simulated] This is a test of a webhook of rankscope. No action is needed.",
        "simulated": "true",
        "cause": "none: this is a test",
        "cost": "0.00",
        "next": "rankscope alerts --help",
    }
    return Notice(
        alert=payload_alert(
            Alert(labels=labels, annotations=annotations),
            starts_at_unix_ns=now_unix_ns,
            ends_at_unix_ns=now_unix_ns + 10**9 if ended else None,
        )
    )


def _attempts(target: Target, now_unix_ns: int) -> Iterator[TrialAttempt]:
    from rankscope.alerts.deliver.message import messages_about
    from rankscope.alerts.deliver.sender import courier_for

    courier = courier_for(target)
    for ended in (False, True):
        [message] = messages_about(target.name, [trial_notice(now_unix_ns, ended=ended)])
        began = time.monotonic()
        result = courier.attempt(message.id, message.body)
        yield TrialAttempt(
            target=target.label,
            status="resolved" if ended else "firing",
            delivered=result.kind == "delivered",
            answer=result.reason,
            seconds=round(time.monotonic() - began, 3),
        )
        if result.kind != "delivered":
            return

"""A test alert, on the way that every alert takes: outbox, template, signature, address check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from rankscope.alerts.alert import Alert, Notice, fingerprint
from rankscope.alerts.deliver.message import messages_about
from rankscope.alerts.deliver.outbox import Outbox
from rankscope.alerts.deliver.retrying import Judgement
from rankscope.alerts.options import format_option, http_url, targets_option
from rankscope.alerts.output import plain
from rankscope.alerts.store.database import Store

if TYPE_CHECKING:
    from rankscope.alerts.deliver.courier import Courier
    from rankscope.alerts.deliver.target import Target


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """What a target answered. ``answer`` is in words; ``seconds`` is how long that took."""

    target: str
    status: Literal["firing", "resolved"]
    delivered: bool
    answer: str
    seconds: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What ``test-webhook --format json`` prints."""

    schema: Literal["rankscope.test-webhook/1"] = "rankscope.test-webhook/1"
    ok: bool
    results: list[Tried]


def try_targets(targets: Sequence[Target], *, now_unix_ns: int) -> Trial:
    """Send each target an alert that fires and ends, once. A target that does not take the first is not sent the second."""
    results = [tried for target in targets for tried in _try(target, now_unix_ns)]
    return Trial(ok=all(tried.delivered for tried in results), results=results)


def trial_notice(now_unix_ns: int, *, ended: bool) -> Notice:
    """An alert that nobody can take for a real one."""
    labels = {
        "alertname": "RankscopeTest",
        "severity": "info",
        "run_id": f"test-{now_unix_ns // 10**9}",
        "rank": "0",
        "host": "none",
    }
    annotations = {
        "summary": "[simulated] A test of rankscope's webhook. Nobody needs to do anything.",
        "simulated": "true",
        "cause": "none: this is a test",
        "cost": "0.00",
        "next": "rankscope alerts --help",
    }
    return Notice(
        alert=Alert(labels=labels, annotations=annotations),
        fingerprint=fingerprint(labels),
        starts_at_unix_ns=now_unix_ns,
        ends_at_unix_ns=now_unix_ns + 10**9 if ended else None,
    )


@dataclass(slots=True)
class _Noting:
    """Notes what the courier came back with."""

    inner: Courier
    judgement: Judgement | None = None

    def attempt(self, message_id: str, payload: bytes) -> Judgement:
        self.judgement = self.inner.attempt(message_id, payload)
        return self.judgement


def _try(target: Target, now_unix_ns: int) -> list[Tried]:
    from rankscope.alerts.deliver.sender import Sender, courier_for

    noting = _Noting(courier_for(target))
    outbox = Outbox(Store(None))
    # Given up at the first failure, and in no hurry that a limit has to slow down.
    target = replace(target, retry_for_s=0.0, rate=None)
    sender = Sender(outbox, [target], report=lambda _: None, courier=lambda _: noting)
    results: list[Tried] = []
    for ended in (False, True):
        notice = trial_notice(now_unix_ns, ended=ended)
        outbox.put(messages_about(target.name, [notice], most_alerts=target.most_alerts))
        began = time.monotonic()
        sender.run_due()
        told = noting.judgement
        assert told is not None
        results.append(
            Tried(
                target=target.label,
                status="resolved" if ended else "firing",
                delivered=told.kind == "delivered",
                answer=told.reason,
                seconds=round(time.monotonic() - began, 3),
            )
        )
        if told.kind != "delivered":
            break
    return results


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
            click.echo(plain(f"{tried.target}: {tried.status}: {verdict}: {tried.answer} after {tried.seconds:.3f} s"))
    if not trial.ok:
        ctx.exit(1)

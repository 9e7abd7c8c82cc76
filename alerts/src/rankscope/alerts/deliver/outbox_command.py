"""``rankscope alerts outbox``: messages of a store, and replay of dead ones. Needs no extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
import msgspec

from rankscope.alerts.alert import rfc3339, unix_ns
from rankscope.alerts.deliver.message import MessageState, MessageSummary
from rankscope.alerts.store.folders import STORE_FILE, default_folders
from rankscope.base.errors import InputError
from rankscope.base.options import format_option
from rankscope.base.text import format_duration, one_line

if TYPE_CHECKING:
    from rankscope.alerts.deliver.outbox import Outbox


_SHOWN = 100
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one store, oldest first, and the number of messages by state."""

    path: str
    counts: dict[str, int]
    messages: list[MessageSummary]


class Listings(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``list --format json``."""

    schema: Literal["rankscope.outbox-list/1"] = "rankscope.outbox-list/1"
    outboxes: list[Listing]


class MessageDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Output of ``show --format json``."""

    path: str
    message: MessageSummary
    payload: msgspec.Raw
    """``null`` if the payload is not JSON."""


@click.group()
def outbox() -> None:
    """Inspect the messages to targets: waiting, delivered, dead.

    Refused messages, and those not accepted in time, are kept as dead: show them, repair the target, replay them.
    A running `rankscope alerts watch` or `serve` with the same --state sends them at once, otherwise the next one does.
    """


def _folders(command: _Command) -> _Command:
    path = click.Path(path_type=Path, file_okay=False)
    words = "State folder of a watcher or receiver. Repeatable.  [default: all in ~/.local/state/rankscope]"
    return click.option("--state", "folders", multiple=True, type=path, metavar="DIRECTORY", help=words)(command)


_only = click.option(
    "--only",
    "state",
    type=click.Choice(["waiting", "delivered", "dead", "overtaken"]),
    help="Select only messages in this state.",
)
_target = click.option("--target", metavar="NAME", help="Select only messages to this target.")


@outbox.command(name="list")
@_folders
@_only
@_target
@click.option(
    "--last", type=click.IntRange(1), default=_SHOWN, show_default=True, help="List at most this many messages of each store."
)
@format_option("json: one object, rankscope.outbox-list/1.")
def list_(
    *, folders: tuple[Path, ...], state: MessageState | None, target: str | None, last: int, format_: Literal["text", "json"]
) -> None:
    """List messages, oldest first.

    waiting: not yet accepted; delivered; dead: given up; overtaken: the alert ended before its firing state was delivered.
    """
    listings = [_listing(path, box, state, target, last) for path, box in _opened(folders)]
    if format_ == "json":
        click.echo(msgspec.json.encode(Listings(outboxes=listings)))
        return
    if not listings:
        click.echo("no state folder: no watcher or receiver has run here", err=True)
    for listing in listings:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(listing.counts.items())) or "empty"
        click.echo(f"{one_line(listing.path)}: {counts}")
        for message in listing.messages:
            click.echo(f"  {_line(message)}")


@outbox.command()
@click.argument("id_", metavar="ID")
@_folders
@format_option("json: the message and its payload.")
@click.pass_context
def show(ctx: click.Context, *, id_: str, folders: tuple[Path, ...], format_: Literal["text", "json"]) -> None:
    """Show a message with its payload.

    Exit status: 0 done, 1 no such message.
    """
    for path, box in _opened(folders):
        entry = box.show(id_)
        if entry is None:
            continue
        message, payload = entry
        try:
            text = msgspec.json.format(payload.decode(), indent=2)
        except (msgspec.DecodeError, UnicodeDecodeError):  # written by another program
            text, payload = payload.decode(errors="replace"), b"null"
        if format_ == "json":
            click.echo(msgspec.json.encode(MessageDetails(path=str(path), message=message, payload=msgspec.Raw(payload))))
        else:
            click.echo(f"{_line(message)}\ngroup {one_line(message.group)}, created {rfc3339(message.created_unix_ns)}")
            click.echo("\n".join(one_line(line) for line in text.splitlines()))
        return
    click.echo(f"rankscope: no message {one_line(id_)!r}", err=True)
    ctx.exit(1)


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--dead", is_flag=True, help="Send all dead messages.")
@_target
@_folders
@click.pass_context
def replay(ctx: click.Context, *, ids: tuple[str, ...], dead: bool, target: str | None, folders: tuple[Path, ...]) -> None:
    """Send dead messages again.

    Alerts that have ended since are left out. A target that was disabled because it answered 410 is enabled.

    Exit status: 0 done, 1 a named message is not dead, or its alerts have ended.
    """
    _require_choice(ids, dead or target is not None, "--dead, --target NAME")
    ids_sent = [id_ for _, box in _opened(folders) for id_ in box.replay(ids or None, target=target)]
    _report(ctx, ids, ids_sent, "will be sent again", "is not dead, or its alerts have ended")


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_only
@_target
@_folders
@click.pass_context
def drop(
    ctx: click.Context, *, ids: tuple[str, ...], state: MessageState | None, target: str | None, folders: tuple[Path, ...]
) -> None:
    """Delete messages, waiting ones included.

    Exit status: 0 done, 1 no such message.
    """
    _require_choice(ids, state is not None or target is not None, "--only STATE, --target NAME")
    ids_dropped = [id_ for _, box in _opened(folders) for id_ in box.drop(ids or None, state=state, target=target)]
    _report(ctx, ids, ids_dropped, "deleted", "is not in these stores")


def _require_choice(ids: Sequence[str], chosen: bool, options: str) -> None:
    if not ids and not chosen:
        raise click.UsageError(f"name messages by their ids, or give {options}")


def _report(ctx: click.Context, ids: Sequence[str], ids_changed: Sequence[str], change: str, why_not: str) -> None:
    click.echo(f"{len(ids_changed)} {'message' if len(ids_changed) == 1 else 'messages'} {change}")
    missing = [id_ for id_ in ids if id_ not in ids_changed]
    for id_ in missing:
        click.echo(f"rankscope: {one_line(id_)} {why_not}", err=True)
    if missing:
        ctx.exit(1)


def _opened(folders: Sequence[Path]) -> Iterator[tuple[Path, Outbox]]:
    from rankscope.alerts.deliver.outbox import Outbox
    from rankscope.alerts.store.database import AlertStore

    for folder in folders or default_folders():
        path = folder / STORE_FILE
        if not path.exists():
            raise InputError(path, "no such file; --state names the folder of a watcher or receiver")
        with AlertStore(folder, repair=False) as store:
            yield path, Outbox(store)


def _listing(path: Path, box: Outbox, state: MessageState | None, target: str | None, last: int) -> Listing:
    counts: dict[str, int] = {}
    for (of, name), count in box.counts().items():
        if target in (None, of):
            counts[name] = counts.get(name, 0) + count
    return Listing(path=str(path), counts=counts, messages=box.list_messages(state=state, target=target, most=last))


def _line(message: MessageSummary) -> str:
    since = unix_ns(message.starts_at)
    when = f", since {rfc3339(since)}" if since > 0 else ""
    head = f"{message.state:<9} {rfc3339(message.created_unix_ns)} {message.id} {message.target}"
    parts = [f"{head}: {message.about}{when}", f"{message.attempts} attempt{'' if message.attempts == 1 else 's'}"]
    if message.next_attempt_s is not None:
        parts.append(f"next in {format_duration(message.next_attempt_s * 1e6)}" if message.next_attempt_s else "due")
    if message.last_error:
        parts.append(message.last_error)
    return one_line(", ".join(parts))

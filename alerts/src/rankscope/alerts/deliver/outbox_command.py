"""``rankscope alerts outbox``: what waits, what was given up and why; sending it again. Needs no extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
import msgspec

from rankscope.alerts.alert import rfc3339, unix_ns
from rankscope.alerts.deliver.outbox import Listed, Listing, Listings, Shown, State
from rankscope.alerts.watch.state import state_home
from rankscope.base.errors import InputError
from rankscope.base.options import format_option
from rankscope.base.text import duration, one_line

if TYPE_CHECKING:
    from rankscope.alerts.deliver.outbox import Outbox


_SUFFIX: Final = ".outbox"


def outbox_file(state: Path) -> Path:
    """The outbox that belongs to a watcher's state file: beside it."""
    return state.with_name(state.name.removesuffix(".json") + _SUFFIX)


def outbox_files() -> list[Path]:
    """All outboxes among what is kept, and in the folders there (the receiver's), by name."""
    folder = state_home()
    try:
        return sorted(path for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}{_SUFFIX}"))
    except OSError:
        return []


_SHOWN = 100
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def outbox() -> None:
    """What targets are still to be told, and what was given up.

    A message that was not accepted within its time, or was refused, is kept: look at it, put the receiver right, send it again.
    The next `rankscope alerts watch` or `serve` with the same outbox sends it, one that runs does so at once.
    """


def _files(command: _Command) -> _Command:
    path = click.Path(path_type=Path, dir_okay=False)
    words = "The outbox. Repeatable.  [default: all under ~/.local/state/rankscope]"
    return click.option("--outbox", "files", multiple=True, type=path, metavar="FILE", help=words)(command)


_state = click.option("--state", type=click.Choice(["waiting", "delivered", "dead", "overtaken"]), help="Only these.")
_target = click.option("--target", metavar="NAME", help="Only what is for this target.")


@outbox.command(name="list")
@_files
@_state
@_target
@click.option("--last", type=click.IntRange(1), default=_SHOWN, show_default=True, help="So many messages of each outbox.")
@format_option("json: one object, rankscope.outbox-list/1.")
def list_(
    *, files: tuple[Path, ...], state: State | None, target: str | None, last: int, format_: Literal["text", "json"]
) -> None:
    """List messages, oldest first.

    waiting: to be sent, delivered: accepted, dead: given up, overtaken: the alert had ended before anybody heard of it.
    """
    listings = [_listing(path, box, state, target, last) for path, box in _opened(files)]
    if format_ == "json":
        click.echo(msgspec.json.encode(Listings(outboxes=listings)))
        return
    if not listings:
        click.echo("no outbox: nothing was ever to be sent", err=True)
    for listing in listings:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(listing.counts.items())) or "empty"
        click.echo(f"{one_line(listing.path)}: {counts}")
        for message in listing.messages:
            click.echo(f"  {_line(message)}")


@outbox.command()
@click.argument("id_", metavar="ID")
@_files
@format_option("json: the message and its payload.")
@click.pass_context
def show(ctx: click.Context, *, id_: str, files: tuple[Path, ...], format_: Literal["text", "json"]) -> None:
    """Show a message and what is in it.

    Exit status: 0 done, 1 no such message.
    """
    for path, box in _opened(files):
        found = box.show(id_)
        if found is None:
            continue
        message, payload = found
        try:
            text = msgspec.json.format(payload.decode(), indent=2)
        except (msgspec.DecodeError, UnicodeDecodeError):  # somebody else has written there
            text, payload = payload.decode(errors="replace"), b"null"
        if format_ == "json":
            click.echo(msgspec.json.encode(Shown(path=str(path), message=message, payload=msgspec.Raw(payload))))
        else:
            click.echo(f"{_line(message)}\ngroup {one_line(message.group)}, created {rfc3339(message.created_unix_ns)}")
            click.echo("\n".join(one_line(line) for line in text.splitlines()))
        return
    click.echo(f"rankscope: no message {one_line(id_)!r}", err=True)
    ctx.exit(1)


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--dead", is_flag=True, help="Everything that was given up.")
@_target
@_files
@click.pass_context
def replay(ctx: click.Context, *, ids: tuple[str, ...], dead: bool, target: str | None, files: tuple[Path, ...]) -> None:
    """Have messages that were given up sent again.

    What has ended since is not announced any more. A target that was switched off because it said that it is gone is on again.

    Exit status: 0 done, 1 a message that was named was not given up, or is over.
    """
    _require_choice(ids, dead or target is not None, "--dead, --target NAME")
    done = [id_ for _, box in _opened(files) for id_ in box.replay(ids or None, target=target)]
    _tell(ctx, ids, done, "will be sent again", "was not given up, or has ended since")


@outbox.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_state
@_target
@_files
@click.pass_context
def drop(ctx: click.Context, *, ids: tuple[str, ...], state: State | None, target: str | None, files: tuple[Path, ...]) -> None:
    """Forget messages, also such as wait.

    Exit status: 0 done, 1 no such message.
    """
    _require_choice(ids, state is not None or target is not None, "--state STATE, --target NAME")
    done = [id_ for _, box in _opened(files) for id_ in box.drop(ids or None, state=state, target=target)]
    _tell(ctx, ids, done, "forgotten", "is no message here")


def _require_choice(ids: Sequence[str], chosen: bool, options: str) -> None:
    if not ids and not chosen:
        raise click.UsageError(f"name messages by their ids, or give {options}")


def _tell(ctx: click.Context, ids: Sequence[str], done: Sequence[str], what: str, why_not: str) -> None:
    click.echo(f"{len(done)} {'message' if len(done) == 1 else 'messages'} {what}")
    missing = [id_ for id_ in ids if id_ not in done]
    for id_ in missing:
        click.echo(f"rankscope: {one_line(id_)} {why_not}", err=True)
    if missing:
        ctx.exit(1)


def _opened(files: Sequence[Path]) -> Iterator[tuple[Path, Outbox]]:
    from rankscope.alerts.deliver.outbox import Outbox

    for path in files or outbox_files():
        if not path.exists():
            raise InputError(path, "no such outbox")
        box = Outbox(path, repair=False)
        try:
            yield path, box
        finally:
            box.close()


def _listing(path: Path, box: Outbox, state: State | None, target: str | None, last: int) -> Listing:
    counts: dict[str, int] = {}
    for (of, name), count in box.counts().items():
        if target in (None, of):
            counts[name] = counts.get(name, 0) + count
    return Listing(path=str(path), counts=counts, messages=box.listed(state=state, target=target, most=last))


def _line(message: Listed) -> str:
    since = unix_ns(message.starts_at)
    when = f", since {rfc3339(since)}" if since > 0 else ""
    head = f"{message.state:<9} {rfc3339(message.created_unix_ns)} {message.id} {message.target}"
    parts = [f"{head}: {message.about}{when}", f"{message.attempts} attempt{'' if message.attempts == 1 else 's'}"]
    if message.next_attempt_s is not None:
        parts.append(f"next in {duration(message.next_attempt_s * 1e6)}" if message.next_attempt_s else "due")
    if message.last_error:
        parts.append(message.last_error)
    return one_line(", ".join(parts))

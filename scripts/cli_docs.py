"""Print docs/cli.md: the help of every command. `make docs` writes it; a test compares."""

from __future__ import annotations

import click

from rankscope.cli.main import cli

HEAD = """# Commands

Made by `make docs` from the commands' own help; do not edit. Exit statuses are the same for all and listed in
[compatibility.md](compatibility.md). Shell completion: `eval "$(_RANKSCOPE_COMPLETE=bash_source rankscope)"`
(or `zsh_source`, `fish_source`).
Colours appear on terminals only and never with `NO_COLOR` set.
"""


def page() -> str:
    """The page."""
    return HEAD + "".join(_sections(cli, "rankscope", None))


def _sections(command: click.Command, words: str, parent: click.Context | None) -> list[str]:
    name = words.rsplit(maxsplit=1)[-1]
    settings = {**cli.context_settings, "max_content_width": 110}
    context = click.Context(command, info_name=name, parent=parent, terminal_width=110, color=False, **settings)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    sections = [f"\n## {words}\n\n```text\n{text}\n```\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            sections += _sections(below, f"{words} {name}", context)
    return sections


if __name__ == "__main__":
    print(page(), end="")

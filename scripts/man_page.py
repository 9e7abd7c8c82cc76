"""Write cli/share: the manual page of the command, and the completion of three shells. The wheel installs them under share/.

`make docs` calls it; a test compares.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from rankscope.cli.main import cli

COMPLETIONS: dict[str, type[ShellComplete]] = {
    "bash-completion/completions/rankscope": BashComplete,
    "zsh/site-functions/_rankscope": ZshComplete,
    "fish/vendor_completions.d/rankscope.fish": FishComplete,
}

PAGE = r""".TH RANKSCOPE 1 "" rankscope "User Commands"
.SH NAME
rankscope \- find the rank that makes a distributed training job wait
.SH SYNOPSIS
.B rankscope
.I COMMAND
[\fIOPTION\fR]... [\fIARGUMENT\fR]...
.SH DESCRIPTION
{description}
.SH COMMANDS
Each command explains its options with
.BR \-\-help .
{commands}
.SH ENVIRONMENT
.TP
.B NO_COLOR
Print without colours.
.TP
.BR RANKSCOPE_RUN_ID ", " RANKSCOPE_ATTEMPT
The run and its attempt, for several launchers of one job.
.TP
.BR OTEL_EXPORTER_OTLP_ENDPOINT " and its like"
Where traces and metrics are sent over OTLP.
.SH EXIT STATUS
0 success, 1 a check failed, 2 usage, 3 unreadable input, 4 something is not installed. docs/compatibility.md has the details.
.SH EXAMPLES
.EX
{examples}
.EE
"""


def main() -> None:
    """Write all files below the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent.parent / "cli" / "share")
    folder = parser.parse_args().folder
    files = {"man/man1/rankscope.1": manual_page()}
    for name, shell in COMPLETIONS.items():
        files[name] = shell(cli, {}, "rankscope", "_RANKSCOPE_COMPLETE").source()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n")


def manual_page() -> str:
    """Return the page in roff: one line for each command."""
    commands = "".join(f".TP\n.B {escaped(name)}\n{escaped(text)}\n" for name, text in summaries(cli, ()))
    help_lines = (cli.epilog or "").splitlines()
    examples = [line.strip() for line in help_lines if line.strip().startswith("rankscope ")]
    return PAGE.format(
        description=escaped((cli.help or "").strip().replace("\n", " ")),
        commands=commands.rstrip("\n"),
        examples=escaped("\n".join(examples)),
    )


def summaries(group: click.Group, words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return name and one-line help of each command below a group."""
    context = click.Context(group)
    rows: list[tuple[str, str]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = summaries(command, (*words, name)) if isinstance(command, click.Group) else []
        if not below or getattr(command, "invoke_without_command", False):
            rows.append((" ".join((*words, name)), command.get_short_help_str(limit=200)))
        rows += below
    return rows


def escaped(text: str) -> str:
    """Return text as roff prints it literally."""
    lines = text.replace("\\", r"\e").replace("-", r"\-").splitlines()
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


if __name__ == "__main__":
    main()

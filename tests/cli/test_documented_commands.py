"""Every command that the documentation shows exists as shown; those that a kept run allows are run."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import click
import pytest
from tests.analysis.flight_dumps import Job, always
from tests.cli.documented import ROOT, Documented, commands
from tests.command_line import Cli

from rankscope.cli.main import cli as root_command

RANKSCOPE = list(commands("rankscope"))
PLACEHOLDER = re.compile(r"[A-Z][A-Z_:|]*(\.\.\.|…)?|…|\.\.\.")
"""A word in place of a value: ``RUN``, ``PATH…``, ``A:B``."""


def problem(documented: Documented) -> str | None:
    """Return what the command line does not know about a command; None if it is valid."""
    words = [word for word in documented.words[1:] if word not in {"…", "..."}]
    command: click.Command = root_command
    context = click.Context(command, info_name="rankscope")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        below = command.get_command(context, words[0])
        if below is None:
            return f"no command {words[0]!r}"
        context = click.Context(below, info_name=words[0], parent=context, **below.context_settings)
        command, words = below, words[1:]
    if isinstance(command, click.Group) and documented.complete and not words:
        return "the name of a command is missing"
    return _problem_of_words(command, context, words, complete=documented.complete)


def _problem_of_words(command: click.Command, context: click.Context, words: list[str], *, complete: bool) -> str | None:
    options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
    given = words[: words.index("--")] if "--" in words else words
    unknown = [
        word for word in given if word.startswith("--") and word.partition("=")[0] not in {*options, "--help", "--version"}
    ]
    if unknown or not complete:
        return f"no option {', '.join(unknown)}" if unknown else None
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
        if rest:
            return f"unexpected {rest}"
        for parameter in command.params:
            value = values.get(parameter.name)
            if parameter.required and not value:
                return f"{parameter.name} is missing"
            if isinstance(parameter, click.Option) and value not in (None, ()) and not _is_path_or_placeholder(parameter, value):
                parameter.type_cast_value(context, value)
    except click.UsageError as error:
        return error.format_message()
    return None


def _is_path_or_placeholder(parameter: click.Parameter, value: object) -> bool:
    return isinstance(parameter.type, click.Path | click.File) or (isinstance(value, str) and bool(PLACEHOLDER.fullmatch(value)))


@pytest.mark.parametrize("documented", RANKSCOPE, ids=str)
def test_documented_command_and_options_exist(documented: Documented) -> None:
    assert problem(documented) is None


@pytest.mark.parametrize(
    "words",
    [
        "analyse RUN",
        "alerts rule show",
        "analyze RUN --verbose",
        "analyze RUN --format xml",
        "compare runs/a --fail-on nothing",
        "steps RUN runs/b",
        "alerts rules",
        "exporter --port 9000",
        "dashboard RUN --listen 10.0.0.7",
    ],
)
def test_wrong_documented_command_is_detected(words: str) -> None:
    assert problem(Documented("page", ["rankscope", *words.split()], complete=True)) is not None


def test_documentation_has_many_commands_from_the_main_pages() -> None:
    assert len(RANKSCOPE) > 200
    assert {"README.md", "docs/cli.md", "docs/hang.md", "docs/alerts.md"} <= {item.page for item in RANKSCOPE}


def test_files_and_make_targets_of_other_documented_commands_exist() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    result = 0
    for page, (program, *words), _ in commands():
        named = [word for word in words if Path(word).parts[:1] and Path(word).parts[0] in folders and "/" in word]
        if "-m" in words and words[words.index("-m") + 1].partition(".")[0] in folders:
            named.append(words[words.index("-m") + 1].replace(".", "/") + ".py")
        if program == "make" and words[:1] != ["-C"]:
            assert targets >= {word for word in words if re.fullmatch(r"[a-z-]+", word)}, page
        if program in {"helm", "kubectl", "docker", "python", "python3", "sh", "sbatch", "cp", "install"}:
            assert [word for word in named if not (ROOT / word).exists()] == [], page
            result += len(named)
    assert result >= 5


def test_messages_quoted_in_troubleshooting_exist_in_the_code() -> None:
    symptoms = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = [text for symptom in symptoms for text in re.findall(r'"([^"]+)"', symptom)]
    assert len(quoted) >= 4
    code = "\n".join(path.read_text() for path in ROOT.glob("*/src/rankscope/**/*.py"))
    known = f"{code}\n{os.strerror(errno.EADDRINUSE)}".lower()
    # Numbers and names differ; what is between them is literal.
    parts = [part.strip() for text in quoted for part in re.split(r"[^a-z ]|RUN", text) if part.count(" ") >= 2]
    assert [part for part in parts if part.lower() not in known] == []


NOT_HERE = {
    "run": "trains; the tests of the README and the tutorial do it",
    "demo": "trains",
    "exporter": "the test of the README does it",
    "dashboard": "a server; the test of the README starts it",
    "capture": "needs a job that trains",
    "alerts": "see tests/alerts and the test of the README",
    "doctor": "names folders of the reader's machine",
}
LACKING = ("s3://", "gs://", "ray", "parquet", "--at", "--perfetto", "--flight-recorder", "/shared/inspector", "1000-1200")
"""Parts of commands that need a store, a cluster, another file or a longer run."""
RUNNABLE = [
    one
    for one in RANKSCOPE
    if one.complete
    and one.page.startswith("docs/")
    and one.page != "docs/tutorial.md"
    and one.words[1] not in NOT_HERE
    and not any(part in word for word in one.words for part in LACKING)
    and one.words[1:] not in (["hang"], ["hang", "RUN"])  # NCCL RAS, a run with dumps
]


@pytest.mark.slow
@pytest.mark.parametrize("documented", RUNNABLE, ids=str)
def test_documented_command_works_on_a_released_run(
    documented: Documented, cli: Cli, tmp_path: Path, example_traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # given what the command names, in a folder of the test
    words = [word.replace("/shared/", "shared/").replace("/tmp/", "tmp/") for word in documented.words[1:]]
    for path in (Path(word) for word in words[1:] if word.startswith(("RUN", "runs/", "shared/", "tmp/", "traces", "dumps"))):
        if path.parts[0] == "traces":
            shutil.copytree(example_traces / "jobs" / "ddp", path)
        elif "runs" in path.parts or path.parts[0] == "RUN":
            shutil.copytree(ROOT / "tests" / "data" / "released" / "0.1.0" / "run", path)
            (path / "run.json").write_text(re.sub(r'"run_id": ".*"', f'"run_id": "{path.name}"', (path / "run.json").read_text()))
        else:
            folder = path.parent if "*" in path.name else path
            folder.mkdir(parents=True)
            Job(always(2, 15.0)).write(folder)
            for dump in sorted(folder.iterdir()) if "*" in path.name else ():
                dump.rename(folder / path.name.replace("*", dump.name.removeprefix("dump_")))
    if any("*" in word for word in words):
        words = [str(item) for word in words for item in sorted(Path().glob(word)) or [Path(word)]]
    # when it is typed
    completed = cli(*words)
    # then it works; a check may fail
    assert completed.returncode in ({0, 1} if "--fail-on" in words else {0}), completed.stderr
    assert completed.stdout or list(tmp_path.glob("*.html"))

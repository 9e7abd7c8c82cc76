"""Former spellings of options: they work, warn once, and are in no help."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from rankscope.base.options import former_spelling


@click.command()
@former_spelling("--sinks", of="--target")
@former_spelling("--period", of="--interval", removed_in="0.4")
@former_spelling("--silent", of="--quiet")
@click.option("--target", multiple=True, help="Targets.")
@click.option("--interval", type=click.IntRange(1, 9), envvar="OF_THE_TEST", required=True, help="Interval.")
@click.option("--quiet", is_flag=True, help="Print less.")
@click.argument("words", nargs=-1)
def command(target: tuple[str, ...], interval: int, *, quiet: bool, words: tuple[str, ...]) -> None:
    click.echo(f"{target} {interval} {quiet} {words}")


def test_a_former_spelling_sets_the_option_and_warns_once() -> None:
    # given an environment that the command line overrides
    done = CliRunner(env={"OF_THE_TEST": "5"}).invoke(
        command, ["--sinks", "a", "--period=3", "--silent", "--target", "b", "--sinks", "c", "--", "--period"]
    )
    assert (done.exit_code, done.stdout) == (0, "('b', 'a', 'c') 3 True ('--period',)\n")
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    (period,) = (line for line in lines if "--period" in line)
    assert "--interval" in period
    assert "0.4" in period


def test_the_current_spelling_warns_of_nothing_and_the_former_is_not_in_the_help() -> None:
    done = CliRunner().invoke(command, ["--interval", "3"])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "() 3 False ()\n", "")
    shown = CliRunner().invoke(command, ["--help"]).stdout
    assert "--interval" in shown
    assert "--period" not in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--period", "20"], "--interval"), (["--period", "3", "--interval", "4"], "--period"), (["--period"], "--period")],
)
def test_a_former_spelling_is_checked_as_the_option_is(arguments: list[str], named: str) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert named in done.stderr

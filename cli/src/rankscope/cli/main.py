"""Entry point of the command line; each verb is imported only when it is used.

Exit statuses, the same for every verb: 0 done · 1 ran, and its check failed · 2 usage · 3 input that cannot be read (one line on
stderr) · 4 an extra or a program is missing. ``run`` returns the status of the job.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, cast

import click

from rankscope.base.errors import InputError, MissingError, RankscopeError
from rankscope.base.line_writer import discard_output
from rankscope.base.text import did_you_mean, one_line
from rankscope.cli.standard_output import name_standard_output

EXIT_INPUT: Final = 3
EXIT_MISSING: Final = 4
EXIT_PIPE: Final = 141


class Verb(NamedTuple):
    """Import target of a verb, its help, and the extra that installs its dependencies."""

    target: str
    help: str
    extra: str | None = None


VERBS: Final[dict[str, Verb]] = {
    "run": Verb("rankscope.cli.verbs.run:run", "Run a training job with the recorder attached; print the verdict.", "profiler"),
    "analyze": Verb(
        "rankscope.cli.verbs.analyze:analyze",
        "Name the rank that the others wait for, and why: from a run or traces.",
        "analysis",
    ),
    "runs": Verb("rankscope.cli.verbs.runs:runs", "List the runs in a folder, with state and verdict.", "dashboards"),
    "hang": Verb(
        "rankscope.cli.verbs.hang:hang", "Name the rank that hung the job: from NCCL RAS and Flight Recorder dumps.", "analysis"
    ),
    "compare": Verb(
        "rankscope.cli.verbs.compare:compare", "Show what got better or worse between runs, beyond noise; scaling.", "analysis"
    ),
    "export": Verb("rankscope.cli.verbs.export:export", "Write all ranks on one clock, for ui.perfetto.dev.", "analysis"),
    "steps": Verb("rankscope.cli.verbs.steps:steps", "Write a run's step records as CSV, JSON Lines or Parquet.", "analysis"),
    "whatif": Verb(
        "rankscope.cli.verbs.whatif:whatif", "Estimate the step time without stragglers: time, GPU-hours, money.", "analysis"
    ),
    "capture": Verb("rankscope.cli.live.capture:capture", "Ask a live run for a profile of its next steps.", "analysis"),
    "exporter": Verb("rankscope.exporter.commands:exporter", "Publish this node's GPUs and ranks to Prometheus.", "exporter"),
    "dashboard": Verb("rankscope.dashboards.commands:dashboard", "Serve the pages that show the evidence.", "dashboards"),
    "report": Verb("rankscope.dashboards.commands:report", "Write a run's pages as one file that opens offline.", "dashboards"),
    "grafana": Verb(
        "rankscope.dashboards.grafana.commands:grafana", "List and export boards for Grafana: hosts, GPUs, runs, alerts."
    ),
    "alerts": Verb(
        "rankscope.alerts.commands:alerts", "Send, receive and explain alerts: Prometheus rules, watcher, webhooks.", "alerts"
    ),
    "schema": Verb("rankscope.cli.verbs.schema:schema", "Print the JSON Schema of a record or a result."),
    "demo": Verb("rankscope.cli.demo.commands:demo", "Try everything on this machine, with a planted straggler.", "all"),
    "doctor": Verb("rankscope.cli.verbs.doctor:doctor", "Check what works on this machine, what is missing, how to get it."),
}


class Verbs(click.Group):
    """Group that imports a verb only when it is called, so that ``--help`` is fast and extras stay optional."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the verb, or ``None`` when there is no such verb. Raises ``MissingError``."""
        del ctx
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        if verb.extra == "analysis":
            # OpenBLAS starts a thread per core when numpy is imported: a third of that time on two cores. A verdict needs only
            # one small product. None of these verbs starts a job, which would inherit the setting.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        module, _, attribute = verb.target.partition(":")
        try:
            return cast("click.Command", getattr(importlib.import_module(module), attribute))
        except ModuleNotFoundError as error:
            raise _missing(cmd_name, error) from error

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the arguments name. An unknown name is answered with similar ones."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in VERBS and (hint := did_you_mean(name, VERBS, most=2)):
            ctx.fail(f"No such command {name!r}. {hint.capitalize()}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


def _missing(verb: str, error: ModuleNotFoundError) -> RankscopeError:
    extra = VERBS[verb].extra if verb in VERBS else None
    if extra is None or (error.name or "").startswith("rankscope"):
        raise error
    return MissingError(f"`rankscope {verb}` needs the Python package {error.name!r}: pip install 'rankscope[{extra}]'")


def _invoke() -> int:
    """Run the verb and return its exit status. Raises the exceptions of the verb."""
    try:
        status = cli.main(prog_name="rankscope", standalone_mode=False)
    except SystemExit:
        # On a broken pipe click exits with 1, which means a failed check here. The only sign of it is click's replacement of
        # stdout.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            raise BrokenPipeError from None
        raise
    return status if isinstance(status, int) else 0


EPILOG = """
\b
Start here:
  rankscope demo                          see everything work on this machine
  rankscope run -- torchrun … train.py    record a job and print its verdict
  rankscope analyze RUN                   the verdict again, or of traces
  rankscope dashboard RUN                 the page with the evidence

\b
Shell completion (bash; zsh and fish alike):
  eval "$(_RANKSCOPE_COMPLETE=bash_source rankscope)"

Exit status: 0 done, 1 check failed, 2 usage, 3 unreadable input, 4 something is not installed.
"""


@click.command(
    cls=Verbs,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="rankscope", prog_name="rankscope")
def cli() -> None:
    """Find which rank, on which host and GPU, makes the others wait, why, what that costs, and what to do next."""


def _complain(text: str) -> None:
    """Print one line to standard error without control characters: it may contain untrusted file names and contents."""
    with suppress(OSError):  # a full disk: the exit status still reports the error
        click.echo(f"rankscope: {one_line(text)}", err=True)


def main() -> NoReturn:
    """Run the command line; only this function prints errors and chooses the exit status."""
    # A stream that the shell closed (`>&-`) is None: discard its output.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  # open until the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115  # as above
    name_standard_output()
    try:
        status = _invoke()
        # A pipe that closed early (`| head`) or a full disk is reported only when the buffer is flushed.
        sys.stdout.flush()
        sys.exit(status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        discard_output()
        sys.exit(EXIT_PIPE)
    except RankscopeError as error:
        _complain(str(error))
        sys.exit(EXIT_INPUT if isinstance(error, InputError) else EXIT_MISSING if isinstance(error, MissingError) else 1)
    except OSError as error:
        # The system's own reason for a file or folder, with its path.
        discard_output()
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
        sys.exit(EXIT_INPUT)
    except ModuleNotFoundError as error:
        verb = next((arg for arg in sys.argv[1:] if arg in VERBS), "")
        try:
            click.echo(f"rankscope: {_missing(verb, error)}", err=True)
        except ModuleNotFoundError:
            raise error from None
        sys.exit(EXIT_MISSING)

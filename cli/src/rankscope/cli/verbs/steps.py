"""``rankscope steps``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import click
import pyarrow as pa

from rankscope.analysis.evidence.step_table.chosen_steps import StepRange
from rankscope.analysis.result.text import size as size_text
from rankscope.base.errors import InputError
from rankscope.base.text import did_you_mean, one_line
from rankscope.cli.output_file import check_apart, check_target, output, progress
from rankscope.cli.selection import RANKS, STEPS
from rankscope.cli.terminal import INPUT_PATH
from rankscope.cli.verbs.step_batches import FIELDS, CsvSink, JsonSink, ParquetSink, Sink, batch_of
from rankscope.runs.follow import StartOverError, StepFollower
from rankscope.runs.named import named_run, refuse_folder_of_runs
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader
from rankscope.runs.step_segments import Rows

Format = Literal["csv", "jsonl", "parquet"]
_SHOWN: Final = 3


def _columns(text: str) -> list[str]:
    """Parse names of columns, ``step,wall_us``, in the order of output, each once. Raises ``click.BadParameter``."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS, most=_SHOWN, otherwise=f"the columns are {', '.join(FIELDS)}")
            raise click.BadParameter(f"there is no column {name!r}; {hint}")
    return list(dict.fromkeys(names))


@click.command(
    epilog="""
\b
Examples:
  rankscope steps RUN -o steps.parquet
  rankscope steps RUN --columns rank,step,wall_us,backward_us >steps.csv
  rankscope steps RUN --ranks 0,3-7 --steps 100:200 --format jsonl | jq .step
  duckdb -c "select rank, avg(wall_us) from 'steps.parquet' group by rank"
"""
)
@click.argument("run", type=INPUT_PATH, metavar="RUN")
@click.option("--attempt", type=click.IntRange(0), metavar="N", help="Write the records of attempt N.  [default: the last]")
@click.option("--ranks", type=RANKS, help="Write only these ranks, such as 0,3-5.  [default: all]")
@click.option("--steps", type=STEPS, help="Write only steps A to B - 1.  [default: all]")
@click.option(
    "--columns", type=_columns, metavar="COLUMNS", help="Write only these columns, such as rank,step,wall_us.  [default: all]"
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(get_args(Format)),
    help="[default: as FILE ends, else csv]",
)
@click.option(
    "-o",
    "--output",
    "target",
    default="-",
    metavar="FILE",
    help="Write to FILE, CSV and JSON Lines compressed if it ends in .gz.  [default: standard output]",
)
def steps(
    run: Path,
    *,
    attempt: int | None,
    ranks: list[int] | None,
    steps: tuple[int | None, int | None] | None,
    columns: list[str] | None,
    format_: Format | None,
    target: str,
) -> None:
    """Write step records of a run as CSV, JSON Lines or Parquet: a row for each rank and step, with its attempt and its tags.

    Columns are those of the recorder (docs/run-directory.md); times are in microseconds. What is unknown is empty in CSV, and
    null in JSON Lines and Parquet. Records are read a block at a time, so memory does not grow with the run. A live run is
    written as far as it has come.
    """
    format_ = format_ or _format_of(target)
    file = check_target(target, "--output", f"steps.{format_}", binary=format_ == "parquet")
    if format_ == "parquet" and target.endswith(".gz"):
        raise click.BadParameter("Parquet is compressed already; leave out the .gz", param_hint="--output")
    reader, attempt = _opened(run, attempt)
    if file is not None:
        check_apart(target, file, reader.path, "--output")
    chosen = _chosen(reader, attempt, ranks)
    selection = _RowSelection(attempt, columns or list(FIELDS), StepRange(*steps or ()))
    schema = pa.schema([FIELDS[name] for name in selection.columns])
    written = 0
    with progress() as report, output(target) as (write, size):
        opened_sink: AbstractContextManager[Sink] = (
            ParquetSink(write, schema) if format_ == "parquet" else nullcontext(_TEXT[format_](write, schema))
        )
        with opened_sink as sink:
            for number, rank in enumerate(chosen, 1):
                written += _write_rank(sink, reader, rank, selection)
                report("Ranks", number, len(chosen))
    if file is not None:
        click.echo(f"{written:,} records of {len(chosen):,} ranks written to {one_line(target)} ({size_text(size())}).")
    _warn(reader)


_TEXT: Final[dict[str, type[CsvSink | JsonSink]]] = {"csv": CsvSink, "jsonl": JsonSink}


def _format_of(target: str) -> Format:
    suffix = Path(target.removesuffix(".gz")).suffix
    return next((format_ for format_ in get_args(Format) if suffix == f".{format_}"), "csv")


def _opened(path: Path, attempt: int | None) -> tuple[RunReader, int]:
    """Open the run and return it with the chosen attempt. Raises ``InputError`` and ``click.BadParameter``."""
    named = named_run(path)
    if named is None:
        refuse_folder_of_runs(path)
        RunReader(path)  # raises, with the reason
        raise InputError(path, "not a run directory")
    reader = RunReader(named.path)
    attempts = reader.attempts()
    if not attempts:
        raise InputError(path, "nothing has been recorded yet: no rank has finished its first step")
    if attempt is None:
        return reader, named.chosen(attempts)
    if attempt not in attempts or named.attempt not in (None, attempt):
        raise click.BadParameter(
            f"there is no attempt {attempt}; the last one is {named.chosen(attempts)}", param_hint="--attempt"
        )
    return reader, attempt


def _chosen(reader: RunReader, attempt: int, wanted: list[int] | None) -> Sequence[int]:
    ranks = reader.ranks(attempt)
    if wanted is None:
        return ranks
    if absent := sorted(set(wanted) - set(ranks)):
        raise click.BadParameter(f"rank {absent[0]} is not in attempt {attempt} of this run", param_hint="--ranks")
    return wanted


@dataclass(frozen=True, slots=True)
class _RowSelection:
    attempt: int
    columns: Sequence[str]
    steps: StepRange

    def of(self, rows: Rows) -> Rows:
        """Return the rows of the selected steps."""
        keep = self.steps.among(rows["step"])
        return rows if keep.all() else rows[keep]


def _write_rank(sink: Sink, reader: RunReader, rank: int, selection: _RowSelection) -> int:
    folder = rank_dir(reader.path, selection.attempt, rank)
    follower, tags, written = StepFollower(folder), dict[int, list[str]](), 0
    try:
        for rows in filter(len, map(selection.of, follower.new(reader))):
            if "tags" in selection.columns:
                # After the rows: a step's event is written before its row.
                for events in follower.new_events(reader):
                    tags.update({event.step: event.tags for event in events if event.tags})
            sink.write(batch_of(rows, selection.columns, attempt=selection.attempt, rank=rank, tags=tags))
            written += len(rows)
    except StartOverError as error:
        raise InputError(folder, "its files were replaced while they were read; try again") from error
    reader.take_over(follower.skipped)
    return written


def _warn(reader: RunReader) -> None:
    """Report on standard error the records and files that were left out."""
    if reader.skipped_lines:
        click.echo(f"rankscope: {reader.skipped_lines:,} torn or damaged records were left out: {reader.damage()}", err=True)
    if reader.unusable:
        shown = ", ".join(str(path.relative_to(reader.path)) for path in reader.unusable[:_SHOWN])
        more = len(reader.unusable) - _SHOWN
        click.echo(
            f"rankscope: cannot be read and left out: {one_line(shown)}{f' and {more} more' if more > 0 else ''}", err=True
        )

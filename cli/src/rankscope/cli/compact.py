"""``rankscope compact``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from rankscope.cli.terminal import INPUT_PATH, format_option, print_json
from rankscope.runs.compact import Compaction, Progress, compact_run, jsonl_bytes


@click.command(
    epilog="""
\b
Examples:
  rankscope compact runs/bert-7
  rankscope compact runs/bert-7 --keep-jsonl    leave the JSON Lines in place
  duckdb -c "select avg(wall_us) from 'RUN/attempts/000/steps-*.parquet'"
"""
)
@click.argument("run", type=INPUT_PATH, metavar="RUN")
@click.option("--keep-jsonl", is_flag=True, help="Do not remove the JSON Lines; readers use the Parquet files.")
@click.option("--force", is_flag=True, help="Also a run whose ranks did not say how they ended, a moment ago.")
@format_option
def compact(run: Path, keep_jsonl: bool, force: bool, format_: str) -> None:
    """Turn the records of a finished run into Parquet: a few files, a fraction of the size, read by everything that reads runs.

    Every record is read back and compared before its JSON Lines are removed. It may be interrupted at any moment, and repeated.
    """
    with _progress(run, shown=format_ == "text" and sys.stderr.isatty()) as progress:
        result = compact_run(run, force=force, keep_jsonl=keep_jsonl, progress=progress)
    if format_ == "json":
        print_json(result)
    else:
        click.echo(_text(result))


@contextmanager
def _progress(run: Path, *, shown: bool) -> Iterator[Progress]:
    if not shown:
        yield lambda _: None
        return
    # Written once and compared once.
    with click.progressbar(length=2 * jsonl_bytes(run), label="Compacting", file=sys.stderr) as bar:
        yield bar.update


def _text(result: Compaction) -> str:
    records = sum(result.records.values())
    if result.bytes_before:
        kinds = ", ".join(f"{count:,} {stream}" for stream, count in result.records.items() if count)
        sizes = f"{_size(result.bytes_before)} of JSON Lines became {_size(result.bytes_after)} of Parquet"
        lines = [f"{records:,} records ({kinds or 'none'}): {sizes}."]
    else:
        lines = ["Nothing to compact: there are no JSON Lines that are not in Parquet already."]
    if result.damaged_lines:
        lines.append(f"{result.damaged_lines:,} damaged lines hold no record; their number is kept.")
    if result.removed_files:
        lines.append(f"{result.removed_files:,} files of JSON Lines removed ({_size(result.removed_bytes)}).")
    lines += [f"Left out: {what}" for what in result.left_out]
    return "\n".join(lines)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"

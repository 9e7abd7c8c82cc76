"""Text of results: for people as blocks, colours, warnings, lists, counts, sizes, tables, names; for programs as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from rankscope.analysis.operations import EXCLUSIONS
from rankscope.base.text import factor, format_duration, one_line, printable, ranges_text, share_bound

if TYPE_CHECKING:
    from rankscope.analysis.result.analysis import (
        Analysis,
        Cost,
        Evidence,
        Finding,
        RareSteps,
        Verdict,
    )  # text alone needs no types of results, which take longer to import
    from rankscope.analysis.result.costs import Advice

_V = TypeVar("_V")

RED: Final = "\x1b[1;31m"
GREEN: Final = "\x1b[1;32m"
YELLOW: Final = "\x1b[1;33m"
CYAN: Final = "\x1b[1;36m"
_RESET: Final = "\x1b[0m"

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

UNKNOWN: Final = "-"
"""Placeholder for unknown values in tables."""


def page(blocks: Iterable[str], color: str | None = None) -> str:
    """Return the non-empty ``blocks``, separated by empty lines; the first line, which is the answer, in ``color``."""
    text = printable("\n\n".join(filter(None, blocks)))
    if color is None:
        return text
    answer, newline, text_below = text.partition("\n")
    return f"{colored(answer, color)}{newline}{text_below}"


def colored(text: str, color: str) -> str:
    """Return ``text`` in ``color``."""
    return f"{color}{text}{_RESET}"


def wrapped(text: str, width: int, *, indent: str = "", hanging: str = "") -> list[str]:
    """Wrap to lines of at most ``width`` columns, without breaking paths and commands. ``hanging`` indents all but the first."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def warning_lines(warnings: Sequence[str], width: int) -> list[str]:
    """Return the lines of all warnings, in order."""
    return [line for warning in warnings for line in wrapped(f"warning: {warning}", width, hanging="  ")]


def listing(title: str, items: Sequence[str], width: int) -> str:
    """Return a block of ``items`` below their ``title``; empty without items."""
    lines = [line for item in items for line in wrapped(item, width, indent="  ", hanging="    ")]
    return "\n".join([title, *lines]) if lines else ""


def first_of(items: Sequence[object], most: int, separator: str = ", ") -> str:
    """Return the first ``most`` items and the number of the others: ``a, b and 3 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(map(str, items[:most])) + more


def joined(items: Sequence[str], most: int | None = None) -> str:
    """Return items as a phrase, ``a``, ``a and b``; the first ``most`` and the number of the others: ``a, b and 3 more``."""
    shown = [*items[:most], *([f"{len(items) - most} more"] if most is not None and len(items) > most else [])]
    return " and ".join([*([", ".join(shown[:-1])] if len(shown) > 1 else []), *shown[-1:]])


def sentences(texts: Iterable[str]) -> str:
    """Return texts as sentences after each other; a question has its mark already."""
    return ". ".join(texts).replace("?. ", "? ")


def is_among(advice: Advice, next_actions: Sequence[str]) -> bool:
    """Return whether ``next_actions`` of the verdict already give the advice, so that it is not said twice."""
    return advice.action in sentences(next_actions)


def units_text(ranks: Sequence[int], hosts: Mapping[int, str], whole_hosts: Sequence[str]) -> str:
    """Name the ranks and hosts at fault: ``host n3 (ranks 25 to 31, 7 of its 8 ranks) and rank 40``.

    ``hosts``: host of each rank of the job; ``whole_hosts``: those that are at fault as a whole.
    """
    slow = [rank for rank in sorted(ranks) if hosts.get(rank) in whole_hosts]
    single_ranks = [rank for rank in sorted(ranks) if hosts.get(rank) not in whole_hosts]
    parts = []
    if whole_hosts:
        rank_count = sum(host in whole_hosts for host in hosts.values())
        is_one = len(whole_hosts) == 1
        ranks_text_of_host = f"rank{'s' if len(slow) > 1 else ''} {ranges_text(slow)}" if is_one else ""
        if len(slow) == rank_count:
            within = f"all {rank_count} of {'its' if is_one else 'their'} ranks" if rank_count > 1 else ranks_text_of_host
        else:
            within = ", ".join(
                filter(None, [ranks_text_of_host, f"{len(slow)} of {'its' if is_one else 'their'} {rank_count} ranks"])
            )
        names = f"host{'' if is_one else 's'} {joined(whole_hosts, _SHOWN_HOSTS)}"
        parts.append(f"{names} ({within})" if slow else names)
    if single_ranks:
        parts.append(f"rank{'s' if len(single_ranks) > 1 else ''} {ranges_text(single_ranks)}")
    return " and ".join(parts)


def saves_text(saves: tuple[float, float] | None, ranks: Sequence[int], hosts: Sequence[str], step: str = "typical step") -> str:
    """Return what healing ranks or whole hosts saves: ``healing it saves 19% to 26% of the typical step``; empty if unknown."""
    if saves is None:
        return ""
    low, high = share_bound(max(0.0, saves[0]), upper=False), share_bound(max(0.0, saves[1]), upper=True)
    several = len(hosts) > 1 or (not hosts and len(ranks) > 1)
    return f"healing {'them' if several else 'it'} saves {low} to {high} of the {step}"


def excluded_text(verdict: Verdict) -> str:
    """Return the cost that the data exclude: ``no rank or host costs more than 3% of the typical step``; empty if unknown."""
    if verdict.costs_at_most is None:
        return ""
    return f"no rank or host costs more than {share_bound(verdict.costs_at_most, upper=True)} of the typical step"


def judged_by(verdict: Verdict, world_size: int | None) -> str:
    """Return what the verdict rests on: ``judged by 200 profiled steps of 60 of 64 ranks``; empty if unknown."""
    source = verdict.evidence_source
    records = _RECORDS.get(source or "", "" if source is None else source.replace("_", " "))
    judged = judged_text(verdict, world_size)
    if source in _IN_STEPS and verdict.judged_steps is not None:
        return f"judged by {judged_text(verdict, world_size, _IN_STEPS[source])}"
    return f"judged by {', '.join(filter(None, [records, judged]))}" if records or judged else ""


_IN_STEPS: Final = {"steps": "step", "windows": "profiled step"}
_RECORDS: Final = {"steps": "step records", "windows": "profiled steps"}
"""What sources of evidence are called, alone and with the number of their steps."""


def judged_text(verdict: Verdict, world_size: int | None, unit: str = "step") -> str:
    """Return what was compared: ``1,000 steps of 64 ranks``, ``200 steps of 60 of 64 ranks``; empty if unknown."""
    steps = None if verdict.judged_steps is None else counted(verdict.judged_steps, unit)
    ranks = None
    if verdict.judged_ranks is not None:
        few = world_size is not None and verdict.judged_ranks < world_size
        ranks = (
            f"{verdict.judged_ranks:,} of {counted(world_size or 0, 'rank')}" if few else counted(verdict.judged_ranks, "rank")
        )
    return " of ".join(filter(None, [steps, ranks]))


def rare_text(rare: RareSteps) -> str:
    """Return the sentence on rare steps after their share of the run's time: ``rare steps, 34% of the run's time: …``."""
    share = f"{rare.share:.0%}" if rare.share >= 0.0995 else f"{rare.share:.1%}"
    return f"rare steps, {share} of the run's time: {rare.summary}"


_SHOWN_HOSTS: Final = 4


def losses(gpu_hours: float | None, cost: Cost | None) -> list[str]:
    """Return the known facts of a loss: ``12.3 GPU-hours lost``, ``30.75 USD``."""
    facts = [] if gpu_hours is None else [f"{hours_text(gpu_hours)} GPU-hours lost"]
    return facts if cost is None else [*facts, f"{cost.amount:.2f} {cost.currency}"]


OUTLIER_STEPS: Final = "outlier_steps"
"""Evidence of waiting that moves: share of the steps in which the last rank is an outlier."""

OUTLIERS: Final = 0.6
"""Share of such steps from which pauses or a fault move; the waiting of equal ranks whose times vary has fewer."""


def is_of_equal_ranks(finding: Finding) -> bool:
    """Return whether a finding is about waiting for different ranks in turn that noise of equal ranks explains."""
    return finding.pattern == "rotating" and any(row.name == OUTLIER_STEPS and row.value < OUTLIERS for row in finding.evidence)


def is_about_rare(finding: Finding, analysis: Analysis) -> bool:
    """Return whether a finding is about the rare steps of a run."""
    return analysis.rare_steps is not None and finding.summary == analysis.rare_steps.summary


def steps_of_verdict(analysis: Analysis) -> str:
    """Return the steps that slowdown and hours of the verdict are of; empty where there are no rare steps to tell apart."""
    if analysis.rare_steps is None:
        return ""
    first = analysis.findings[0] if analysis.findings else None
    return "in rare steps" if first is not None and is_about_rare(first, analysis) else "in typical steps"


def hours_text(hours: float) -> str:
    """Format hours: ``0.125``, ``12.3``, ``2,930``, or ``<0.001`` for smaller positive numbers."""
    if 0 < hours < 0.001:
        return "<0.001"
    return f"{hours:,.0f}" if hours >= 1000 else f"{hours:.3g}"


def size(number: int) -> str:
    """Format a number of bytes: ``384 B``, ``1.5 MiB``."""
    power = min(max(0, (number.bit_length() - 1) // 10), len(_UNITS) - 1)
    value = number / 1024**power
    return f"{value:.0f} {_UNITS[power]}" if power == 0 or value >= 10 else f"{value:.1f} {_UNITS[power]}"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 line``, ``2,000 lines``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_REASONS: Final[dict[str, str]] = {
    "rank_missing": "with a rank that is not recorded",
    "incomplete": "missing on some ranks",
    "order_shifted": "in an uncertain order",
    "ranks_differ": "with different members by rank",
    "operation_differs": "of different kinds by rank",
    "bytes_differ": "of different sizes by rank",
    "dtype_differs": "of different data types by rank",
    "root_differs": "with different roots by rank",
    "call_missing": "without a call in the trace",
    "impossible": "that a rank left before the last one arrived",
    "no_common_clock": "between hosts without a common clock",
    **EXCLUSIONS,
}
"""Text for the reasons of ``CollectiveMatching``, after a number of operations."""


def reasons_text(reasons: Mapping[str, int]) -> str:
    """Return for what reasons how many operations count: ``1 operation missing on some ranks, 3 between two ranks``."""
    texts = [(count, _REASONS.get(reason, f"({reason.replace('_', ' ')})")) for reason, count in reasons.items()]
    return ", ".join(f"{f'{count:,}' if at else counted(count, 'operation')} {text}" for at, (count, text) in enumerate(texts))


def aligned(rows: Sequence[Sequence[str]], left_columns: Sequence[int] = ()) -> list[str]:
    """Return the lines of ``rows`` with right-aligned cells; cells of the columns ``left_columns`` are left-aligned.

    Line breaks in cells are replaced: no name needs them, and they could imitate other parts of the page.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(widths[column]) if column in left_columns else cell.rjust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def cell(value: _V | None, form: str | Callable[[_V], str] = "") -> str:
    """Return the cell of a value by a format specification or a function; ``UNKNOWN`` for ``None``."""
    if value is None:
        return UNKNOWN
    return format(value, form) if isinstance(form, str) else form(value)


def share_cell(part: float | None, total: float | None) -> str:
    """Return the cell of a part's share of the whole."""
    return cell(part / total if part is not None and total else None, ".1%")


def table(rows: Sequence[Sequence[str]], of: int, left_columns: Sequence[int] = ()) -> list[str]:
    """Return the lines of the first of ``of`` rows, below a row with the names of the columns, as ``aligned`` does.

    Return no lines without rows.
    """
    shown = len(rows) - 1
    more = [f"and {of - shown} more"] if of > shown else []
    return [*aligned(rows, left_columns), *more] if shown else []


def fitting(rows: list[list[str]], width: int, dispensable: Sequence[str]) -> list[list[str]]:
    """Return ``rows`` without as many of the ``dispensable`` columns, in their order, as it takes to fit ``width``.

    The first row has the names of the columns.
    """
    for name in dispensable:
        if max(len(line) for line in aligned(rows)) <= width:
            break
        if name in rows[0]:
            column = rows[0].index(name)
            rows = [row[:column] + row[column + 1 :] for row in rows]
    return rows


def json_of(result: object) -> bytes:
    """Encode a result as JSON in UTF-8; characters that UTF-8 cannot encode, as in undecodable file names, become ``?``."""
    try:
        return msgspec.json.encode(result)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(result)))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def reading(item: Evidence) -> tuple[str, str]:
    """Format name and value of a piece of evidence: ``("imposed wait", "77 ms")``, ``("p =", "0.0005")``."""
    name = item.name.replace("_", " ").replace(".", " ")
    if item.unit == "probability":
        return f"{name.removesuffix(' value')} =", f"{item.value:.2g}"
    if item.unit in _READINGS:
        return name, _READINGS[item.unit](item.value)
    return name, f"{item.value:,.0f} {item.unit}" if abs(item.value) >= 100 else f"{item.value:.3g} {item.unit}"


def _signed_duration(us: float) -> str:
    # Below the resolution of the clocks.
    return "none" if abs(us) < 0.5 else f"{'-' if us < 0 else ''}{format_duration(abs(us))}"


_READINGS: Final[dict[str, Callable[[float], str]]] = {
    "us": _signed_duration,
    "ratio": lambda share: f"{share:.1%}" if 0 < abs(share) < 0.0995 else f"{share:.0%}",
    "x": factor,
    "GPU-hours": lambda hours: f"{hours_text(hours)} GPU-hours",
    "hertz": lambda hertz: f"{hertz / 1e6:,.0f} MHz",
    # Names of counts say what they count.
    **dict.fromkeys(("steps", "count", "number"), "{:,.0f}".format),
}
"""Text of a value, by its unit."""

"""Text for people: escaped and shortened strings, durations and shares with units, and lists of ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final


def printable(text: str) -> str:
    """Replace unprintable characters except line breaks: names in runs, traces and dumps may contain escape sequences."""
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str, replacement: str = "\N{REPLACEMENT CHARACTER}") -> str:
    """Replace each unprintable character, line breaks included."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else replacement for letter in text)


def shortened(text: str, limit: int) -> str:
    """Return ``text``, cut to ``limit`` characters with an ellipsis at the end."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def did_you_mean(name: str, choices: Iterable[str], *, most: int = 1, otherwise: str = "") -> str:
    """Suggest at most ``most`` choices for a mistyped name: ``did you mean slack?``; ``otherwise`` when none is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    close_matches = get_close_matches(name.lower(), by_lower, n=most, cutoff=0.5)
    return f"did you mean {' or '.join(by_lower[match] for match in close_matches)}?" if close_matches else otherwise


def format_duration(us: float) -> str:
    """Format microseconds with a unit: ``217 µs``, ``61 ms``, ``1.3 s``, ``16.7 h``."""
    for limit, divisor, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms"), (7.2e9, 1e6, "s"), (float("inf"), 3.6e9, "h")):
        if us < limit * 0.9995:
            value = us / divisor
            return f"{value:.0f} {unit}" if value >= 10 or unit == "µs" else f"{value:.1f} {unit}"
    raise AssertionError(us)


def factor(value: float) -> str:
    """Format a ratio of two times, such as a slowdown: ``2.41x``."""
    return f"{value:,.2f}x"


def sentence_case(text: str) -> str:
    """Return the text with a capital letter at its beginning, unless that is a name such as ``rank-0.json``."""
    return text[:1].upper() + text[1:] if _WORD_FIRST.match(text) else text


_WORD_FIRST: Final = re.compile(r"[A-Za-z'-]+[,:;.]?(?:\s|\Z)")
"""Pattern of a text that begins with a word: letters alone, also with a dash between them."""


def share_bound(share: float, *, upper: bool) -> str:
    """Format a bound of a share, 0 to 1, with two digits, rounded away from what it bounds: ``3.1%``, ``26%``."""
    scale = 1000 if abs(share) < 0.0995 else 100
    # A float such as 0.03 may be a little above its number.
    scaled = round(share * scale, 6)
    return f"{(math.ceil if upper else math.floor)(scaled) / (scale / 100):g}%"


def span(seconds: float) -> str:
    """Format seconds with a unit: ``45 s``, ``12 min``, ``2.5 h``."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def ranks_text(ranks: Sequence[int], *, count: int | None = None) -> str:
    """Format a list of ranks: ``rank 3``, ``ranks 0, 2``, ``ranks 0, 1, … and 12 more``.

    At most eight ranks are listed. ``count`` is the total if ``ranks`` is only its beginning.
    """
    shown = ranks[:8]
    more = (len(ranks) if count is None else count) - len(shown)
    text = ", ".join(map(str, shown)) + (f" and {more:,} more" if more else "")
    return f"rank {text}" if len(shown) + more == 1 else f"ranks {text}"


def ranges_text(numbers: Sequence[int], *, most: int = 8) -> str:
    """Format ascending numbers with runs of three or more as ranges: ``0, 1, 8 to 15``. At most ``most`` ranges are listed."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [
        (part, count)
        for run in runs
        for part, count in ([(f"{run[0]} to {run[-1]}", len(run))] if len(run) > 2 else [(str(number), 1) for number in run])
    ]
    more = sum(count for _, count in parts[most:])
    return ", ".join(part for part, _ in parts[:most]) + (f" and {more:,} more" if more else "")


def step_range(steps: tuple[int, int]) -> str:
    """Return ``steps 3 to 7``, both included, for (3, 8)."""
    first, past = steps
    return f"step {first}" if past == first + 1 else f"steps {first} to {past - 1}"

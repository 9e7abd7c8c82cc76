"""Colours of the figures. Documented in docs/dashboard-reference.md; the same roles are CSS variables in assets/style.css.

Categories use Okabe and Ito's palette, which people with the common colour deficiencies can distinguish; hatching or text always
repeats the information. The sequential scales change evenly in lightness, so they survive grey printing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Scheme = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by role for one colour scheme."""

    text: str
    muted: str
    grid: str
    surface: str
    emphasis: str
    compute: str
    overlap: str
    exposed_communication: str
    exposed_memcpy: str
    idle: str
    straggler_wait: str
    input: str
    pipeline_bubble: str
    unmatched: str
    """Communication whose waiting cannot be separated from its transfer."""
    not_separated: str
    """Time in a step that the records do not attribute."""
    missing: str
    sequential: tuple[str, ...]
    """Low to high: low is close to the surface colour, high contrasts with it."""


PALETTES: Final[dict[Scheme, Palette]] = {
    "light": Palette(
        text="#1c2430",
        muted="#5b6675",
        grid="#e4e8ee",
        surface="#ffffff",
        emphasis="#101820",
        compute="#0072B2",
        overlap="#56B4E9",
        exposed_communication="#D55E00",
        exposed_memcpy="#E69F00",
        idle="#c9d0d9",
        straggler_wait="#CC79A7",
        input="#009E73",
        pipeline_bubble="#c7b800",
        unmatched="#009E73",
        not_separated="#dfe8f5",
        missing="#aeb7c2",
        sequential=("#fff5e1", "#fdd9a5", "#fdae6b", "#ee7a41", "#cc4a24", "#96291c", "#5e0f14"),
    ),
    "dark": Palette(
        text="#e8ecf2",
        muted="#9aa5b4",
        grid="#2b3442",
        surface="#171d27",
        emphasis="#ffffff",
        compute="#2f93d1",
        overlap="#8fd0f5",
        exposed_communication="#ef7d2b",
        exposed_memcpy="#f2b430",
        idle="#465263",
        straggler_wait="#d98cb9",
        input="#2bb58c",
        pipeline_bubble="#f0e442",
        unmatched="#1fb98c",
        not_separated="#2b3950",
        missing="#5c6878",
        sequential=("#22192b", "#4a1d3a", "#7f2740", "#b53f38", "#e0662b", "#f79b2e", "#fde28a"),
    ),
}


class BarStyle(NamedTuple):
    """Style of the bars of one kind: name, role of its colour, and a hatching that identifies it without colour."""

    label: str
    color: str
    hatch: str = ""


def palette(scheme: str | None) -> Palette:
    """Return the palette of a scheme; the light one if the scheme is unknown, such as before the page reports it."""
    return PALETTES["dark" if scheme == "dark" else "light"]

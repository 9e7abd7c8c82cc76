"""Blocks of a page.

``style`` is a class of assets/style.css; the page and the report share that file. Texts are plain: both writers escape them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from rankscope.dashboards.model.line import Line
from rankscope.dashboards.words.wording import UNKNOWN

if TYPE_CHECKING:
    from rankscope.dashboards.charts.palette import Palette
    from rankscope.dashboards.model.columns import Column
    from rankscope.dashboards.model.drawn import DrawnFigure
    from rankscope.dashboards.model.state import PageState

COMMAND: Final = re.compile(r"(?:(?P<before>[^`]*): )?(?P<command>(?:rankscope|torchrun|nvidia-smi|dcgmi) .+)")
"""Pattern of advice that is a command, or ends with one after a colon."""


class Block:
    """Part of a page."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Text(Block):
    """Paragraph. ``live``: screen readers read its changes."""

    line: Line
    style: str = ""
    role: Literal["", "note", "alert", "status"] = ""
    live: bool = False


@dataclass(frozen=True, slots=True)
class Heading(Block):
    """Heading of level 1 to 3. Code in backticks of plain text is shown as code."""

    text: Line
    level: Literal[1, 2, 3] = 3
    style: str = ""
    name: str | None = None
    """Identifier on the page."""


@dataclass(frozen=True, slots=True)
class Items(Block):
    """List of lines, or of groups of blocks."""

    entries: Sequence[Line | Sequence[Block]]
    style: str = ""
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Fact:
    """Named number. ``meter``: fraction that is also shown as a bar."""

    name: str
    value: str
    why: str | None = None
    meter: float | None = None
    detail: str | None = None

    @property
    def is_known(self) -> bool:
        """False for a value that is not known."""
        return self.value != UNKNOWN


@dataclass(frozen=True, slots=True)
class Facts(Block):
    """Named numbers with their explanations."""

    facts: Sequence[Fact]
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Terms(Block):
    """Terms and their meanings; the third item is false for what is unknown."""

    terms: Sequence[tuple[str, Line, bool]]
    style: str = ""


@dataclass(frozen=True, slots=True)
class Inline(Block):
    """Row of pieces without a paragraph, such as badges."""

    line: Line
    style: str = "badges"


@dataclass(frozen=True, slots=True)
class AdviceItem(Block):
    """Next step: a command in monospace with a button that copies it, any other advice as text."""

    text: str

    @property
    def parts(self) -> tuple[str, str | None]:
        """Text before the command, and the command; ``None`` if there is none."""
        match = COMMAND.fullmatch(self.text)
        return (self.text, None) if match is None else (match["before"] or "", match["command"])


@dataclass(frozen=True, slots=True)
class Details(Block):
    """Blocks that are closed at first."""

    summary: str
    blocks: Sequence[Block]
    style: str = ""


@dataclass(frozen=True, slots=True)
class Group(Block):
    """Blocks in a box. ``tag``: HTML element."""

    blocks: Sequence[Block]
    style: str = ""
    tag: Literal["div", "article", "section", "header"] = "div"
    role: Literal["", "note", "alert"] = ""
    name: str | None = None
    """Identifier on the page."""
    labelled_by: str | None = None
    """Identifier of the heading that names a section."""
    live: bool = False


@dataclass(frozen=True, slots=True)
class Rows(Block):
    """Small table. ``columns``: head and kind, which is ``number``, ``names`` (arbitrary text), ``head`` (row head) or ``""``."""

    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Line]]
    style: str = "listing"


@dataclass(frozen=True, slots=True)
class Legend(Block):
    """Legend of (key, label) entries. assets/style.css has the swatches by key."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Markdown(Block):
    """Text in Markdown, from rankscope itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Request(Block):
    """Buttons that send requests to the server, and the progress in words; assets/capture.js handles them. Not in a report."""

    buttons: Sequence[tuple[str, str, str]]
    """Label of each button, and name and value of its data attribute."""
    number: tuple[str, str, int, int] | None = None
    """Identifier, label, value and maximum of a number that is sent with it."""


@dataclass(frozen=True, slots=True)
class Button(Block):
    """Button that starts the work of a page (``SitePage.work``). Not in a report."""

    name: str
    label: str


@dataclass(frozen=True, slots=True)
class RedrawMark(Block):
    """Marks a page that has nothing to show yet: it is made again as a whole when its version changes. Not in a report."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureBlock(Block):
    """Figure: picture, its summary in words, and its numbers.

    ``draw`` may raise ``RankscopeError``, which becomes a note in its place; after ``NotReadyError`` it is called again.
    ``reads``: see ``Part``.
    """

    name: str
    """Identifier, unique on the page."""
    label: str
    """Description of the picture for screen readers."""
    draw: Callable[[Palette], DrawnFigure]
    height: int = 240
    """Pixels reserved until it is drawn."""
    long: bool = False
    """True for long texts: it scrolls in its place on a narrow screen."""
    pick: Callable[[Mapping[str, Any]], PageState] | None = None
    """Selection after a click on a point (in Plotly's format)."""
    zoom: Callable[[tuple[float, float] | None], PageState] | None = None
    """Selection after dragging over a range of the x axis; ``None`` resets it to all."""
    reads: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Block):
    """Table that can be sorted, filtered and saved. Every row has an ``id``. ``rows`` may raise ``RankscopeError``.

    ``reads``: see ``Part``.
    """

    name: str
    """Identifier, unique on the page."""
    columns: Sequence[Column]
    rows: Callable[[], list[dict[str, Any]]]
    file_name: str
    pick: Callable[[str], PageState] | None = None
    """Selection after a click on the row with that ``id``."""
    reads: Sequence[str] | None = None
    nothing: str = "No row"
    """Text of the table without rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTable(Table):
    """Table that fills a page, with a search box.

    The address has the search and the picked row; the browser keeps order, filters and marked rows while its tab is open.
    """

    q: str | None
    """Text that is searched for at first."""
    several: bool = False
    """True: rows can be marked, several at a time."""
    tools: Sequence[Block] = ()


@dataclass(frozen=True, slots=True)
class Part(Block):
    """Blocks that are made again when the run or the address changes. ``make`` may raise ``RankscopeError``."""

    name: str
    make: Callable[[], Sequence[Block]]
    reads: Sequence[str] | None = None
    """Fields of ``PageState`` on which the content depends: a change of others does not make it again. ``None``: all."""


# Controls: each sets one field of ``PageState``. Not in a report. --------------------------------------------------------------


Options = Sequence[Mapping[str, Any]]
"""Choices: ``value`` and ``label``, or ``group`` and ``items``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(Block):
    """Control of one field of the state. ``nothing``: text shown if nothing is chosen; with it the choice can be cleared."""

    field: str
    label: str
    value: Any
    width: int = 190
    nothing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Control):
    """Choice among options; of several if ``many``."""

    options: Options
    many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Control):
    """Field for a number, or for a text if ``decimals`` is ``None``."""

    decimals: int | None = None


def choice(field: str, label: str, options: Options, state: PageState, *, width: int = 190, nothing: str | None = None) -> Choice:
    """Return a choice whose value is the state's, if it is among the options."""
    values = {option["value"] for option in options}
    chosen = state.text(field)
    value = chosen if chosen in values else None
    return Choice(field=field, label=label, value=value, width=width, nothing=nothing, options=options)


def rank_choice(state: PageState) -> Entry:
    """Return the field for the picked rank, which every view highlights."""
    value = "" if state.rank is None else state.rank
    return Entry(field="rank", label="Picked rank", value=value, width=110, nothing="none", decimals=0)


def rows_choice(*, hosts: int, by_host: bool) -> list[Choice]:
    """Return the choice of rows for each rank or for each host; none for a run on one host. ``by_host``: rows are hosts."""
    units = [{"value": "rank", "label": "Rank"}, {"value": "host", "label": "Host"}]
    value = "host" if by_host else "rank"
    return [Choice(field="rows", label="One row per", value=value, width=120, options=units)] if hosts > 1 else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Section(Block):
    """Titled card with a line of help (content and use), and tools at its right."""

    name: str
    title: str
    help: str
    blocks: Sequence[Block]
    tools: Sequence[Block] = ()
    use: str = ""
    """What to click, drag or choose. Not in a report."""


def walk(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield all blocks and the blocks inside them, except those of parts, which are not made yet."""
    for block in blocks:
        yield block
        if isinstance(block, (Section, Group, Details)):
            yield from walk(block.blocks)
        if isinstance(block, (Section, SearchTable)):
            yield from walk(block.tools)


def find(blocks: Sequence[Block], kind: type[Block], name: str) -> Any:
    """Return the block of a kind with that name; ``None`` if there is none."""
    return next((block for block in walk(blocks) if isinstance(block, kind) and getattr(block, "name", None) == name), None)

"""Blocks of a page as Dash components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, Final, cast

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import dcc, html
from dash.development.base_component import Component

from rankscope.base.errors import RankscopeError
from rankscope.dashboards.charts.frame import GRAPH_CONFIG
from rankscope.dashboards.data.source import NotReadyError
from rankscope.dashboards.live.grid import list_grid, table_grid
from rankscope.dashboards.model import page as model
from rankscope.dashboards.model.drawn import DrawnFigure
from rankscope.dashboards.model.line import Badge, Line, PageLink, Span, code_pieces, pieces

CANCEL: Final = "cancel"
"""Type of the buttons that end a computation."""
_LEVELS: Final = {1: html.H1, 2: html.H2, 3: html.H3}
_SPANS: Final = {"code": html.Code, "strong": html.Strong, "b": html.B, "small": html.Small, "span": html.Span}
_TAGS: Final = {"div": html.Div, "article": html.Article, "section": html.Section, "header": html.Header}


def aria(**values: str | None) -> Any:
    """Return ARIA attributes to pass on with ``**``: ``aria(label="Ranks")`` -> ``{"aria-label": "Ranks"}``."""
    return {f"aria-{name}": value for name, value in values.items() if value is not None}


def _non_empty(**properties: Any) -> Any:
    """Return the properties that have a value."""
    return {name: value for name, value in properties.items() if value not in (None, "")}


def identity(kind: str, name: str) -> Any:
    """Return the id of a component, for pattern-matching callbacks."""
    return {"type": kind, "name": name}


def redrawn(kind: str, block: model.FigureBlock | model.Part | model.Table) -> Any:
    """Return the properties of the element whose ``data-draw`` assets/page.js changes when the block is to be drawn again."""
    reads = {} if block.reads is None else {"data-reads": " ".join(block.reads)}
    return {"id": identity(kind, block.name), "data-draws": kind, **reads}


def render_blocks(blocks: Sequence[model.Block]) -> list[Component]:
    """Return blocks as components."""
    return [component(block) for block in blocks]


def not_yet(name: str, error: NotReadyError) -> list[Component]:
    """Return the content of a part that is still being computed: its progress and a cancel button."""
    text = html.P(f"{error.progress.sentence} …", className="help", **aria(live="polite"), **cast("Any", {"data-waits": "1"}))
    return [text, *cancel_button(error, name)]


def cancel_button(error: NotReadyError, of: str) -> list[Component]:
    """Return the button that ends what the part ``of`` waits for, if it can be ended."""
    if error.job is None:
        return []
    identifier: Any = {"type": CANCEL, "job": error.job, "of": of}
    return [html.Div(dmc.Button("Cancel", id=identifier, size="compact-xs", variant="default"), className="cancel")]


def line(text: Line) -> list[Component | str]:
    """Return a line of text."""
    return [_piece(piece) for piece in pieces(text)]


def _piece(piece: Span | PageLink | Badge) -> Component | str:
    if isinstance(piece, Badge):
        return html.Span(piece.text, className=f"badge badge-{piece.tone}", **_non_empty(title=piece.title))
    if isinstance(piece, PageLink):
        if piece.elsewhere:
            return html.A(
                piece.text, href=piece.href, target="_blank", rel="noopener noreferrer", **_non_empty(className=piece.style)
            )
        link: Component = dcc.Link(piece.text, href=piece.href, **_non_empty(title=piece.title, className=piece.style))
        return link
    if piece.kind == "option":
        return html.Span(piece.text, className="option")
    if piece.kind == "span" and not piece.title and not piece.style:
        return piece.text
    text = [_piece(part) for part in code_pieces(piece.text)] if piece.kind == "code" else piece.text
    return _SPANS[piece.kind](text, **_non_empty(title=piece.title, className=piece.style))


@singledispatch
def component(block: model.Block) -> Component:
    """Return a block as a component."""
    raise TypeError(f"no component for {type(block).__name__}")


@component.register
def _(block: model.Text) -> Component:
    return html.P(
        line(block.line), **_non_empty(className=block.style, role=block.role), **aria(live="polite" if block.live else None)
    )


@component.register
def _(block: model.Heading) -> Component:
    heading: Component = _LEVELS[block.level](line(block.text), **_non_empty(className=block.style, id=block.name))
    return heading


@component.register
def _(block: model.Items) -> Component:
    kind = html.Ol if block.ordered else html.Ul
    items = [
        html.Li(render_blocks(cast("Any", entry)) if _are_blocks(entry) else line(cast("Any", entry))) for entry in block.entries
    ]
    return kind(items, **_non_empty(className=block.style))


def _are_blocks(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and any(isinstance(element, model.Block) for element in item)


@component.register
def _(block: model.Facts) -> Component:
    return html.Dl([_fact(fact) for fact in block.facts], className=f"facts tone-{block.tone}" if block.tone else "facts")


def _fact(fact: model.Fact) -> Component:
    shown: list[Component | str] = [fact.value]
    if fact.detail is not None:
        shown.append(html.Small(fact.detail))
    if fact.meter is not None:
        filled = f"{100 * min(max(fact.meter, 0.0), 1.0):.0f}%"
        shown.append(html.Span(html.Span(style={"width": filled}), className="meter", **aria(hidden="true")))
    definition = html.Dd(shown, className="value" if fact.is_known else "value unknown")
    return html.Div([html.Dt(fact.name), definition], className="fact", **_non_empty(title=fact.why))


@component.register
def _(block: model.Terms) -> Component:
    rows = [
        html.Div([html.Dt(term), html.Dd(line(meaning), className="" if is_known else "unknown")])
        for term, meaning, is_known in block.terms
    ]
    return html.Dl(rows, **_non_empty(className=block.style))


@component.register
def _(block: model.Inline) -> Component:
    return html.Div(line(block.line), **_non_empty(className=block.style))


@component.register
def _(block: model.AdviceItem) -> Component:
    before, command = block.parts
    if command is None:
        return html.Div(line(before), className="advice")
    label = f"Copy the command {command}"
    button = dmc.CopyButton(
        "Copy", copiedChildren="Copied", value=command, size="compact-xs", variant="subtle", **aria(label=label)
    )
    shown = html.Div([html.Code(line(command)), button], className="advice-command")
    return html.Div([f"{before}:", shown] if before else shown, className="advice")


@component.register
def _(block: model.Details) -> Component:
    return html.Details([html.Summary(block.summary), *render_blocks(block.blocks)], **_non_empty(className=block.style))


@component.register
def _(block: model.Group) -> Component:
    return _TAGS[block.tag](
        render_blocks(block.blocks),
        **_non_empty(className=block.style, role=block.role, id=block.name),
        **aria(labelledby=block.labelled_by, live="polite" if block.live else None),
    )


@component.register
def _(block: model.Rows) -> Component:
    head = html.Tr([html.Th(name, scope="col", **_non_empty(className=kind)) for name, kind in block.columns])
    body = [html.Tr([_cell(cell, kind) for cell, (_, kind) in zip(row, block.columns, strict=True)]) for row in block.rows]
    return html.Div(html.Table([html.Thead(head), html.Tbody(body)], className=block.style), className="scrolls")


def _cell(cell: Line, kind: str) -> Component:
    return html.Th(line(cell), scope="row") if kind == "head" else html.Td(line(cell), **_non_empty(className=kind))


@component.register
def _(block: model.Legend) -> Component:
    return html.Ul(
        [html.Li([html.Span(className=f"swatch swatch-{key}", **aria(hidden="true")), label]) for key, label in block.entries],
        className="legend",
    )


@component.register
def _(block: model.Markdown) -> Component:
    text: Component = dcc.Markdown(block.text)
    return text


@component.register
def _(block: model.Request) -> Component:
    parts: list[Component] = []
    if block.number is not None:
        identifier, label, first, most = block.number
        field = dcc.Input(id=identifier, type="number", min=1, max=most, step=1, value=first, className="number")
        parts.append(html.Label([f"{label} ", field], htmlFor=identifier))
    parts += [
        html.Button(label, className="button", type="button", **cast("Any", {f"data-{name}": value}))
        for label, name, value in block.buttons
    ]
    return html.Div([*parts, html.Span(className="progress-text", role="status", **aria(live="polite"))], className="request")


@component.register
def _(block: model.Button) -> Component:
    button = dmc.Button(block.label, id=block.name, size="compact-xs", variant="default", **{"data-work": "1"})
    return html.Div(button)


@component.register
def _(block: model.RedrawMark) -> Component:
    return html.Div(id=f"{block.name}-again", hidden=True)


def figure_properties(picture: DrawnFigure, ready: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the properties of the graph and of the caption of a figure; not ready: it is to be requested again."""
    # When the window is resized or printed, Plotly takes the height of the place, not of the figure.
    style = {"height": f"{picture.figure.layout.height}px"}
    # A long figure is wider than a narrow screen; a note in its place is not.
    graph = {"figure": picture.figure, "style": style if picture.figure.data else {**style, "minWidth": "0"}}
    return graph, {"children": picture.sentence, "data-waits": None if ready else "1"}


@component.register
def _(block: model.FigureBlock) -> Component:
    blank = {"layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "height": block.height}}
    return html.Figure(
        [
            html.Div(
                dcc.Graph(
                    id=identity("figure", block.name),
                    config=cast("Any", GRAPH_CONFIG),
                    figure=blank,
                    style={"height": f"{block.height}px"},
                ),
                className="graph long" if block.long else "graph",
                # Makes it focusable, so that the arrow keys scroll it.
                **cast("Any", {"tabIndex": 0, "role": "group", **aria(label=block.label)} if block.long else {}),
            ),
            html.Figcaption(className="says", **redrawn("says", block)),
            html.Div([_save(block, kind) for kind in ("PNG", "SVG", "CSV")], className="saves"),
            dcc.Store(id=identity("zoomed", block.name)),
        ],
        id=block.name,
        className="figure",
        **aria(label=block.label),
    )


def _save(block: model.FigureBlock, kind: str) -> Component:
    """Return a save button. assets/save.js handles its clicks."""
    data = {"data-save": kind.lower(), "data-figure": block.name}
    label = aria(label=f"Save as {kind}: {block.label}")
    return html.Button(kind, className="save", type="button", **label, **cast("Any", data))


@component.register
def _(block: model.Table) -> Component:
    try:
        rows = block.rows()
    except RankscopeError:
        rows = []  # another block of the page shows the error
    return html.Div(table_grid(block, rows), **redrawn("table", block))


@component.register
def _(block: model.SearchTable) -> Component:
    return html.Section(
        [
            html.Div(
                [*search_box(block), *render_blocks(block.tools), _save_table(block, f"all {block.name}")], className="list-tools"
            ),
            html.Div(list_grid(block, block.rows()), **redrawn("table", block)),
        ],
        className="card",
        id=f"{block.name}-list",
        **aria(label=f"All {block.name}"),
    )


def search_box(block: model.SearchTable) -> list[Component]:
    """Return the search box of a list: a control of the field ``q``."""
    about = {"placeholder": "Search in all columns", "debounce": 300, "size": "sm", "className": "list-search"}
    return [dmc.TextInput(id=identity("control", "q"), value=block.q or "", **about, **aria(label=f"Search {block.name}"))]


@component.register
def _(block: model.Part) -> Component:
    return html.Div(part(block), **redrawn("part", block))


def part(block: model.Part) -> list[Component]:
    """Return the content of a part, or its progress or error."""
    return part_or_why(block.name, lambda: render_blocks(block.make()))


def part_or_why(name: str, make: Callable[[], list[Component]]) -> list[Component]:
    """Return what ``make`` returns, or its progress or error."""
    try:
        return make()
    except NotReadyError as error:
        return not_yet(name, error)
    except RankscopeError as error:
        return [html.P(str(error), className="reason")]


def _field(block: model.Control) -> Any:
    about = {"label": block.label, "value": block.value, "placeholder": block.nothing, "w": block.width, "size": "xs"}
    return {"id": identity("control", block.field), **about}


@component.register
def _(block: model.Choice) -> Component:
    count = sum(len(option.get("items", (option,))) for option in block.options)
    about = {**_field(block), "disabled": not count, "comboboxProps": {"withinPortal": True}}
    clear = block.nothing is not None
    select: Component = (
        dmc.MultiSelect(data=block.options, searchable=True, clearable=True, hidePickedOptions=True, **about)
        if block.many
        else dmc.Select(data=block.options, allowDeselect=clear, clearable=clear, searchable=count > 8, **about)
    )
    return select


@component.register
def _(block: model.Entry) -> Component:
    about = {**_field(block), "debounce": 400}
    decimals = {"decimalScale": block.decimals} if block.decimals else {"allowDecimal": False}
    field: Component = (
        dmc.TextInput(**about) if block.decimals is None else dmc.NumberInput(min=0, allowNegative=False, **decimals, **about)
    )
    return field


@component.register
def _(block: model.Section) -> Component:
    help_text = f"{block.help} {block.use}".strip()
    head = html.Div(
        [
            html.Div([html.H2(block.title, id=f"{block.name}-title"), html.P(line(help_text), className="help")]),
            html.Div(
                [*render_blocks(block.tools), *(_save_table(nested, block.title) for nested in block.blocks)], className="tools"
            ),
        ],
        className="section-head",
    )
    return html.Section(
        [head, *render_blocks(block.blocks)],
        className="card",
        id=f"{block.name}-section",
        **aria(labelledby=f"{block.name}-title"),
    )


def _save_table(block: model.Block, title: str) -> Component | None:
    """Return the button that saves a table as CSV."""
    if not isinstance(block, model.Table):
        return None
    button: Component = dmc.Button(
        "Save as CSV",
        id=identity("save-grid", block.name),
        size="compact-sm",
        variant="default",
        **aria(label=f"Save as CSV: {title}"),
    )
    return button

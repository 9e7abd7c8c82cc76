"""Conversion of the page's components to static HTML, so that the report needs no layout of its own.

Controls are left out, and so are components with the class ``LIVE_ONLY``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from dash.development.base_component import Component

LIVE_ONLY: Final = "live-only"
"""CSS class of components that need a running server."""

TAGS: Final = frozenset(
    {
        "abbr", "article", "aside", "b", "bdi", "blockquote", "br", "caption", "code", "col", "colgroup", "data", "dd", "del",
        "details", "dfn", "div", "dl", "dt", "em", "figcaption", "figure", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header",
        "hr", "i", "ins", "kbd", "li", "main", "mark", "meter", "nav", "ol", "p", "pre", "progress", "q", "s", "samp", "section",
        "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "time", "tr", "u",
        "ul", "var", "wbr",
    }
)  # fmt: skip
"""Components of ``dash.html`` that become the tag of the same name."""

_VOID: Final = frozenset({"br", "col", "hr", "wbr"})

DROPPED: Final[Mapping[str, frozenset[str]]] = {
    "dash_html_components": frozenset(
        {
            "Area", "Audio", "Base", "Button", "Canvas", "Embed", "Form", "Iframe", "Img", "Input", "Label", "Link", "MapEl",
            "Meta", "ObjectEl", "Script", "Select", "Textarea", "Video",
        }
    ),
    "dash_core_components": frozenset(
        {
            "Button", "Checklist", "Clipboard", "ConfirmDialog", "DatePickerRange", "DatePickerSingle", "Download", "Dropdown",
            "Geolocation", "Input", "Interval", "Location", "LogoutButton", "RadioItems", "RangeSlider", "Slider", "Store",
            "Textarea", "Upload",
        }
    ),
    "dash_mantine_components": frozenset(
        {
            "ActionIcon", "Autocomplete", "Button", "Burger", "Checkbox", "CheckboxGroup", "Chip", "ChipGroup", "CopyButton",
            "Loader", "LoadingOverlay", "Menu", "MultiSelect", "NumberInput", "Pagination", "PasswordInput", "Progress", "Radio",
            "RadioGroup", "RangeSlider", "SegmentedControl", "Select", "Skeleton", "Slider", "Switch", "TagsInput", "Textarea",
            "TextInput",
        }
    ),
}  # fmt: skip
"""Dropped components: controls, and components that load something. Of one neither here nor in ``TAGS`` the content is kept."""

_LINKS: Final = frozenset(
    {("dash_html_components", "A"), ("dash_core_components", "Link"), ("dash_mantine_components", "Anchor")}
)
_GRAPH: Final = ("dash_core_components", "Graph")
_GRID: Final = ("dash_ag_grid", "AgGrid")

ATTRIBUTES: Final[Mapping[str, str]] = {
    "className": "class", "colSpan": "colspan", "dateTime": "datetime", "dir": "dir", "hidden": "hidden", "high": "high",
    "lang": "lang", "low": "low", "max": "max", "min": "min", "open": "open", "optimum": "optimum", "role": "role",
    "rowSpan": "rowspan", "scope": "scope", "start": "start", "tabIndex": "tabindex", "title": "title", "value": "value",
}  # fmt: skip
"""Property of a component to attribute of a tag. ``id``, ``style`` and ``aria-*`` are handled in code."""

_ARIA: Final = re.compile(r"aria-[a-z]+", re.ASCII)
_REFERENCES: Final = frozenset({"aria-labelledby", "aria-describedby", "aria-controls", "aria-owns", "aria-details"})
_PROPERTY: Final = re.compile(r"-{0,2}[a-zA-Z][a-zA-Z-]*", re.ASCII)
_STYLE_VALUE: Final = re.compile(r"[\w .,%#()+*/-]*", re.ASCII)

Props = Mapping[str, Any]
Place = Callable[[str, Props], str]
"""Function that returns the HTML of the figure or table with that name."""


def parts_of(component: Component) -> tuple[str, str, Props]:
    """Return library, kind and properties of a component."""
    plain: dict[str, Any] = component.to_plotly_json()  # type: ignore[no-untyped-call]
    return plain["namespace"], plain["type"], plain["props"]


def _nowhere(_name: str, _props: Props) -> str:
    return ""


def _nothing(_name: str) -> str:
    return ""


def _no_anchor(_address: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticHtml:
    """Writer of components as HTML. Texts are escaped; attributes that are not known to be harmless are left out."""

    figure: Place = _nowhere
    """HTML of a ``dcc.Graph``."""
    says: Callable[[str], str] = _nothing
    """Summary of a figure in words."""
    buttons: Callable[[str], str] = _nothing
    """HTML of a figure's save buttons."""
    table: Place = _nowhere
    """HTML of a ``dag.AgGrid``."""
    anchor: Callable[[str], str | None] = _no_anchor
    """Anchor in the file for an address of the page. If ``None``, the link becomes text."""
    identifier: Callable[[str], str] = str
    """Identifier in the file for one of the page: a report joins many pages, so identifiers may clash."""

    def html(self, node: Any) -> str:
        """Return the HTML of ``node``: a component, a text or number, ``None``, or a list of these."""
        if isinstance(node, Component):
            return self._component(node)
        if isinstance(node, (list, tuple)):
            return "".join(map(self.html, node))
        return "" if node is None or isinstance(node, bool) else escape(str(node))

    def _component(self, node: Component) -> str:
        library, kind, props = parts_of(node)
        if kind in DROPPED.get(library, ()) or LIVE_ONLY in str(props.get("className") or "").split():
            return ""
        if (library, kind) in _LINKS:
            return self._link(props)
        if (library, kind) == _GRAPH:
            return self.figure(_identity(props)[1], props)
        if (library, kind) == _GRID:
            return self.table(_identity(props)[1], props)
        if library == "dash_html_components" and (tag := kind.lower()) in TAGS:
            return self._tag(tag, props)
        return self.html(props.get("children"))

    def _tag(self, tag: str, props: Props) -> str:
        opening = f"<{tag}{self._attributes(props)}>"
        return opening if tag in _VOID else f"{opening}{self._content(props)}</{tag}>"

    def _content(self, props: Props) -> str:
        kind, name = _identity(props)
        if kind == "says":
            return escape(self.says(name))
        if props.get("className") == "saves":
            return self.buttons(_saved(props))
        return self.html(props.get("children"))

    def _attributes(self, props: Props) -> str:
        found = {ATTRIBUTES[name]: value for name, value in props.items() if name in ATTRIBUTES}
        if isinstance(props.get("id"), str):
            found["id"] = self.identifier(props["id"])
        for name, value in props.items():
            if _ARIA.fullmatch(name):
                found[name] = " ".join(map(self.identifier, str(value).split())) if name in _REFERENCES else value
        if style := _style(props.get("style")):
            found["style"] = style
        return "".join(attribute(name, value) for name, value in sorted(found.items()))

    def _link(self, props: Props) -> str:
        """Return a link within the file. A link that leads out of it becomes its text."""
        to = self.anchor(str(props.get("href") or ""))
        kept = {name: value for name, value in props.items() if name in ("children", "className", "id", "title")}
        if to is None:
            return self._tag("span", kept)
        return f'<a{self._attributes(kept)} href="#{escape(to)}">{self.html(props.get("children"))}</a>'


def _identity(props: Props) -> tuple[str, str]:
    """Return kind and name from a component's id (``pages.live.identity``). A plain id has the kind ``""``."""
    identifier = props.get("id")
    if isinstance(identifier, Mapping):
        return str(identifier.get("type", "")), str(identifier.get("name", ""))
    return "", str(identifier or "")


def _saved(props: Props) -> str:
    """Return the name of the figure that the save buttons belong to."""
    children = props.get("children")
    buttons = children if isinstance(children, list) else [children]
    names = [parts_of(button)[2].get("data-figure") for button in buttons if isinstance(button, Component)]
    return next((str(name) for name in names if name), "")


def attribute(name: str, value: object) -> str:
    """Return an HTML attribute with a leading space; ``""`` for ``None`` and ``False``."""
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def _style(style: object) -> str:
    """Return the declarations of ``style`` whose names and values match a safe pattern; none may load a resource."""
    if not isinstance(style, Mapping):
        return ""
    return ";".join(
        f"{re.sub('[A-Z]', lambda letter: f'-{letter[0].lower()}', name)}:{value}"
        for name, value in style.items()
        if _PROPERTY.fullmatch(str(name)) and _STYLE_VALUE.fullmatch(str(value)) and "url" not in str(value).lower()
    )

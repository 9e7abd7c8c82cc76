"""Kinds of panels of the boards, each with the settings common to its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.dashboard import DashboardLink, FieldColor
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphDrawStyle,
    GraphThresholdsStyleMode,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
    ValueMap,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from rankscope.dashboards.grafana.boards.marks import NOT_AVAILABLE_WORDS, NOTHING, PLAIN, UNKNOWN, steps

DATASOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")

DASHED: Final = [
    DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 8]}),
    DynamicConfigValue("custom.fillOpacity", 0),
]
TELLING: Final = [
    DynamicConfigValue("noValue", NOTHING),
    DynamicConfigValue("color", {"mode": "fixed", "fixedColor": UNKNOWN}),
]

RULES_EVERY: Final = "1m"
"""Least step of a graph of recorded series: Prometheus evaluates rules once a minute unless it is told otherwise."""
_RECORDED: Final = re.compile(r"[a-z]:[a-z_]+:[a-z]")

Links = Sequence[tuple[str, str]]
"""Title and URL."""
Thresholds = Sequence[tuple[float | None, str]]


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the legend of its series. ``tells``: the series have no values and only appear in the legend."""

    expr: str
    legend: str = ""
    dashed: bool = False
    tells: bool = False


def told(missing: str) -> Query:
    """Return a query of series without values, whose labels ``of`` and ``why`` show in the legend what is missing and why."""
    return Query(missing, "{{of}}: {{why}} {{series}}", tells=True)


@dataclass(frozen=True, slots=True)
class Head:
    """Fields that every panel has."""

    id: int
    title: str
    description: str
    unit: str
    place: GridPos
    no_value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its source (a label, or ``Value #A`` of a query), its title and its look."""

    source: str
    title: str
    unit: str | None = None
    words: ValueMap | None = None
    thresholds: Thresholds = ()
    links: Links = ()
    hidden: bool = False
    """True if the column only supplies values for the links of other columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Look of lines over time. ``colors``: name of a series to its color."""

    stacked: bool = False
    bars: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    thresholds: Thresholds = ()
    links: Links = ()
    colors: Mapping[str, str] = field(default_factory=dict)
    interval: str | None = None
    ascending: bool = False
    """True if the legend begins with the lowest values."""
    no_value: str = ""
    """Text without any series, where the board's own does not fit."""


_Kind = TypeVar("_Kind", timeseries.Panel, stat.Panel, table.Panel, statetimeline.Panel, heatmap.Panel)


def _headed(panel: _Kind, head: Head) -> _Kind:
    panel = panel.id(head.id).title(head.title).description(head.description).datasource(DATASOURCE)
    return panel.grid_pos(head.place).unit(head.unit).no_value(head.no_value)


def _asked(query: Query, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(DATASOURCE).expr(query.expr).legend_format(query.legend).ref_id(letter)


def _letters(queries: Sequence[Query]) -> list[tuple[str, Query]]:
    return [(chr(ord("A") + index), query) for index, query in enumerate(queries)]


def _linked(links: Links) -> list[Builder[dashboard.DashboardLink]]:
    return [DashboardLink(title).url(url) for title, url in links]


def graph(head: Head, queries: Sequence[Query], look: Graph) -> timeseries.Panel:
    """Return lines (or bars, or a stack) over time, with a legend of the latest and the greatest values."""
    panel = _headed(timeseries.Panel(), head).data_links(_linked(look.links))
    for letter, query in _letters(queries):
        panel.with_target(_asked(query, letter).range())
        if query.dashed:
            panel.override_by_query(letter, DASHED)
        if query.tells:
            panel.override_by_query(letter, TELLING)
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.BOTTOM)
    # With many lines, those that differ from zero come first.
    panel.legend(legend.calcs(["lastNotNull", "max"]).sort_by("Last *").sort_desc(not look.ascending))
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    panel.line_width(1).fill_opacity(30 if look.stacked or look.bars else 0).show_points(VisibilityMode.AUTO)
    panel.color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    if look.no_value:
        panel.no_value(look.no_value)
    _drawn(panel, queries, look)
    return panel


def _drawn(panel: timeseries.Panel, queries: Sequence[Query], look: Graph) -> None:
    if look.stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if look.bars:
        panel.draw_style(GraphDrawStyle.BARS)
    if look.minimum is not None:
        panel.min(look.minimum)
    if look.maximum is not None:
        panel.max(look.maximum)
    if look.thresholds:
        panel.thresholds(steps(*look.thresholds))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    if look.interval is not None:
        panel.interval(look.interval)
    elif _RECORDED.search(queries[0].expr):
        panel.interval(RULES_EVERY)
    for name, color in look.colors.items():
        panel.override_by_name(name, [DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])


def figure(
    head: Head,
    query: Query,
    *,
    thresholds: Thresholds = ((None, PLAIN),),
    words: ValueMap | None = None,
    links: Links = (),
    decimals: int | None = None,
) -> stat.Panel:
    """Return a panel of one present value, with the name of its series if the query has a legend."""
    panel = _headed(stat.Panel(), head).with_target(_asked(query, "A").instant())
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    panel.graph_mode(BigValueGraphMode.NONE).color_mode(BigValueColorMode.VALUE)
    panel.text_mode(BigValueTextMode.VALUE_AND_NAME if query.legend else BigValueTextMode.VALUE)
    panel.thresholds(steps(*thresholds)).data_links(_linked(links))
    panel.mappings([NOT_AVAILABLE_WORDS, *([words] if words else [])])
    return panel if decimals is None else panel.decimals(decimals)


def sheet(head: Head, queries: Sequence[Query], columns: Sequence[Column], *, sort: str | None = None) -> table.Panel:
    """Return a table of present values: one row per set of labels, and only the given columns (labels and query values)."""
    panel = _headed(table.Panel(), head).no_value(NOTHING)
    for letter, query in _letters(queries):
        panel.with_target(_asked(query, letter).instant().format(PromQueryFormat.TABLE))
    if len(queries) > 1:
        panel.with_transformation(DataTransformerConfig("merge", options={}))
    # If only the first of several queries returns data, its column has no letter.
    titles = {source: column.title for column in columns for source in _names(column.source, queries)}
    panel.with_transformation(DataTransformerConfig("filterFieldsByName", options={"include": {"names": list(titles)}}))
    order: dict[str, object] = {name: index for index, name in enumerate(titles)}
    renamed: dict[str, object] = dict(titles)
    panel.with_transformation(
        DataTransformerConfig("organize", options={"excludeByName": {}, "indexByName": order, "renameByName": renamed})
    )
    for column in columns:
        properties = _shown(column)
        if properties:
            panel.override_by_name(column.title, properties)
    if sort is not None:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
    return panel


def _names(source: str, queries: Sequence[Query]) -> list[str]:
    return [source, "Value"] if source == "Value #A" and len(queries) > 1 else [source]


def _shown(column: Column) -> list[DynamicConfigValue]:
    properties = []
    if column.unit is not None:
        properties.append(DynamicConfigValue("unit", column.unit))
    if column.words is not None:
        properties.append(DynamicConfigValue("mappings", [column.words]))
    if column.thresholds:
        properties.append(DynamicConfigValue("thresholds", steps(*column.thresholds).build()))
        properties.append(DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    if column.links:
        properties.append(DynamicConfigValue("links", [{"title": title, "url": url} for title, url in column.links]))
    if column.hidden:
        properties.append(DynamicConfigValue("custom.hidden", value=True))
    return properties


def timeline(head: Head, queries: Sequence[Query], words: ValueMap, *, links: Links = ()) -> statetimeline.Panel:
    """Return a timeline of the state of each series; ``words`` maps the numbers of states to text."""
    panel = _headed(statetimeline.Panel(), head).mappings([words]).data_links(_linked(links))
    for letter, query in _letters(queries):
        panel.with_target(_asked(query, letter).range())
        if query.tells:
            panel.override_by_query(letter, TELLING)
    panel.show_value(VisibilityMode.NEVER).merge_values(True).row_height(0.8)
    panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS)).thresholds(steps((None, PLAIN)))
    return panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.SINGLE).sort(SortOrder.NONE))


def buckets(head: Head, query: Query) -> heatmap.Panel:
    """Return a histogram over time; the query returns buckets by ``le``."""
    panel = _headed(heatmap.Panel(), head)
    panel.with_target(_asked(query, "A").range().format(PromQueryFormat.HEATMAP))
    panel.calculate(False).show_legend().mode(TooltipDisplayMode.SINGLE).show_y_histogram()
    panel.y_axis(heatmap.YAxisConfig().unit(head.unit))
    return panel.rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.AUTO))

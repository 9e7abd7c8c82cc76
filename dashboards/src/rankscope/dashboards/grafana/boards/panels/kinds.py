"""Kinds of panels of the boards, each with the settings common to its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.dashboard import DashboardLink, FieldColor
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models.dashboard import DashboardLink as Link
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    ValueMap,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from rankscope.dashboards.grafana.boards.panels.marks import NOT_AVAILABLE_WORDS, NOTHING, PLAIN, UNKNOWN, steps

DATASOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")

DASHED: Final = {"custom.lineStyle": {"fill": "dash", "dash": [8, 8]}, "custom.fillOpacity": 0}
LEGEND_ONLY: Final = {"noValue": NOTHING, "color": {"mode": "fixed", "fixedColor": UNKNOWN}}

RULES_EVERY: Final = "1m"
"""Least step of a graph of recorded series: Prometheus evaluates rules once a minute unless configured otherwise."""
_RECORDED: Final = re.compile(r"[a-z]:[a-z_]+:[a-z]")

Links = Sequence[tuple[str, str]]
"""Title and URL."""
Thresholds = Sequence[tuple[float | None, str]]
VALUE: Final = "Value"
"""Source of a column with the value of a table's only query."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query and the legend of its series. ``legend_only``: the series have no values and only appear in the legend."""

    expr: str
    legend: str = ""
    dashed: bool = False
    legend_only: bool = False


def placeholder(missing: str) -> Query:
    """Return a query of series without values, whose labels ``of`` and ``why`` show in the legend what is missing and why."""
    return Query(missing, "{{of}}: {{why}} {{series}}", legend_only=True)


@dataclass(frozen=True, slots=True)
class BoardColumn:
    """A column of a table: its source (a label, or the expression of a value), its title and its look."""

    source: str
    title: str
    unit: str | None = None
    words: ValueMap | None = None
    thresholds: Thresholds = ()
    links: Links = ()
    hidden: bool = False
    """True if the column only supplies values for the links of other columns."""

    @property
    def expr(self) -> str | None:
        """Expression of the column's value; ``None`` for a label, and for the value of the rows themselves."""
        return None if self.source == VALUE or self.source.isidentifier() else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStyle:
    """Style of lines over time. ``colors``: name of a series to its color."""

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


Kind = timeseries.Panel | stat.Panel | table.Panel | statetimeline.Panel | heatmap.Panel


def _ask_over_time(panel: timeseries.Panel | statetimeline.Panel, queries: Sequence[Query]) -> None:
    for letter, query in _letters(queries):
        panel.with_target(_data_query(query, letter).range())
        if query.dashed or query.legend_only:
            panel.override_by_query(letter, _properties(LEGEND_ONLY if query.legend_only else DASHED))


def _data_query(query: Query, letter: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(DATASOURCE).expr(query.expr).legend_format(query.legend).ref_id(letter)


def _letters(queries: Sequence[Query]) -> list[tuple[str, Query]]:
    return [(chr(ord("A") + index), query) for index, query in enumerate(queries)]


def _linked(links: Links) -> list[Builder[Link]]:
    return [DashboardLink(title).url(url) for title, url in links]


def graph(queries: Sequence[Query], style: GraphStyle) -> timeseries.Panel:
    """Return lines (or bars, or a stack) over time, with a legend of the latest and the greatest values."""
    panel = timeseries.Panel().data_links(_linked(style.links))
    _ask_over_time(panel, queries)
    legend = common.VizLegendOptions().show_legend(True).calcs(["lastNotNull", "max"])
    legend.display_mode(options.LegendDisplayMode.TABLE).placement(options.LegendPlacement.BOTTOM)
    # With many lines, those that differ from zero come first.
    panel.legend(legend.sort_by("Last *").sort_desc(not style.ascending))
    panel.tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI).sort(options.SortOrder.DESCENDING))
    panel.line_width(1).fill_opacity(30 if style.stacked or style.bars else 0).show_points(options.VisibilityMode.AUTO)
    panel.color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    _style_lines(panel, queries, style)
    return panel


def _style_lines(panel: timeseries.Panel, queries: Sequence[Query], style: GraphStyle) -> None:
    if style.stacked:
        panel.stacking(common.StackingConfig().mode(options.StackingMode.NORMAL).group("A"))
    if style.bars:
        panel.draw_style(options.GraphDrawStyle.BARS)
    if style.minimum is not None:
        panel.min(style.minimum)
    if style.maximum is not None:
        panel.max(style.maximum)
    if style.thresholds:
        panel.thresholds(steps(*style.thresholds))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(options.GraphThresholdsStyleMode.DASHED))
    if style.interval is not None:
        panel.interval(style.interval)
    elif _RECORDED.search(queries[0].expr):
        panel.interval(RULES_EVERY)
    for name, color in style.colors.items():
        panel.override_by_name(name, _properties({"color": {"mode": "fixed", "fixedColor": color}}))


def figure(
    query: Query,
    *,
    thresholds: Thresholds = ((None, PLAIN),),
    words: ValueMap | None = None,
    links: Links = (),
    decimals: int | None = None,
) -> stat.Panel:
    """Return a panel of one present value, with the name of its series if the query has a legend."""
    panel = stat.Panel().with_target(_data_query(query, "A").instant())
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    panel.graph_mode(options.BigValueGraphMode.NONE).color_mode(options.BigValueColorMode.VALUE)
    panel.text_mode(options.BigValueTextMode.VALUE_AND_NAME if query.legend else options.BigValueTextMode.VALUE)
    panel.thresholds(steps(*thresholds)).data_links(_linked(links))
    panel.mappings([NOT_AVAILABLE_WORDS, *([words] if words else [])])
    return panel if decimals is None else panel.decimals(decimals)


def sheet(rows: str | None, columns: Sequence[BoardColumn], *, sort: str | None = None) -> table.Panel:
    """Return a table of present values with only the given columns: one row per set of labels.

    The queries are ``rows``, if given, and those of the columns.
    """
    exprs = [*([rows] if rows else []), *(column.expr for column in columns if column.expr)]
    panel = table.Panel()
    for letter, query in _letters([Query(expr) for expr in exprs]):
        panel.with_target(_data_query(query, letter).instant().format(PromQueryFormat.TABLE))
    if len(exprs) > 1:
        panel.with_transformation(DataTransformerConfig("merge", options={}))
    letters = iter("ABCDEFGH"[1 if rows else 0 :])
    titles: dict[str, object] = {}
    for column in columns:
        source = column.source
        if column.expr is not None:
            source = f"{VALUE} #{next(letters)}" if len(exprs) > 1 else VALUE
        titles[source] = column.title
        if source == f"{VALUE} #A":  # if only the first of several queries returns data, its column has no letter
            titles[VALUE] = column.title
    panel.with_transformation(DataTransformerConfig("filterFieldsByName", options={"include": {"names": list(titles)}}))
    order: dict[str, object] = {name: index for index, name in enumerate(titles)}
    panel.with_transformation(
        DataTransformerConfig("organize", options={"excludeByName": {}, "indexByName": order, "renameByName": titles})
    )
    for column in columns:
        properties = _column_overrides(column)
        if properties:
            panel.override_by_name(column.title, properties)
    if sort is not None:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(True)])
    return panel


def _column_overrides(column: BoardColumn) -> list[DynamicConfigValue]:
    properties: dict[str, object] = {}
    if column.unit is not None:
        properties["unit"] = column.unit
    if column.words is not None:
        properties["mappings"] = [column.words]
    if column.thresholds:
        properties |= {"thresholds": steps(*column.thresholds).build(), "custom.cellOptions": {"type": "color-text"}}
    if column.links:
        properties["links"] = [{"title": title, "url": url} for title, url in column.links]
    if column.hidden:
        properties["custom.hidden"] = True
    return _properties(properties)


def _properties(properties: Mapping[str, object]) -> list[DynamicConfigValue]:
    return [DynamicConfigValue(name, value) for name, value in properties.items()]


def timeline(queries: Sequence[Query], words: ValueMap) -> statetimeline.Panel:
    """Return a timeline of the state of each series; ``words`` maps the numbers of states to text."""
    panel = statetimeline.Panel().mappings([words]).data_links([])
    _ask_over_time(panel, queries)
    panel.show_value(options.VisibilityMode.NEVER).merge_values(True).row_height(0.8)
    panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS)).thresholds(steps((None, PLAIN)))
    return panel.tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.SINGLE).sort(options.SortOrder.NONE))


def buckets(query: Query, unit: str) -> heatmap.Panel:
    """Return a histogram over time; the query returns buckets by ``le``."""
    panel = heatmap.Panel().with_target(_data_query(query, "A").range().format(PromQueryFormat.HEATMAP))
    panel.calculate(False).show_legend().mode(options.TooltipDisplayMode.SINGLE).show_y_histogram()
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    return panel.rows_frame(heatmap.RowsHeatmapOptions().layout(options.HeatmapCellLayout.AUTO))

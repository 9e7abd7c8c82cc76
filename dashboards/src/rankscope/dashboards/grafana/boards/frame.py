"""What all boards have around their panels: identity, variables, links, the marks of firing alerts."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    ConstantVariable,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableHide,
    VariableRefresh,
    VariableSort,
)

from rankscope.alerts.rules.rule_file import DEFAULT_DASHBOARD
from rankscope.dashboards.grafana.boards.dialect import SCOPE, Dialect
from rankscope.dashboards.grafana.boards.kinds import DATASOURCE

TAG: Final = "rankscope"
KEPT: Final = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${__url_time_range}"
"""What a link to another board carries over."""
TO_ALERTS: Final = (("Alerts & Xid", "/d/rankscope-alerts?${datasource:queryparam}&${__url_time_range}"),)
DASH: Final = "${dashboard_url:raw}/run/"
"""Pages of runs in the dashboard of this project."""


def frame(uid: str, title: str, description: str, *, dialect: Dialect, alerts: str, since: str = "now-6h") -> Dashboard:
    """A board without panels. ``alerts``: matchers of the alerts that are marked in its graphs."""
    board = Dashboard(title).uid(f"{uid}{dialect.suffix}").description(description)
    board.tags([TAG, "gpu", *(["dcgm"] if dialect.suffix else [])]).readonly().refresh("30s").time(since, "now")
    board.tooltip(DashboardCursorSync.CROSSHAIR).timezone("browser")
    board.link(
        DashboardLink("Boards")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    if not dialect.suffix:
        board.link(
            DashboardLink("Runs")
            .type(DashboardLinkType.LINK)
            .url("${dashboard_url:raw}/")
            .icon("external link")
            .target_blank(True)
        )
    expr = f'ALERTS{{alertstate="firing"{alerts}}}'
    board.annotation(AnnotationQuery().name("Firing alerts").datasource(DATASOURCE).enable(True).icon_color("red").expr(expr))
    board.with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    address = ConstantVariable("dashboard_url").label("Address of the rankscope dashboard").value(DEFAULT_DASHBOARD)
    # A constant and hidden: what stands in the address of a board must not decide where its links lead.
    address.build().hide = VariableHide.HIDE_VARIABLE
    address.build().skip_url_sync = True
    board.with_variable(address)
    return board


def chosen(
    name: str, label: str, query: str, *, all_value: str = ".+", start_with_all: bool = True, regex: str = ""
) -> QueryVariable:
    """A variable of which several values can be chosen. Without ``start_with_all`` the first value is, at first."""
    variable = (
        QueryVariable(name).label(label).datasource(DATASOURCE).query({"query": query, "qryType": 5, "refId": f"variable-{name}"})
    )
    variable.multi(True).include_all(start_with_all).all_value(all_value)
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.NATURAL_ASC)
    return variable.regex(regex) if regex else variable


def places(series: str, *, all_instances: bool = True) -> list[QueryVariable]:
    """Cluster, job and instance of what publishes ``series``. The label ``cluster`` is a site's own, or there is none."""
    picked = 'cluster=~"$cluster"'
    return [
        chosen("cluster", "Cluster", f"label_values({series}, cluster)", all_value=".*"),
        chosen("job", "Job", f"label_values({series}{{{picked}}}, job)"),
        chosen(
            "instance",
            "Instance",
            f'label_values({series}{{{picked}, job=~"$job"}}, instance)',
            start_with_all=all_instances,
        ),
    ]


def gpu_variable(dialect: Dialect) -> QueryVariable:
    """The GPUs: shown by index, known by uuid."""
    if dialect.name == "native":
        series, regex = "gpu_info", '/index="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/'
    else:
        series, regex = "DCGM_FI_DEV_GPU_TEMP", '/UUID="(?<value>[^"]+)".*gpu="(?<text>[^"]+)"/'
    return chosen("gpu", "GPU", f"query_result({series}{{{SCOPE}}})", regex=regex)


def node_board(dialect: Dialect, instance: str = "${__data.fields.instance:percentencode}") -> str:
    """Address of the board of one host."""
    return f"/d/rankscope-node{dialect.suffix}?{KEPT}&var-instance={instance}"


def run_board(run_id: str = "${__data.fields.run_id:percentencode}") -> str:
    """Address of the board of one run."""
    return f"/d/rankscope-run?{KEPT}&var-run_id={run_id}"


def run_page(run_id: str = "${__data.fields.run_id:percentencode}", rank: str | None = None) -> str:
    """Address of the page with the evidence, a rank picked out if given."""
    return f"{DASH}{run_id}" + ("" if rank is None else f"?rank={rank}")

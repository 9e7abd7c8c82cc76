"""Frame of all boards: identity, variables, links and annotations of firing alerts."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as new
from grafana_foundation_sdk.models import dashboard as model

from rankscope.alerts.rules.rule_file import DEFAULT_DASHBOARD
from rankscope.dashboards.grafana.boards.panels.canvas import Canvas
from rankscope.dashboards.grafana.boards.panels.kinds import DATASOURCE
from rankscope.dashboards.grafana.boards.panels.promql import SCOPE

TAG: Final = "rankscope"
LINK_VARIABLES: Final = "${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${__url_time_range}"
"""Variables and time range that a link to another board keeps."""
TO_ALERTS: Final = (("Alerts & Xid", "/d/rankscope-alerts?${datasource:queryparam}&${__url_time_range}"),)
DASH: Final = "${dashboard_url:raw}/run/"
"""Address prefix of run pages in the rankscope dashboard."""


def new_board(
    uid: str,
    title: str,
    description: str,
    *variables: new.QueryVariable,
    alerts: str = ', instance=~"$instance|"',
    since: str = "now-6h",
) -> Canvas:
    """Return a board without panels. ``alerts``: matchers of the alerts that are marked in its graphs."""
    board = new.Dashboard(title).uid(uid).description(description)
    board.tags([TAG, "gpu"]).readonly().refresh("30s").time(since, "now")
    board.tooltip(model.DashboardCursorSync.CROSSHAIR).timezone("browser")
    others = new.DashboardLink("Boards").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    board.link(others.as_dropdown(True).include_vars(True).keep_time(True))
    runs = new.DashboardLink("Runs").type(model.DashboardLinkType.LINK).url("${dashboard_url:raw}/")
    board.link(runs.icon("external link").target_blank(True))
    expr = f'ALERTS{{alertstate="firing"{alerts}}}'
    board.annotation(new.AnnotationQuery().name("Firing alerts").datasource(DATASOURCE).enable(True).icon_color("red").expr(expr))
    board.with_variable(new.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    address = new.ConstantVariable("dashboard_url").label("Address of the rankscope dashboard").value(DEFAULT_DASHBOARD)
    # A hidden constant, so that the address of a board cannot change the target of its links.
    address.build().hide = model.VariableHide.HIDE_VARIABLE
    address.build().skip_url_sync = True
    for variable in (address, *variables):
        board.with_variable(variable)
    return Canvas(board)


def choice_variable(
    name: str, label: str, query: str, *, all_value: str = ".+", start_with_all: bool = True, regex: str = ""
) -> new.QueryVariable:
    """Return a variable with multiple choice. Without ``start_with_all``, the first value is selected initially.

    An empty ``all_value`` means any of the choices: of jobs only those with such series, not every target of Prometheus.
    """
    variable = (
        new.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"query": query, "qryType": 5, "refId": f"variable-{name}"})
    )
    variable.multi(True).include_all(start_with_all)
    if all_value:
        variable.all_value(all_value)
    variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.NATURAL_ASC)
    return variable.regex(regex) if regex else variable


def target_variables(series: str, *, all_instances: bool = True) -> list[new.QueryVariable]:
    """Return variables for cluster, job and instance of the targets with ``series``. Only some sites have a label ``cluster``."""
    picked = 'cluster=~"$cluster"'
    return [
        choice_variable("cluster", "Cluster", f"label_values({series}, cluster)", all_value=".*"),
        choice_variable("job", "Job", f"label_values({series}{{{picked}}}, job)", all_value=""),
        choice_variable(
            "instance", "Instance", f'label_values({series}{{{picked}, job=~"$job"}}, instance)', start_with_all=all_instances
        ),
    ]


def gpu_variable() -> new.QueryVariable:
    """Return the variable of GPUs, shown by index and identified by uuid."""
    return choice_variable(
        "gpu", "GPU", f"query_result(gpu_info{{{SCOPE}}})", regex='/index="(?<text>[^"]+)".*uuid="(?<value>[^"]+)"/'
    )


def node_board(instance: str = "${__data.fields.instance:percentencode}") -> str:
    """Return the address of the board of one host."""
    return f"/d/rankscope-node?{LINK_VARIABLES}&var-instance={instance}"


def run_board(run_id: str = "${__data.fields.run_id:percentencode}") -> str:
    """Return the address of the board of one run."""
    return f"/d/rankscope-run?{LINK_VARIABLES}&var-run_id={run_id}"


def run_page(run_id: str = "${__data.fields.run_id:percentencode}", rank: str | None = None) -> str:
    """Return the address of the page with the evidence, with ``rank`` highlighted if given."""
    return f"{DASH}{run_id}" + ("" if rank is None else f"?rank={rank}")

"""The boards as files: generated from the code, checked by the rules of grafana/dashboard-linter and our own.

The linter itself needs a newer Go than Debian has, and downloaded modules. Its rules are checked here under its names. It was
run by hand with the same result (docs/grafana.md).
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from tests.dashboards.grafana.grafana_model import BUILT_IN, Json, Target, all_boards, panels, put_in, targets
from tests.dashboards.grafana.promql_selectors import Selector, functions, selectors

from rankscope.alerts.rules.rule_file import rules_text
from rankscope.dashboards.grafana.boards.generate import FOLDER, texts
from rankscope.dashboards.grafana.boards.panels.marks import NOT_AVAILABLE
from rankscope.dashboards.grafana.boards.panels.promql import RULES
from rankscope.exporter.catalogue import CATALOGUE
from rankscope.runs.links import overview_url
from rankscope.runs.metrics import RANK_METRICS

KINDS = {"timeseries", "stat", "table", "state-timeline", "heatmap"}
"""Panel types of Grafana 11 and newer, without Angular panels."""
UNITS = {
    *("none", "short", "percentunit", "bool", "bool_yes_no", "bool_on_off"),
    *("bytes", "Bps", "celsius", "cps", "opm", "flops", "hertz", "s", "watt", "kwatth", "dateTimeAsIso"),
}
"""Grafana's units that the boards use."""
PUT_IN = dict.fromkeys(("cluster", "job", "instance", "gpu", "run_id", "rank", "slurm_job_id", "comm_name", "collective"), ".+")

BOARDS = all_boards()
TARGETS = [target for board in BOARDS.values() for target in targets(board)]
KNOWN = {metric.name: metric.type for metric in CATALOGUE} | {metric.name: metric.type for metric in RANK_METRICS}
COUNTERS = {name for name, kind in KNOWN.items() if kind == "counter"}
PARTS = {f"{metric.name}_{part}" for metric in RANK_METRICS if metric.type == "histogram" for part in ("bucket", "sum", "count")}

needed: set[int] = set()


@functools.cache
def _table(file: str, name: str) -> list[dict[str, str]]:
    text = (files("rankscope.dashboards") / "grafana" / "boards" / file).read_text(encoding="utf-8")
    result: list[dict[str, str]] = tomllib.loads(text)[name]
    return result


def _exclusions() -> list[dict[str, str]]:
    return _table("exclusions.toml", "exclusion")


def _excluded(rule: str, metric: str) -> bool:
    for index, exclusion in enumerate(_exclusions()):
        if exclusion["rule"] == rule and re.fullmatch(exclusion["metric"], metric):
            needed.add(index)
            return True
    return False


@functools.cache
def _selected() -> list[tuple[Target, Selector]]:
    return [(target, selector) for target in TARGETS for selector in selectors(target.expr)]


@functools.cache
def _recorded() -> dict[str, str]:
    """Return the expression of each recorded series."""
    groups = yaml.load(rules_text(), yaml.CSafeLoader)["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"] if "record" in rule}


def _variables(board: Json) -> dict[str, Json]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def test_board_files_match_the_generated_ones() -> None:
    by_key = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.json")}
    assert by_key == texts(), "make docs"


@pytest.mark.parametrize("uid", BOARDS)
def test_board_round_trips_through_the_grafana_sdk(uid: str) -> None:
    plugins.register_default_plugins()
    board = BOARDS[uid]
    again = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert again.keys() == board.keys()
    assert [panel["id"] for panel in again["panels"]] == [panel["id"] for panel in board["panels"]]
    assert all(panel["targets"] == old["targets"] for panel, old in zip(panels(again), panels(board), strict=True))


@pytest.mark.parametrize("uid", BOARDS)
def test_board_has_its_own_uid_and_title_and_is_not_editable(uid: str) -> None:
    board = BOARDS[uid]
    assert re.fullmatch(r"rankscope-[a-z-]+", uid)
    assert "rankscope" in board["tags"]
    assert board["editable"] is False  # uneditable-dashboard
    assert board["graphTooltip"] == 1
    assert board["schemaVersion"] >= 39  # Grafana 11
    assert board["title"]
    assert board["description"]
    (marks,) = board["annotations"]["list"]
    assert marks["expr"].startswith('ALERTS{alertstate="firing"')
    assert marks["datasource"]["uid"] == "${datasource}"
    (to_others, *_) = board["links"]
    assert (to_others["type"], to_others["tags"], to_others["keepTime"], to_others["includeVars"]) == (
        "dashboards",
        ["rankscope"],
        True,
        True,
    )


@pytest.mark.parametrize("uid", BOARDS)
def test_variables_choose_the_data_source_and_allow_several_values(uid: str) -> None:
    variables = _variables(BOARDS[uid])
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["datasource"]["label"] == "Data source"  # template-datasource-rule
    address = variables["dashboard_url"]
    assert (address["type"], address["hide"], address["skipUrlSync"]) == ("constant", 2, True)
    assert {"cluster", "job", "instance"} <= variables.keys()
    assert "gpu" in variables or {"run_id", "rank"} <= variables.keys() or "comm_name" in variables
    for name, variable in variables.items():
        if name in ("datasource", "dashboard_url"):
            continue
        # template-job-rule, template-instance-rule, template-on-time-change-reload-rule, template-label-promql-rule
        assert (variable["type"], variable["datasource"]["uid"], variable["multi"], variable["refresh"]) == (
            "query",
            "${datasource}",
            True,
            2,
        ), name
        # "All" jobs are those with GPUs or ranks: every other target of Prometheus is of no host of the board.
        assert variable.get("allValue") == {"cluster": ".*", "job": None}.get(name, ".+")
        assert re.fullmatch(r"(label_values|query_result)\(.+\)", variable["query"]["query"])
    assert [variables[name]["label"] for name in ("cluster", "job", "instance")] == ["Cluster", "Job", "Instance"]


@pytest.mark.parametrize("uid", BOARDS)
def test_every_panel_has_description_unit_and_no_data_text(uid: str) -> None:
    for panel in panels(BOARDS[uid]):
        title, defaults = panel["title"], panel["fieldConfig"]["defaults"]
        assert panel["type"] in KINDS, title
        assert title  # panel-title-description-rule
        assert panel["description"].endswith("."), title
        assert defaults["unit"] in UNITS, title  # panel-units-rule
        assert defaults["noValue"], title
        assert panel["targets"], title  # panel-no-targets-rule
        for source in (panel, *panel["targets"]):
            assert source["datasource"]["uid"] == "${datasource}", title  # panel-datasource-rule
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
        if panel["type"] in ("timeseries", "state-timeline"):
            assert all(target["legendFormat"] for target in panel["targets"]), title
            result = any(target["expr"].startswith("NaN *") for target in panel["targets"])
            assert result, title
        if panel["type"] == "stat":
            assert str(NOT_AVAILABLE) in json.dumps(defaults["mappings"]), title


@pytest.mark.parametrize("uid", BOARDS)
def test_panels_have_unique_ids_titles_and_positions(uid: str) -> None:
    board = BOARDS[uid]
    ids = [panel["id"] for panel in board["panels"]] + [panel["id"] for row in board["panels"] for panel in row.get("panels", ())]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for level in (board["panels"], *(row["panels"] for row in board["panels"] if row.get("panels"))):
        taken: set[tuple[int, int]] = set()
        for panel in level:
            place = panel["gridPos"]
            assert place["x"] >= 0
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
            }
            assert cells
            assert not cells & taken, panel["title"]
            taken |= cells


def test_promtool_accepts_every_query(require_program: Callable[[str], str], tmp_path: Path) -> None:  # target-promql-rule
    rules = [{"record": f"query:{index}", "expr": put_in(target.expr, PUT_IN)} for index, target in enumerate(TARGETS)]
    (tmp_path / "queries.yaml").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    command = [require_program("promtool"), "check", "rules", "--lint=none", str(tmp_path / "queries.yaml")]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert f"{len(TARGETS)} rules found" in completed.stdout


def test_every_query_filters_by_the_chosen_job_and_instance() -> None:
    for target, selector in _selected():
        for label in ("job", "instance"):
            if selector.matchers.get(label) != ("=~", f"${label}"):
                assert _excluded(f"target-{label}-rule", selector.metric), (target.name, selector)


def test_every_query_uses_only_variables_of_its_board() -> None:
    for target in TARGETS:
        used = {item for pair in re.findall(r"\$\{(\w+)|\$([A-Za-z_]\w*)", target.expr) for item in pair if item}
        assert used <= _variables(BOARDS[target.board]).keys() | BUILT_IN.keys(), target.name


def test_only_counters_are_rated_and_ratios_are_never_averaged() -> None:
    for target, selector in _selected():
        is_counter = selector.metric in COUNTERS | PARTS or selector.metric.endswith("_total")
        grows = selector.function in ("rate", "increase")
        if is_counter and not grows:
            assert _excluded("target-counter-agg-rule", selector.metric), target.name
        assert is_counter or not grows, target.name
        if selector.function == "rate":
            assert selector.range == "$__rate_interval", target.name  # target-rate-interval-rule
        if selector.function == "increase":
            assert selector.range in ("$__range", "$__rate_interval", "1h"), target.name
    assert not {target.name for target in TARGETS if functions(target.expr) & {"avg", "avg_over_time"}}


def test_every_metric_is_exported_recorded_or_listed_as_external() -> None:
    ours = KNOWN.keys() | PARTS | _recorded().keys()
    used = {selector.metric for _, selector in _selected()}
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                used |= {re.sub(r"^\w+\(([\w:]+).*", r"\1", variable["query"]["query"])}
    assert {"gpu_power_watts", "rank_gc_seconds_total", "uuid_state:gpu_state:active"} <= used
    assert used - ours == {metric["name"] for metric in _table("external.toml", "metric")}


@pytest.mark.parametrize("uid", BOARDS)
def test_panels_on_recording_rules_report_missing_rules(uid: str) -> None:
    resting = False
    for panel in panels(BOARDS[uid]):
        metrics = {selector.metric for target in panel["targets"] for selector in selectors(target["expr"])}
        if panel["type"] in ("timeseries", "state-timeline") and metrics & _recorded().keys():
            resting = True
            assert any(f"absent({RULES} " in target["expr"] for target in panel["targets"]), panel["title"]
            if panel["type"] == "timeseries" and ":" in panel["targets"][0]["expr"].partition("[")[0]:
                assert panel["interval"] == "1m", panel["title"]
    if resting:
        (loaded,) = [panel for panel in panels(BOARDS[uid]) if panel["title"] == "Recording rules"]
        assert {"not loaded", "loaded"} <= set(re.findall(r'"text": "([^"]+)"', json.dumps(loaded)))


def test_links_lead_to_existing_boards_and_to_the_run_page() -> None:
    text = json.dumps(list(BOARDS.values()))
    boards = set(re.findall(r'"/d/([a-z-]+)\?', text))
    assert {"rankscope-node", "rankscope-run", "rankscope-alerts"} <= boards <= BOARDS.keys()
    pages = set(re.findall(r'"\$\{dashboard_url:raw\}/run/([^"]*)"', text))
    run_id, rank = "${__data.fields.run_id:percentencode}", "${__data.fields.rank:percentencode}"
    assert {run_id, f"{run_id}?rank={rank}"} <= pages
    for page in pages:
        shown = re.sub(r"\$\{[\w.]*rank:percentencode\}", "3", re.sub(r"\$\{[\w.]*run_id:percentencode\}", "r1", page))
        assert f"http://h/run/{shown}" in (overview_url("http://h", "r1"), overview_url("http://h", "r1", rank=3))


def test_table_links_use_only_fields_of_the_table() -> None:
    # a hidden column is filtered out, so a link cannot name it
    for board in BOARDS.values():
        for panel in panels(board):
            if panel["type"] != "table":
                continue
            shown = panel["transformations"][-1]["options"]["renameByName"]
            used = set(re.findall(r"__data\.fields\.(\w+)", json.dumps(panel)))
            assert used <= set(shown), (panel["title"], used - set(shown))


def test_alert_table_has_every_distinguishing_label() -> None:
    files_of_cases = (Path(__file__).parents[2] / "alerts" / "rules").glob("*.yaml")
    tests = [test for file in files_of_cases for test in yaml.load(file.read_text(), yaml.CSafeLoader)["tests"]]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    labels = {label for case in cases for alert in case["exp_alerts"] for label in alert["exp_labels"]}
    (table,) = [target for target in TARGETS if target.name == ("rankscope-alerts", "Firing alerts", "A")]
    shown = set(re.findall(r"\w+", table.expr))
    assert "uuid" in labels
    assert labels - {"uuid", "run", "model"} <= shown  # the gpu_uuid is the uuid; the others follow from shown columns


def test_every_lint_exclusion_has_a_reason_and_is_needed() -> None:
    test_every_query_filters_by_the_chosen_job_and_instance()
    test_only_counters_are_rated_and_ratios_are_never_averaged()
    assert all(len(exclusion["reason"]) > 20 for exclusion in _exclusions())
    assert needed == set(range(len(_exclusions())))


def test_export_does_not_import_the_board_generator_library() -> None:
    code = (
        "import sys; import rankscope.dashboards.grafana.commands, rankscope.dashboards.grafana.export as export\n"
        "export.shipped()\n"
        "print([name for name in sys.modules if name.startswith(('grafana_foundation_sdk', 'dash', 'rankscope.exporter'))])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (completed.stdout.strip(), completed.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("up", [("up", "", "")]),
        ('sum by (a) (rate(b_total{x=~"(}", y="["}[$__rate_interval]))', [("b_total", "$__rate_interval", "rate")]),
        ("max by (a) (x) * on (a) group_left (b) y{} / 3.6e6", [("x", "", "max"), ("y", "", "")]),
        ("NaN * (x == 0 or time() - y)", [("x", "", ""), ("y", "", "")]),
        ("max_over_time((rate(x[5m]) / y)[$__range:1m] @ end())", [("x", "5m", "rate"), ("y", "", "")]),
        ('max by (a) (count_over_time(x{a="1"}[$__range:1m])) / ($__range_s / 60)', [("x", "$__range:1m", "count_over_time")]),
    ],
)
def test_metric_selectors_are_extracted_from_queries(expr: str, expected: list[Any]) -> None:
    assert [(selector.metric, selector.range, selector.function) for selector in selectors(expr)] == expected

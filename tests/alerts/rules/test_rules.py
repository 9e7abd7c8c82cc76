"""The rule file is valid, uses only metrics that exist, and agrees with the runbooks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.alerts.external_metrics import EXTERNAL

from rankscope.alerts.receive.counters import GAUGES, REFUSALS, Counters
from rankscope.alerts.rules.rule_file import export_rules, rules_text, runbooks
from rankscope.alerts.rules.thresholds import DEFAULTS, SEVERITY_OF, Tables, load_thresholds
from rankscope.alerts.watch.watcher_page import Evaluation, WatcherPage
from rankscope.base.errors import InputError
from rankscope.exporter.catalogue import CATALOGUE
from rankscope.runs.links import overview_url
from rankscope.runs.metrics import RANK_LABELS, RANK_METRICS

CASES = Path(__file__).with_name("training.tests.yaml")
SIMULATED_RUN = (
    '{{ with printf "run_id_rank:rank_info:latest{run_id=%q,simulated=\\"true\\"}" $labels.run_id | query }}[simulated] {{ end }}'
)
WORDS = {"by", "on", "and", "or", "unless", "bool", "group_left", "group_right", "without", "ignoring", "offset"}


def all_rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(rules_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in all_rules() if "alert" in rule]


def metrics_in(query: str) -> set[str]:
    """Return the names of the series of a query: without strings, matchers, label lists, ranges and functions."""
    query = re.sub(r'\\?"[^"]*"', "", query)
    query = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", query)
    query = re.sub(r"\b(by|on|group_left|group_right|without|ignoring)\s*\([^)]*\)", "", query)
    names = re.findall(r"(?<![\w:])([a-zA-Z_:][\w:]*)\b(?!\s*\()", query)
    return {name for name in names if name not in WORDS}


def queries() -> list[str]:
    """Return every expression of a rule, and every query in an annotation."""
    rules = [rule["expr"] for rule in all_rules()]
    for rule in alerts():
        for text in rule["annotations"].values():
            rules += [query.replace('\\"', '"') for query in re.findall(r'printf\s+"((?:[^"\\]|\\.)*)"', text)]
    return rules


def other_thresholds(path: Path, number: str) -> Tables:
    """Return tables in which every setting differs from its default: numbers, durations of several units, and a price."""
    lines = ["[price]", "per_gpu_hour = 2.5"]
    for table, settings in DEFAULTS.items():
        lines += [f"[{table}]"] if table != "price" else []
        lines += [
            f"{name} = " + ('"1d2h3m4s5ms"' if isinstance(value, str) else number if isinstance(value, float) else "3")
            for name, value in settings.items()
            if name not in ("enabled", "severity", "currency")
        ]
    path.write_text("\n".join(lines))
    return load_thresholds(path)


@pytest.mark.parametrize("number", [None, "0.00001", "1.0", "0"])
def test_exported_rules_pass_promtool_with_every_lint(
    tmp_path: Path, require_program: Callable[[str], str], number: str | None
) -> None:
    export_rules(tmp_path, settings=None if number is None else other_thresholds(tmp_path / "ours.toml", number))
    command = [
        require_program("promtool"),
        "check",
        "rules",
        "--lint=all",
        "--lint-fatal",
        str(tmp_path / "rankscope.rules.yaml"),
    ]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def test_every_metric_in_the_rules_is_published() -> None:
    parts = {
        f"{metric.name}_{part}" for metric in RANK_METRICS if metric.type == "histogram" for part in ("bucket", "sum", "count")
    }
    published = {metric.name for metric in RANK_METRICS} | {metric.name for metric in CATALOGUE} | parts
    published |= {metric.name for metric in EXTERNAL}
    recorded = {rule["record"] for rule in all_rules() if "record" in rule}
    used = set().union(*map(metrics_in, queries()))
    assert "rank_steps_total" in used
    assert "gpu_up" in used
    assert used <= published | recorded
    assert {metric.name for metric in EXTERNAL} <= used
    docs = Path(__file__).parents[3] / "docs"
    pages = "".join((docs / page).read_text() for page in ("rules.md", "rules-reference.md"))
    documented = set(re.findall(r"`(\w+:\w+:\w+)`", pages))
    assert documented <= recorded
    assert recorded - used <= documented, "recorded, and used by nobody"


def test_label_matchers_use_only_labels_of_the_metric() -> None:
    labels = {metric.name: {*metric.labels, "job", "instance"} for metric in CATALOGUE}
    labels |= {metric.name: {*metric.labels} for metric in EXTERNAL}
    labels |= {metric.name: {*RANK_LABELS, *metric.labels, "job", "instance", "le"} for metric in RANK_METRICS}
    compared = re.compile(r"([a-zA-Z_]\w*)\{([^}]*)\}")
    matchs = [match for query in queries() for match in compared.finditer(query) if match[1] in labels]
    assert len(matchs) > 20
    for name, matchers in (match.groups() for match in matchs):
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', "", matchers))) <= labels[name] | {
            "alertname",
            "host",
        }, name


def test_labels_used_in_joins_are_published() -> None:
    labels = {metric.name: set(metric.labels) for metric in CATALOGUE} | {
        metric.name: set(metric.labels) for metric in RANK_METRICS
    }
    assert RANK_LABELS == ("run", "rank", "slot")
    assert labels["rank_info"] >= {"run_id", "host", "gpu_uuid"}
    assert labels["rank_state"] >= {*RANK_LABELS, "state"}
    assert labels["gpu_up"] >= {"uuid"}
    assert labels["gpu_info"] >= {"uuid", "index", "model", "host", "simulated"}
    assert labels["rankscope_exporter_collector_success"] >= {"collector"}


def test_every_alert_has_severity_description_and_links() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert "for" in rule
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
        assert rule["annotations"]["runbook_url"] == f"runbooks/{rule['alert']}.md"
        assert rule["annotations"]["dashboard_url"].startswith("http://127.0.0.1:8050/")
        assert re.search(r"\bvalue\b", rule["annotations"]["summary"] + rule["annotations"]["description"]), "no number"


def test_alerts_over_long_windows_have_a_short_for() -> None:
    for rule in alerts():
        assert "_over_time" not in rule["expr"]
        if re.search(r"\[\d+[hd]\]", rule["expr"]):
            assert rule["for"] in {"0s", "5m"}


def test_hardware_alerts_print_drain_commands_and_mark_simulated_gpus() -> None:
    of_gpus = [rule for rule in alerts() if "gpu_uuid" in rule["labels"]]
    assert len(of_gpus) > 20
    of_links = [rule for rule in alerts() if rule["alert"].startswith("Infiniband")]
    assert len(of_links) == 4
    for rule in of_gpus + of_links:
        node = '{{ or $labels.host (reReplaceAll ":[0-9]+$" "" $labels.instance) }}'
        text = rule["annotations"]["description"]
        # First no new jobs are scheduled, then jobs end, then the remaining ones are evicted
        commands = (
            f"Slurm: scontrol update NodeName={node} State=DRAIN Reason=",
            f"Kubernetes: kubectl cordon {node}",
            "let its jobs end",
        )
        places = [text.find(part) for part in (*commands, f"kubectl drain {node} --ignore-daemonsets")]
        assert -1 not in places
        assert places == sorted(places)
    for rule in alerts():
        summary, text = rule["annotations"]["summary"], rule["annotations"]["description"]
        made_up = '{{ if eq $labels.simulated "true" }}'
        assert "[simulated]" not in summary or summary.index("[simulated]") < len(SIMULATED_RUN), rule["alert"]
        if rule in of_gpus:
            assert summary.startswith(f"{made_up}[simulated] {{{{ end }}}}")
        if "kubectl drain" in text and not rule["alert"].startswith(("Infiniband", "Node")):
            order = [
                text.find(part) for part in (f"{made_up}These GPUs are simulated: the node stays in service.", "scontrol update")
            ]
            assert -1 < order[0] < order[1], rule["alert"]
            assert text.endswith("{{ end }}")
        if "kubectl delete" in text:
            assert '{{ if ne $labels.simulated "true" }}' in text.partition("Slurm: scancel")[0], rule["alert"]


def test_divisors_cannot_be_zero() -> None:
    """Check that each divisor is a number, or an expression filtered by ``> 0``."""
    for rule in all_rules():
        for divisor in re.sub(r'"[^"]*"', "", rule["expr"]).split("/")[1:]:
            assert re.match(r"\s*(on \(\w+\)\s*)?(group_left \(\)\s*)?(\d|\(.*?> 0\s*\))", divisor, re.DOTALL), rule


def test_every_runbook_has_its_sections_and_drain_commands() -> None:
    drained = {rule["alert"] for rule in alerts() if "scontrol" in rule["annotations"]["description"]} - {"NodeMaintenance"}
    assert len(drained) > 25
    simulated = {rule["alert"] for rule in alerts() if "$labels.simulated" in rule["annotations"]["summary"]}
    assert len(simulated) > 30
    for name, page in runbooks().items():
        assert page.startswith(f"# {name}\n\n**Severity:** {SEVERITY_OF[name]} ")
        for heading in ("## What it means", "## How to confirm", "## What to do", "## When it is quiet"):
            assert heading in page, (name, heading)
        # No placeholder is left, and a node is cordoned before it is drained
        assert "${" not in page, name
        assert (
            page.count("kubectl drain HOST") == page.count("kubectl cordon HOST") == page.count(f'State=DRAIN Reason="{name}"')
        ), name
        assert (name in drained) <= (page.find("kubectl cordon HOST") > 0), name
        assert (name in simulated) <= ("begins with `[simulated]`" in page), name
        assert bool(re.search(r"(?: |`)RUN[ `/][^i]", page)) == ("RUN is the folder of the run" in page), name


# First words of the condition under which to drain, in the alert's text and in its runbook.
CONDITIONS = {
    "GpuRowRemapPending": ("Not urgent", "Not urgent"),
    "GpuRetiredPagesPending": ("Not urgent", "Not urgent"),
    "GpuRetiredPagesMany": ("Not urgent", "Not urgent"),
    "GpuThermalSlowdown": ("If it slows the job down, take", "If it slows the job down, take"),
    "GpuThrottleFlapping": ("If it slows the job down, take", "If it slows the job down, take"),
    "GpuTooHot": ("If the node has to be opened, take", "If it has to be opened, take"),
    "GpuXidWarning": ("When the GPU is free, take", "When the GPU is free, take"),
    "GpuXidRepeated": ("if any job is hit, take", "Any job: take"),
    "GpuXidOneUnit": ("if it does not fail there, take", "If it does not, take"),
    "GpuHangSuspected": ("if its processes cannot be ended, take", "If the processes cannot be ended, the driver hangs: take"),
    "NvlinkInactive": ("If the job is slow or fails, take", "If the job is slow or fails, take"),
    "NvlinkCrcErrors": ("If the job is slow, take", "If the job is slow, take"),
    "NvlinkRecoveries": (
        "A single one needs no action. If it recurs within a day",
        "Once: nothing.\n2. If it comes again within a day, take",
    ),
    "PcieReplays": ("When the job allows it, take", "out of service when the job allows it:"),
    "PcieDegraded": ("When the job allows it, take", "out of service when the job allows it:"),
    "InfinibandLinkDowned": ("If it does not stay up, take", "If it does not stay up, take"),
    "InfinibandSymbolErrors": ("If jobs on the node are slow, take", "If jobs on the node are slow, take"),
    "InfinibandReceiveErrors": ("If jobs on the node are slow, take", "If jobs on the node are slow, take"),
    "InfinibandDiscards": ("If this port alone has it, take", "One port alone: take"),
}


def test_runbook_and_alert_give_the_same_action() -> None:
    for rule in alerts():
        name, text, page = rule["alert"], rule["annotations"]["description"], runbooks()[rule["alert"]]
        if "kubectl drain" in text:
            in_text, in_page = CONDITIONS.get(name, ("Take the node out of service (", "1. Take "))
            assert in_text in text, name
            assert in_page in page, name
        # A runbook has no run's name in a command; an alert has the id of the run, but no folder
        assert "analyze RUN" not in text, name
        assert "RUN_ID" not in text, name


def test_runbook_numbers_follow_the_thresholds(tmp_path: Path) -> None:
    ours = tmp_path / "ours.toml"
    ours.write_text(
        '[TrainingStalled]\nseconds = 1800\nseverity = "warning"\nkeep_firing_for = "1h30m"\n'
        '[GpuAllocatedIdle]\nfor = "2h"\nenabled = false\n'
    )
    pages = runbooks(load_thresholds(ours))
    assert "**Severity:** warning " in pages["TrainingStalled"]
    assert "finished a step for 30 minutes" in pages["TrainingStalled"]
    assert "10 minutes" not in pages["TrainingStalled"]
    assert "1 hour 30 minutes after a step has ended" in " ".join(pages["TrainingStalled"].split())
    assert "no kernel has run on it for 2 hours" in pages["GpuAllocatedIdle"]
    export_rules(tmp_path, settings=load_thresholds(ours))
    assert (tmp_path / "runbooks" / "TrainingStalled.md").read_text() == pages["TrainingStalled"] != runbooks()["TrainingStalled"]


def test_runbook_command_finds_the_run_folder_by_run_id(make_run: Callable[..., Any]) -> None:
    runs = [make_run(name) for name in ("llama", "llama 2", "llama-3")]
    for page in (page for page in runbooks().values() if "RUN is the folder" in page):
        [command] = re.findall(r"`(grep -lF .*?)`", page)
        for run in runs:
            asked = command.replace("RUN_ID", run.run_id).replace("RUNS/", f"{run.path.parent}/")
            assert (
                subprocess.run(["sh", "-c", asked], capture_output=True, text=True, check=True).stdout == f"{run.path}/run.json\n"
            )


def test_watcher_publishes_every_metric_used_in_rules() -> None:
    page = WatcherPage()
    page.store_id = "s"
    page.evaluated(Evaluation(runs=1, firing=0, problems=0, undelivered=0))
    shown = {line.partition("{")[0].split()[0] for line in page.metrics().decode().splitlines() if not line.startswith("#")}
    used = {metric.name for metric in EXTERNAL if metric.name.startswith("rankscope_watcher_")}
    assert used
    assert used <= shown


def test_receiver_publishes_every_metric_used_in_rules() -> None:
    page = Counters().page(store_id="", **dict.fromkeys(GAUGES, 0.0)).decode()
    shown = {line.partition("{")[0].split()[0] for line in page.splitlines() if not line.startswith("#")}
    used = {metric.name for metric in EXTERNAL if metric.name.startswith("rankscope_receiver_")}
    assert len(used) == 7
    assert used <= shown
    [rule] = [rule for rule in alerts() if rule["alert"] == "ReceiverRefusing"]
    assert set("|".join(re.findall(r'reason=~"([^"]*)"', rule["expr"])).split("|")) < set(REFUSALS)


def test_maintenance_counts_the_alerts_that_alertmanager_inhibits() -> None:
    example = Path(__file__).parents[3] / "alerts" / "alertmanager" / "alertmanager.yml"
    [inhibition] = [
        rule
        for rule in yaml.safe_load(example.read_text())["inhibit_rules"]
        if 'alertname="NodeMaintenance"' in rule["source_matchers"]
    ]
    [names] = re.findall(r'alertname=~"(.*)"', inhibition["target_matchers"][0])
    [rule] = [rule for rule in alerts() if rule["alert"] == "NodeMaintenance"]
    assert f'alertname=~\\"{names}\\"' in rule["annotations"]["description"]


def test_exported_rules_contain_the_operators_addresses(tmp_path: Path) -> None:
    export_rules(tmp_path)
    (tmp_path / "runbooks" / "GpuDown.md").write_text("another text")
    written = export_rules(tmp_path, dashboard_url="https://rankscope.example/", runbook_url="https://wiki.example/gpu/")
    assert {path.name for path in written} == {"rankscope.rules.yaml", *(f"{name}.md" for name in runbooks())}
    assert {path.name for path in tmp_path.iterdir()} == {"rankscope.rules.yaml", "runbooks"}
    assert (tmp_path / "runbooks" / "GpuDown.md").read_text() == runbooks()["GpuDown"]
    text = (tmp_path / "rankscope.rules.yaml").read_text()
    [link] = [
        rule["annotations"]["dashboard_url"]
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "RankSilent"
    ]
    rendered = link.replace('{{ reReplaceAll "[+]" "%20" (urlquery $labels.run_id) }}', "r1").replace("{{ $labels.rank }}", "2")
    assert rendered == overview_url("https://rankscope.example", "r1", rank=2)
    assert "runbook_url: https://wiki.example/gpu/GpuDown.md" in text
    assert "127.0.0.1" not in text.partition("groups:")[2]


def test_links_quote_the_run_id_as_the_dashboard_does() -> None:
    tests = yaml.safe_load(CASES.read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", []) if case["alertname"] == "RecorderDisabled"]
    [alert] = [alert for case in cases for alert in case["exp_alerts"]]
    run_id, rank = alert["exp_labels"]["run_id"], alert["exp_labels"]["rank"]
    assert set(" +/") <= set(run_id)
    assert alert["exp_annotations"]["dashboard_url"] == overview_url("http://127.0.0.1:8050", run_id, rank=rank)
    quoting = 'reReplaceAll "[+]" "%20" (urlquery $labels.run_id)'
    links = [rule["annotations"]["dashboard_url"] for rule in alerts() if "/run/" in rule["annotations"]["dashboard_url"]]
    assert links
    assert all(quoting in link for link in links)


@pytest.mark.parametrize(
    "secret", ["https://user:geheim@x/", "https://geheim@x", "//u:geheim@x/p", "user:geheim@x/", "http://u:geh#eim@x"]
)
def test_url_with_a_password_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="the dashboard URL contains a user") as refused:
        rules_text(dashboard_url=secret)
    assert "geh" not in str(refused.value)
    with pytest.raises(ValueError, match="the runbook URL contains a user") as refused:
        rules_text(runbook_url=secret)
    assert "geh" not in str(refused.value)
    assert "https://wiki.example/@gpu/GpuDown.md" in rules_text(runbook_url="https://wiki.example/@gpu")


@pytest.mark.parametrize("bad", ["", "x y", 'http://a"b', "http://{{ .Value }}", "http://a\nb", "http://a'b", "http://a#b"])
def test_url_that_is_empty_or_needs_escaping_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="not a plain address"):
        rules_text(dashboard_url=bad)


def test_export_error_names_the_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        export_rules(tmp_path / "file")

"""The Helm chart, read without helm: its values and templates, and their agreement with the exporter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from rankscope.alerts.rules.rule_file import RULES_FILE, rules_text
from rankscope.exporter.commands import exporter as command

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "exporter" / "helm" / "rankscope-exporter"
TEMPLATES = sorted((CHART / "templates").iterdir())

ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)


def values() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return parsed


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def outline(template: str) -> list[dict[str, Any]]:
    """Return the documents of a template with every branch taken and ``x`` for every inserted value."""
    text = re.sub(r"^\s*\{\{-?.*?\}\}\s*\n", "", (CHART / "templates" / template).read_text(), flags=re.MULTILINE)
    return [document for document in yaml.safe_load_all(ACTION.sub("x", text)) if document]


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = outline("daemonset.yaml")[0]["spec"]["template"]["spec"]
    return spec


def test_the_default_values_are_what_the_schema_allows_and_a_misspelt_one_is_not() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)

    jsonschema.validate(values(), schema)

    assert set(values()) == set(schema["properties"]) - {"global"}
    mistakes: list[dict[str, Any]] = [
        {"tolerationz": []},
        {"port": "9838"},
        {"image": {"repo": "x"}},
        {"extraArgs": ["expected-gpus=8"]},
    ]
    for wrong in mistakes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(values() | wrong, schema)


def test_every_value_that_a_template_uses_exists_and_every_value_is_used() -> None:
    used = {path for template in TEMPLATES for path in re.findall(r"\.Values\.([A-Za-z.]+)", template.read_text())}
    known = set(leaves(values()))

    assert len(used) > 20
    for path in used:
        assert any(leaf == path or leaf.startswith(f"{path}.") for leaf in known), path
    for leaf in known:
        assert any(leaf == path or leaf.startswith(f"{path}.") for path in used), leaf


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_the_actions_of_a_template_are_balanced(template: Path) -> None:
    text = template.read_text()
    words = [action.split(maxsplit=1)[0] for action in ACTION.findall(text)]

    assert "\t" not in text
    assert len(re.findall(r"\{\{", text)) == len(re.findall(r"\}\}", text)) == len(words)
    assert sum(word in {"if", "with", "range", "define"} for word in words) == words.count("end")
    defined = set(re.findall(r'define "(.*?)"', (CHART / "templates" / "_helpers.tpl").read_text()))
    assert set(re.findall(r'include "(.*?)"', text)) <= defined


def test_the_exporter_takes_the_arguments_that_the_daemonset_gives_it() -> None:
    given = pod()["containers"][0]["args"]
    arguments = [argument.replace("$(NODE_NAME)", "node1").replace("=:x", "=:9838") for argument in given]

    parsed = command.make_context("exporter", list(arguments)).params

    assert len(arguments) > 6
    assert parsed["host"] == "node1"
    assert parsed["spool"] == Path("/run/rankscope/spool")


def test_a_wedged_driver_neither_kills_the_pod_nor_holds_up_a_rollout() -> None:
    (container,) = pod()["containers"]

    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/-/healthy", "port": "metrics"}
    assert outline("service.yaml")[0]["spec"]["publishNotReadyAddresses"] is True


def test_what_is_mounted_is_declared_and_the_kubelets_folder_rather_than_its_socket() -> None:
    spec = pod()
    containers = [*spec["initContainers"], *spec["containers"]]
    mounted = {mount["name"]: mount["mountPath"] for container in containers for mount in container["volumeMounts"]}

    assert set(mounted) == {volume["name"] for volume in spec["volumes"]}
    # Every path in the arguments is below a mount: the root file system is read-only.
    for argument in spec["containers"][0]["args"]:
        path = argument.partition("=")[2]
        if path.startswith("/"):
            assert any(path.startswith(f"{place}/") or path == place for place in mounted.values()), argument
    assert mounted["pod-resources"] == values()["podResourcesFolder"]


def test_only_named_rights_are_left_and_no_token_of_the_cluster_is_given() -> None:
    spec = pod()
    security = spec["containers"][0]["securityContext"]

    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert spec["automountServiceAccountToken"] is False
    assert values()["privileged"] is False


def test_the_rules_in_the_chart_are_the_projects_rules() -> None:
    assert (CHART / "files" / RULES_FILE).read_text() == rules_text(), "make docs"


def test_the_chart_has_the_version_of_the_newest_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)

    assert version is not None
    assert chart["appVersion"] == version[1]

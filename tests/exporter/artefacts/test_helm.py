"""The Helm chart, rendered by Helm: its agreement with the exporter, and with the pods of the how-to."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from tests.exporter.artefacts.helm_chart import (
    CHART,
    ChartError,
    Manifest,
    lint,
    pod_of,
    render,
    render_text,
    schemas_of_kubernetes,
)
from tests.exporter.conftest import StartExporter
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state

from rankscope.alerts.rules.rule_file import RULES_FILE, rules_text
from rankscope.exporter.commands import exporter as command
from rankscope.exporter.jobs.names import POD_LOGS
from rankscope.exporter.spool.folder import SYSTEM_SPOOL

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = sorted((CHART / "templates").iterdir())
HOWTO = ROOT / "docs" / "howto-kubernetes.md"
EVERYTHING: Manifest = {
    "privileged": True,
    "kernelLog": True,
    "driverRoot": {"path": "/run/nvidia/driver"},
    "webConfig": {"secretName": "web"},
    "imagePullSecrets": [{"name": "registry"}],
    "extraArgs": ["--expected-gpus=8"],
    "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
    "seLinuxOptions": {"type": "spc_t"},
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "serviceAccount": {"annotations": {"e": "f"}},
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "scheme": "https",
        "tlsConfig": {"insecureSkipVerify": True},
        "basicAuth": {"username": {"name": "web", "key": "user"}},
        "metricRelabelings": [{"action": "labeldrop", "regex": "x"}],
    },
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
}


def values() -> Manifest:
    parsed: Manifest = yaml.safe_load((CHART / "values.yaml").read_text())
    return parsed


def leaves(tree: Manifest, prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.fixture(scope="module")
def chart() -> dict[str, Manifest]:
    return render()


@pytest.fixture(scope="module")
def full_chart() -> dict[str, Manifest]:
    return render(EVERYTHING)


def parameters(chart: dict[str, Manifest]) -> dict[str, Any]:
    """Parse the exporter's arguments in the chart as the command does."""
    arguments = [argument.replace("$(NODE_NAME)", "node1") for argument in pod_of(chart)["containers"][0]["args"]]
    return command.make_context("exporter", arguments).params


@pytest.mark.parametrize(
    "mistake", [{"tolerationz": []}, {"port": "9838"}, {"image": {"repo": "x"}}, {"extraArgs": ["expected-gpus=8"]}]
)
def test_misspelt_or_mistyped_value_is_refused(mistake: Manifest) -> None:
    with pytest.raises(ChartError, match=next(iter(mistake))):
        render(mistake)


def test_privileged_features_are_refused_without_privileges() -> None:
    for needs in ({"kernelLog": True}, {"driverRoot": {"path": "/"}}):
        with pytest.raises(ChartError, match="privileged"):
            render(needs)


def test_chart_passes_helm_lint() -> None:
    assert lint() == []


OLDEST = re.sub(r"^>=(\d+\.\d+).*", r"\1", yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"])


@pytest.mark.slow
@pytest.mark.parametrize("version", [OLDEST, "1.35"])
def test_manifests_match_the_kubernetes_schemas(
    version: str, chart: dict[str, Manifest], full_chart: dict[str, Manifest]
) -> None:
    schemas = schemas_of_kubernetes()
    pod: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer"}, "spec": training_pod()}

    for manifest in (pod, *chart.values(), *full_chart.values()):
        if not manifest["apiVersion"].startswith("monitoring.coreos.com/"):
            schemas.validate(manifest, version, strict=True)
    with pytest.raises(schemas.ValidationError):
        schemas.validate({**pod, "spec": {**pod["spec"], "hostIp": "1.2.3.4"}}, version, strict=True)


def test_every_value_is_used() -> None:
    used = {path for template in TEMPLATES for path in re.findall(r"\.Values\.([A-Za-z.]+)", template.read_text())}

    for leaf in leaves(values()):
        assert any(leaf == path or leaf.startswith(f"{path}.") for path in used), leaf


def test_default_chart_uses_only_core_resources(chart: dict[str, Manifest]) -> None:
    assert set(chart) == {"DaemonSet", "Service", "ServiceAccount"}


def test_daemonset_arguments_are_valid_exporter_options(chart: dict[str, Manifest], full_chart: dict[str, Manifest]) -> None:
    default, full = parameters(chart), parameters(full_chart)

    assert (default["host"], default["spool"], default["xid_kernel_log"]) == ("node1", SYSTEM_SPOOL, False)
    assert (full["expected_gpus"], full["xid_kernel_log"]) == (8, True)


def test_hung_driver_neither_kills_the_pod_nor_blocks_a_rollout(
    chart: dict[str, Manifest], full_chart: dict[str, Manifest]
) -> None:
    for probe in ("livenessProbe", "readinessProbe"):
        assert pod_of(chart)["containers"][0][probe]["httpGet"] == {"path": "/-/healthy", "port": "metrics"}
        assert pod_of(full_chart)["containers"][0][probe]["tcpSocket"] == {"port": "metrics"}
    assert chart["Service"]["spec"]["publishNotReadyAddresses"] is True


def test_volume_mounts_are_declared_and_mount_folders(chart: dict[str, Manifest], full_chart: dict[str, Manifest]) -> None:
    for manifests in (chart, full_chart):
        spec = pod_of(manifests)
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        mounted = {mount["name"]: mount["mountPath"] for container in containers for mount in container["volumeMounts"]}

        assert set(mounted) == {volume["name"] for volume in spec["volumes"]}
        # Every path in the arguments is below a mount: the root file system is read-only.
        for argument in spec["containers"][0]["args"]:
            path = argument.partition("=")[2]
            if path.startswith("/"):
                assert any(path.startswith(f"{place}/") or path == place for place in mounted.values()), argument
        assert mounted["pod-resources"] == values()["podResourcesFolder"]
        assert mounted["pod-logs"] == str(POD_LOGS)
    assert "pod-logs" not in str(pod_of(render({"podLogsFolder": ""})))


def test_container_has_minimal_capabilities_and_no_api_token(chart: dict[str, Manifest]) -> None:
    spec = pod_of(chart)
    security = spec["containers"][0]["securityContext"]

    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["privileged"] is False
    assert spec["automountServiceAccountToken"] is False


def test_prometheus_finds_each_exporter_once(full_chart: dict[str, Manifest]) -> None:
    (endpoint,) = full_chart["ServiceMonitor"]["spec"]["endpoints"]
    service = full_chart["Service"]

    assert full_chart["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [port["name"] for port in service["spec"]["ports"]] == [endpoint["port"]]
    (ingress,) = full_chart["NetworkPolicy"]["spec"]["ingress"]
    assert ingress["ports"] == [{"port": "metrics"}]


def test_instance_label_is_the_node_name(full_chart: dict[str, Manifest]) -> None:
    """Else each update would be an exporter that disappeared, and rates and alerts would begin anew."""
    (endpoint,) = full_chart["ServiceMonitor"]["spec"]["endpoints"]
    sources = {rule["targetLabel"]: rule["sourceLabels"] for rule in endpoint["relabelings"] if "targetLabel" in rule}
    dropped = next(re.compile(rule["regex"]) for rule in endpoint["relabelings"] if rule.get("action") == "labeldrop")

    assert sources == {label: ["__meta_kubernetes_pod_node_name"] for label in ("node", "instance")}
    assert all(dropped.fullmatch(label) for label in ("pod", "container", "endpoint"))
    # the exporter gives its GPUs the same name, so that joins with what Kubernetes says about the node work
    (name,) = (variable for variable in pod_of(full_chart)["containers"][0]["env"] if variable["name"] == "NODE_NAME")
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert parameters(full_chart)["host"] == "node1"


def test_the_rules_in_the_chart_are_the_projects_rules(full_chart: dict[str, Manifest]) -> None:
    assert (CHART / "files" / RULES_FILE).read_text() == rules_text(), "make docs"
    assert full_chart["PrometheusRule"]["spec"] == yaml.safe_load(rules_text())


def test_the_chart_has_the_version_of_the_newest_release() -> None:
    version = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)

    assert version is not None
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version[1]


# The how-to


def installation() -> dict[str, Any]:
    """Return release, namespace and values of the ``helm install`` in the how-to."""
    (line,) = re.findall(r"^helm install .*", HOWTO.read_text(), re.MULTILINE)
    _, _, name, folder, *options = shlex.split(line)
    flags = dict(zip(options[::2], options[1::2], strict=True))
    assert (ROOT / folder).resolve() == CHART
    assert set(flags) == {"--namespace", "--set"}
    return {"values": flags["--set"], "name": name, "namespace": flags["--namespace"]}


def training_pod() -> Manifest:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    spec: Manifest = yaml.safe_load(manifest)["spec"]
    return spec


def exporter_url() -> str:
    (container,) = training_pod()["containers"]
    words: list[str] = container["command"]
    return words[words.index("--exporter-url") + 1]


def test_the_training_pods_reach_the_exporter_of_their_own_node() -> None:
    chart = render(**installation())
    service, url = chart["Service"], urlsplit(exporter_url())
    (port,) = service["spec"]["ports"]
    (container,) = pod_of(chart)["containers"]

    assert f"{service['metadata']['name']}.{installation()['namespace']}" == url.hostname
    assert port["port"] == url.port
    assert service["spec"]["internalTrafficPolicy"] == "Local"
    assert "clusterIP" not in service["spec"]  # a headless service leads to any node
    assert service["spec"]["selector"].items() <= chart["DaemonSet"]["spec"]["template"]["metadata"]["labels"].items()
    assert {"name": port["targetPort"], "containerPort": parameters(chart)["listen"][0][1]} in container["ports"]
    assert url.path == parameters(chart)["telemetry_path"]
    # also the note that Helm prints names this address
    assert any(exporter_url() in text for path, text in render_text(**installation()).items() if path.endswith("NOTES.txt"))


def test_training_pods_and_exporter_share_one_spool() -> None:
    def node_folders(spec: Manifest, container: Manifest) -> dict[str, str]:
        """Return the folder of the node behind each mounted path of a container."""
        hosts = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
        return {mount["mountPath"]: hosts[mount["name"]] for mount in container["volumeMounts"] if mount["name"] in hosts}

    exporter, training = pod_of(render(**installation())), training_pod()
    (folder,) = node_folders(training, training["containers"][0]).items()
    of_exporter = node_folders(exporter, exporter["containers"][0])

    assert folder[0] == str(SYSTEM_SPOOL)  # where ranks look without an option
    assert folder[1] == str(SYSTEM_SPOOL).replace("/run/rankscope", of_exporter["/run/rankscope"])


@pytest.mark.slow
def test_exporter_started_with_chart_arguments_is_complete(
    chart: dict[str, Manifest], start_exporter: StartExporter, tmp_path: Path
) -> None:
    fake = FakeDriver(tmp_path, build_library(), [h100_state(0)])
    folders = {"/run/rankscope": tmp_path / "run", "/var/lib/rankscope": tmp_path / "lib"}
    arguments = []
    for argument in pod_of(chart)["containers"][0]["args"]:
        # no kubelet and no fixed port here
        if not argument.startswith(("--jobs.podresources-socket", "--web.listen-address")):
            for path, folder in folders.items():
                argument = argument.replace(path, str(folder))  # noqa: PLW2901
            arguments.append(argument)
    (tmp_path / "run" / "spool").mkdir(parents=True)  # as the kubelet makes it for a training pod

    exporter = start_exporter(*arguments, env=fake.env)

    # what the alert ExporterPartial looks at
    exporter.wait_until(lambda: exporter.values("rankscope_exporter_xid_journal_durable") == [1])
    assert exporter.values("rankscope_exporter_inventory_durable") == [1]
    assert exporter.values("rankscope_exporter_kernel_log_readable") == []
    assert exporter.values("rankscope_exporter_jobs_source_ok") == []
    assert exporter.values("rankscope_exporter_spool_rejected_files") == []

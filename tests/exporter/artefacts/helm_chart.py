"""The Helm chart, rendered with Helm's own library in a process of its own."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.needs import skip_or_fail

CHART = Path(__file__).resolve().parents[3] / "exporter" / "helm" / "rankscope-exporter"

# In a process: the library is a Go runtime with threads and signal handlers of its own.
_RENDER = """
import json, sys
import helm_python
chart, values, options = json.load(sys.stdin)
try:
    with helm_python.Chart.load(chart) as loaded:
        values = helm_python.parse_set_string(values) if isinstance(values, str) else values
        print(json.dumps({"rendered": loaded.render(values, **options), "lint": helm_python.lint(chart)}))
except helm_python.HelmError as error:
    print(json.dumps({"error": str(error)}))
"""

Manifest = dict[str, Any]


class ChartError(Exception):
    """Helm refused the values or the templates."""


def render(values: Manifest | str | None = None, *, name: str = "gpus", namespace: str = "monitoring") -> dict[str, Manifest]:
    """Return the manifests by kind. ``values`` are those of a values file, or the text of ``--set``."""
    rendered = render_text(values, name=name, namespace=namespace)
    documents = [yaml.safe_load(text) for path, text in rendered.items() if not path.endswith("NOTES.txt")]
    manifests = {document["kind"]: document for document in documents if document}
    assert len(manifests) == sum(document is not None for document in documents)
    return manifests


def render_text(values: Manifest | str | None = None, *, name: str = "gpus", namespace: str = "monitoring") -> dict[str, str]:
    """Return the rendered files by their path in the chart."""
    rendered: dict[str, str] = _answer(values, name=name, namespace=namespace)["rendered"]
    return rendered


def lint() -> list[str]:
    """Return the warnings and errors of ``helm lint``."""
    result = _answer(None)["lint"]
    return [*(item["error"] for item in result["messages"] if item["severity"] > 1), *result["errors"]]


def _answer(values: Manifest | str | None, **options: str) -> dict[str, Any]:
    if importlib.util.find_spec("helm_python") is None:
        skip_or_fail("Helm's library is not installed: pip install helm-python-sdk")
    request = json.dumps([str(CHART), values, options])
    completed = subprocess.run(
        [sys.executable, "-c", _RENDER], input=request, capture_output=True, text=True, check=True, timeout=120
    )
    answer: dict[str, Any] = json.loads(completed.stdout)
    if "error" in answer:
        raise ChartError(answer["error"])
    return answer


def schemas_of_kubernetes() -> Any:
    """Return the package with the schemas of Kubernetes' versions."""
    if importlib.util.find_spec("kubernetes_validate") is None:
        skip_or_fail("the schemas of Kubernetes are not installed: pip install kubernetes-validate")
    return importlib.import_module("kubernetes_validate")


def pod_of(manifests: dict[str, Manifest]) -> Manifest:
    """Return the pod of the DaemonSet."""
    spec: Manifest = manifests["DaemonSet"]["spec"]["template"]["spec"]
    return spec

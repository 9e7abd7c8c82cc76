"""PromQL of the boards; every quantity is named as in the exporter's catalogue and is in its base unit."""

from __future__ import annotations

from typing import Final

SCOPE: Final = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
"""Selection by the variables of every board. The "all" of ``cluster`` is ``.*``, which also matches series without that label."""

RULES: Final = "cluster:rules:loaded"
"""Recorded wherever the rules are evaluated."""

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"

GPU_LEGEND: Final = "{{host}} GPU {{index}}"
"""Legend of a GPU's series."""
GPU_ALIVE: Final = f"gpu_up{{{SCOPE}}} == 1"
"""Has series as long as anything is collected."""


def matchers(labels: dict[str, str]) -> str:
    """Return further matchers, each with a leading comma. A value that begins with ``!`` must not match."""
    parts = [f', {name}!="{value[1:]}"' if value.startswith("!") else f', {name}="{value}"' for name, value in labels.items()]
    return "".join(parts)


def targets_down() -> str:
    """Return a series with labels ``of`` and ``why`` for every chosen target that does not answer Prometheus."""
    return f'label_replace(label_join(up{{{SCOPE}}} == 0, "of", "", "instance"), "why", "collection dead (no answer)", "", "")'


def gpu_series(metric: str, /, **labels: str) -> str:
    """Return the published series of the chosen GPUs; ``labels`` as in the catalogue."""
    return f'{metric}{{{SCOPE}, uuid=~"$gpu"{matchers(labels)}}}'


def with_gpu_names(expr: str) -> str:
    """Return series of GPUs, which are identified by ``uuid``, with the host and the index that the legends show."""
    return f"{expr}\n* on (job, instance, uuid) group_left (host, index) gpu_info{{{SCOPE}}}"


def gpu_values(metric: str, /, **labels: str) -> str:
    """Return a gauge of each chosen GPU."""
    return with_gpu_names(gpu_series(metric, **labels))


def gpu_rates(metric: str, /, **labels: str) -> str:
    """Return the rate of a counter of each chosen GPU per second."""
    return with_gpu_names(f"rate({gpu_series(metric, **labels)}[{RATE}])")


def gpu_increases(metric: str, /, **labels: str) -> str:
    """Return the increase of a counter of each chosen GPU over the shown time."""
    return with_gpu_names(f"increase({gpu_series(metric, **labels)}[{RANGE}])")


def gpus_without(metric: str) -> str:
    """Return a series of NaN for every GPU without this metric, and for every exporter that does not answer.

    Label ``of`` names the GPU or exporter, ``why`` its state: the legend shows what the lines cannot.
    """
    absent = _gpus_with_reason(gpu_values("gpu_metric_absent_info", metric=metric), "not available ($1)")
    down = _gpus_with_reason(gpu_values("gpu_down_info"), "collection dead ($1)")
    return f"NaN * (\n  {absent}\nor\n  {down}\nor\n  {targets_down()}\n)"


def _gpus_with_reason(series: str, why: str) -> str:
    return f'label_replace(label_join({series}, "of", " GPU ", "host", "index"), "why", "{why}", "reason", "(.*)")'


def hosts_without(hosts: str, why: str) -> str:
    """Return a series with labels ``of`` and ``why`` for every host that lacks something."""
    return f'label_replace(label_replace({hosts}, "of", "$1", "host", "(.*)"), "why", "{why}", "", "")'


def no_rules() -> str:
    """Return a series with labels ``of`` and ``why`` if Prometheus does not evaluate the recording rules."""
    why = f'label_replace(absent({RULES} @ end()), "why", "not loaded (rankscope alerts rules export)", "", "")'
    return f'label_replace({why}, "of", "recording rules", "", "")'


def gpu_states(name: str | None = None) -> str:
    """Return the recorded state (label ``state``) of each chosen GPU, including GPUs that disappeared less than an hour ago."""
    wanted = "" if name is None else f', state="{name}"'
    return of_instances(f'uuid_state:gpu_state:active{{instance=~"$instance", uuid=~"$gpu"{wanted}}}')


def of_instances(recorded: str) -> str:
    """Return recorded series of the chosen hosts: jobs and clusters are not on them, but on what was recorded of ``up``."""
    return f"({recorded} and on (instance) job_instance:up:remembered{{{SCOPE}}})"

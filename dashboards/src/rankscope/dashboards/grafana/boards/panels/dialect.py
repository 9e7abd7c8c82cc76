"""PromQL of the boards; every quantity is named as in the exporter's catalogue and is in its base unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCOPE: Final = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
"""Selection by the variables of every board. The "all" of ``cluster`` is ``.*``, which also matches series without that label."""

RULES: Final = "cluster:rules:loaded"
"""Recorded wherever the rules are evaluated."""

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"
_RATED: Final = f"rate({{}}[{RATE}])"
_GROWN: Final = f"increase({{}}[{RANGE}])"


def matchers(labels: dict[str, str]) -> str:
    """Return further matchers, each with a leading comma. A value that begins with ``!`` must not match."""
    parts = [f', {name}!="{value[1:]}"' if value.startswith("!") else f', {name}="{value}"' for name, value in labels.items()]
    return "".join(parts)


def targets_down() -> str:
    """Return a series with labels ``of`` and ``why`` for every chosen target that does not answer Prometheus."""
    return f'label_replace(label_join(up{{{SCOPE}}} == 0, "of", "", "instance"), "why", "collection dead (no answer)", "", "")'


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Names and labels of the GPUs' series as the exporter publishes them; metrics as in the catalogue, values in base units.

    ``legend``: legend of a GPU's series. ``by``: labels that identify GPUs, shown in legends
    and tables. ``alive``: expression with series as long as anything is collected. Values have the label ``uuid``; host and
    index are joined from ``gpu_info``.
    """

    legend: str
    by: str
    alive: str

    def selector(self, metric: str, /, **labels: str) -> str:
        """Return the published series of the chosen GPUs; ``labels`` as in the catalogue."""
        return f'{metric}{{{SCOPE}, uuid=~"$gpu"{matchers(labels)}}}'

    def function_of(self, metric: str, function: str, labels: dict[str, str]) -> str:
        """Return a function of each chosen GPU's series, with the labels of ``by``; ``{}`` in ``function`` is the selector."""
        return self.labelled(function.format(self.selector(metric, **labels)))

    def labelled(self, expr: str) -> str:
        """Return series of GPUs with the labels of ``by``."""
        return f"{expr}\n* on (job, instance, uuid) group_left (host, index) gpu_info{{{SCOPE}}}"

    def value(self, metric: str, /, **labels: str) -> str:
        """Return a gauge of each chosen GPU."""
        return self.function_of(metric, "{}", labels)

    def rate(self, metric: str, /, **labels: str) -> str:
        """Return the rate of a counter of each chosen GPU per second."""
        return self.function_of(metric, _RATED, labels)

    def increase(self, metric: str, /, **labels: str) -> str:
        """Return the increase of a counter of each chosen GPU over the shown time."""
        return self.function_of(metric, _GROWN, labels)

    def sum_of_rates(self, *metrics: str) -> str:
        """Return the sum of the rates of several counters of each chosen GPU, per second."""
        return "\n+\n".join(self.rate(metric) for metric in metrics)

    def missing(self, metric: str) -> str:
        """Return a series of NaN for every GPU without this metric, and for every exporter that does not answer.

        Label ``of`` names the GPU or exporter, ``why`` its state: the legend shows what the lines cannot.
        """
        absent = self._why("gpu_metric_absent_info", "not available ($1)", metric=metric)
        down = self._why("gpu_down_info", "collection dead ($1)")
        return f"NaN * (\n  {absent}\nor\n  {down}\nor\n  {targets_down()}\n)"

    def _why(self, metric: str, why: str, /, **labels: str) -> str:
        joined = f'label_join({self.value(metric, **labels)}, "of", " GPU ", "host", "index")'
        return f'label_replace({joined}, "why", "{why}", "reason", "(.*)")'


def hosts_without(hosts: str, why: str) -> str:
    """Return a series with labels ``of`` and ``why`` for every host that lacks something."""
    return f'label_replace(label_replace({hosts}, "of", "$1", "host", "(.*)"), "why", "{why}", "", "")'


def no_rules() -> str:
    """Return a series with labels ``of`` and ``why`` if Prometheus does not evaluate the recording rules."""
    why = f'label_replace(absent({RULES} @ end()), "why", "not loaded (rankscope alerts rules export)", "", "")'
    return f'label_replace({why}, "of", "recording rules", "", "")'


def state(name: str | None = None) -> str:
    """Return the recorded state (label ``state``) of each chosen GPU, including GPUs that disappeared less than an hour ago."""
    wanted = "" if name is None else f', state="{name}"'
    return of_instances(f'uuid_state:gpu_state:active{{instance=~"$instance", uuid=~"$gpu"{wanted}}}')


def of_instances(recorded: str) -> str:
    """Return recorded series of the chosen hosts: jobs and clusters are not on them, but on what was recorded of ``up``."""
    return f"({recorded} and on (instance) job_instance:up:remembered{{{SCOPE}}})"


NATIVE: Final = Dialect(
    legend="{{host}} GPU {{index}}",
    by="host, index, uuid",
    alive=f"gpu_up{{{SCOPE}}} == 1",
)

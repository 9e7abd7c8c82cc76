"""PromQL of the boards: the same quantities under the exporter's own metric names, or under those of dcgm-exporter.

Every quantity is named as in the exporter's catalogue and is in its base unit. A dialect without a metric for a quantity returns
``None``, and the panel that needs it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rankscope.exporter.catalogue import BY_NAME, DcgmName

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


def gone() -> str:
    """Return a series with labels ``of`` and ``why`` for every chosen target that does not answer Prometheus."""
    return f'label_replace(label_join(up{{{SCOPE}}} == 0, "of", "", "instance"), "why", "collection dead (no answer)", "", "")'


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Names and labels of the GPUs' series as the exporter publishes them; metrics as in the catalogue, values in base units.

    ``suffix``: suffix of board uids. ``legend``: legend of a GPU's series. ``by``: labels that identify GPUs, shown in legends
    and tables. ``alive``: expression with series as long as anything is collected. Values have the label ``uuid``; host and
    index are joined from ``gpu_info``.
    """

    suffix: str
    legend: str
    by: str
    alive: str

    def selector(self, metric: str, /, **labels: str) -> Any:
        """Return the published series of the chosen GPUs; ``labels`` as in the catalogue."""
        return f'{metric}{{{SCOPE}, uuid=~"$gpu"{matchers(labels)}}}'

    def asked(self, metric: str, function: str, labels: dict[str, str]) -> Any:
        """Return a function of each chosen GPU's series, with the labels of ``by``; ``{}`` in ``function`` is the selector."""
        return self.named(function.format(self.selector(metric, **labels)))

    def named(self, expr: str) -> str:
        """Return series of GPUs with the labels of ``by``."""
        return f"{expr}\n* on (job, instance, uuid) group_left (host, index) gpu_info{{{SCOPE}}}"

    def value(self, metric: str, /, **labels: str) -> Any:
        """Return a gauge of each chosen GPU."""
        return self.asked(metric, "{}", labels)

    def rate(self, metric: str, /, **labels: str) -> Any:
        """Return the rate of a counter of each chosen GPU per second."""
        return self.asked(metric, _RATED, labels)

    def increase(self, metric: str, /, **labels: str) -> Any:
        """Return the increase of a counter of each chosen GPU over the shown time."""
        return self.asked(metric, _GROWN, labels)

    def sum_of_rates(self, *metrics: str) -> str | None:
        """Return the sum of the rates of several counters of each chosen GPU, per second."""
        return "\n+\n".join(self.rate(metric) for metric in metrics)

    def missing(self, metric: str) -> str:
        """Return a series of NaN for every GPU without this metric, and for every exporter that does not answer.

        Label ``of`` names the GPU or exporter, ``why`` its state: the legend shows what the lines cannot.
        """
        absent = self._why("gpu_metric_absent_info", "not available ($1)", metric=metric)
        down = self._why("gpu_down_info", "collection dead ($1)")
        return f"NaN * (\n  {absent}\nor\n  {down}\nor\n  {gone()}\n)"

    def _why(self, metric: str, why: str, /, **labels: str) -> str:
        joined = f'label_join({self.value(metric, **labels)}, "of", " GPU ", "host", "index")'
        return f'label_replace({joined}, "why", "{why}", "reason", "(.*)")'


def lacking(hosts: str, why: str) -> str:
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


class Dcgm(Dialect):
    """Dialect of dcgm-exporter, or of ``rankscope exporter --compat dcgm``, limited to the default set of counters.

    A GPU divided by MIG has one series per instance. Metrics of the whole GPU, such as power, repeat the same value in each, so
    sums over GPUs must first aggregate by ``UUID``. A GPU that pods share has further series for each of them, of which the
    GPU's own is normally the largest.
    """

    def selector(self, metric: str, /, **labels: str) -> str | None:
        """See ``Dialect``."""
        counter = _counterpart(metric, labels)
        return None if counter is None else _dcgm_selector(counter)

    def asked(self, metric: str, function: str, labels: dict[str, str]) -> str | None:
        """See ``Dialect``. A counter that DCGM gives as a rate has no increase."""
        counter = _counterpart(metric, labels)
        if counter is None or not counter.rate:
            return self._scaled(counter, function)
        return None if function == _GROWN else self._scaled(counter, "{}")

    def sum_of_rates(self, *metrics: str) -> str | None:
        """See ``Dialect``."""
        names = set.intersection(*({one.name for one in BY_NAME[metric].dcgm if one.summed} for metric in metrics))
        return self._scaled(next((one for one in BY_NAME[metrics[0]].dcgm if one.name in names), None), "{}")

    def missing(self, metric: str) -> str:
        """See ``Dialect``. dcgm-exporter does not report which metrics a GPU lacks."""
        del metric
        return f"NaN * {gone()}"

    def named(self, expr: str) -> str:
        """See ``Dialect``. The series have all labels themselves."""
        return expr

    def _scaled(self, counter: DcgmName | None, function: str) -> str | None:
        if counter is None:
            return None
        selector = _dcgm_selector(counter)
        back = "" if counter.times == 1 else f" / {counter.times:.12g}" if counter.times > 1 else f" * {1 / counter.times:.12g}"
        return f"max by (instance, {self.by}) ({function.format(selector)}){back}"


def _dcgm_selector(counter: DcgmName) -> str:
    return f'DCGM_FI_{counter.name}{{{SCOPE}, UUID=~"$gpu"}}'


def _counterpart(metric: str, labels: dict[str, str]) -> DcgmName | None:
    """Return the default-set counter that equals the metric with these labels; ``None`` if there is none."""
    return next((one for one in BY_NAME[metric].dcgm if one.default_on and not one.summed and one.labels == labels), None)


NATIVE: Final = Dialect(
    suffix="",
    legend="{{host}} GPU {{index}}",
    by="host, index, uuid",
    alive=f"gpu_up{{{SCOPE}}} == 1",
)
DCGM: Final = Dcgm(
    suffix="-dcgm",
    legend="{{Hostname}}{{hostname}} GPU {{gpu}} {{GPU_I_PROFILE}}",
    by="Hostname, hostname, gpu, UUID, GPU_I_ID, GPU_I_PROFILE",
    alive=f"DCGM_FI_DEV_GPU_TEMP{{{SCOPE}}}",
)

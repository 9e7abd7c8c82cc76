"""What a board asks Prometheus for: the same quantities under the exporter's own names, or under those of dcgm-exporter.

Every quantity is named as in the exporter's catalogue and comes in its base unit. A dialect that has no name for one answers
``None``, and the panel that needs it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from rankscope.exporter.catalogue import BY_NAME, DcgmName

SCOPE: Final = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
"""What the variables of every board pick. Not every site has the label ``cluster``: all of them is ``.*``, which no label is, too."""

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"


class Dialect(Protocol):
    """Names and labels of the GPUs' series."""

    name: str
    suffix: str
    """Of uids and titles."""
    legend: str
    """Of a GPU's series."""
    by: str
    """Labels that tell GPUs apart and that a legend or a table shows."""
    host: str
    """Label with the node's name."""
    uuid: str
    """Label with the GPU's uuid."""
    alive: str
    """There as long as something is collected."""

    def selector(self, metric: str, **labels: str) -> str | None:
        """The series of the chosen GPUs, as they are published; ``labels`` as in the catalogue."""

    def value(self, metric: str, **labels: str) -> str | None:
        """A gauge of each chosen GPU, in base units, with the labels of ``by``."""

    def rate(self, metric: str, **labels: str) -> str | None:
        """A counter of each chosen GPU per second, in base units, with the labels of ``by``."""

    def increase(self, metric: str, **labels: str) -> str | None:
        """What a counter of each chosen GPU grew by over the time shown, with the labels of ``by``."""

    def missing(self, metric: str) -> str:
        """A series without values for every GPU that does not give this metric, and for every exporter that is gone.

        ``of`` says which, ``why`` in what state it is: a legend shows what the lines cannot.
        """


def matchers(labels: dict[str, str]) -> str:
    """Further matchers, each with a comma before it. A value that begins with ``~`` is a regular expression, with ``!`` is none of it."""
    parts = []
    for name, value in labels.items():
        operator, text = ("=~", value[1:]) if value.startswith("~") else ("!=", value[1:]) if value.startswith("!") else ("=", value)
        parts.append(f', {name}{operator}"{text}"')
    return "".join(parts)


def gone() -> str:
    """A label pair ``of`` and ``why`` for every target of the chosen ones that does not answer Prometheus."""
    return (
        f'label_replace(label_join(up{{{SCOPE}}} == 0, "of", "", "instance"), "why", "collection dead (no answer)", "", "")'
    )


@dataclass(frozen=True, slots=True)
class Native:
    """The exporter's own page. Values are known by ``uuid``; host and index are joined from ``gpu_info``."""

    name: str = "native"
    suffix: str = ""
    legend: str = "{{host}} GPU {{index}}"
    by: str = "host, index, uuid"
    host: str = "host"
    uuid: str = "uuid"
    alive: str = f"gpu_up{{{SCOPE}}} == 1"

    def selector(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        return f'{metric}{{{SCOPE}, uuid=~"$gpu"{matchers(labels)}}}'

    def value(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        return named(f"{self.selector(metric, **labels)}")

    def rate(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        return named(f"rate({self.selector(metric, **labels)}[{RATE}])")

    def increase(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        return named(f"increase({self.selector(metric, **labels)}[{RANGE}])")

    def missing(self, metric: str) -> str:
        """See ``Dialect``."""
        absent = _told(f"{self.selector('gpu_metric_supported', metric=metric)}", "not available ($1)")
        down = _told(f"{self.selector('gpu_down_info')}", "collection dead ($1)")
        return f"NaN * (\n  {absent}\nor\n  {down}\nor\n  {gone()}\n)"


def named(expr: str) -> str:
    """The same series of GPUs with the host and the index that ``gpu_info`` has for them."""
    return f"{expr}\n* on (job, instance, uuid) group_left (host, index) gpu_info{{{SCOPE}}}"


def _told(series: str, why: str) -> str:
    joined = f'label_join({named(series)}, "of", " GPU ", "host", "index")'
    return f'label_replace({joined}, "why", "{why}", "reason", "(.*)")'


@dataclass(frozen=True, slots=True)
class Dcgm:
    """dcgm-exporter, or the page of ``rankscope exporter --compat dcgm``: what is in its default set of counters.

    A GPU divided by MIG has a series for each instance, and for what only the whole has (power, say) the same value several
    times: sums over GPUs are over ``UUID``.
    """

    name: str = "dcgm"
    suffix: str = "-dcgm"
    legend: str = "{{Hostname}}{{hostname}} GPU {{gpu}} {{GPU_I_PROFILE}}"
    by: str = "Hostname, hostname, gpu, UUID, GPU_I_ID, GPU_I_PROFILE"
    host: str = "Hostname"
    uuid: str = "UUID"
    alive: str = f"DCGM_FI_DEV_GPU_TEMP{{{SCOPE}}}"

    def selector(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        counter = _counterpart(metric, labels)
        return None if counter is None else f'DCGM_FI_{counter.name}{{{SCOPE}, UUID=~"$gpu"}}'

    def value(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        return self._scaled(metric, labels, "{}")

    def rate(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        return self._scaled(metric, labels, f"rate({{}}[{RATE}])")

    def increase(self, metric: str, **labels: str) -> str | None:
        """See ``Dialect``."""
        return self._scaled(metric, labels, f"increase({{}}[{RANGE}])")

    def missing(self, metric: str) -> str:
        """See ``Dialect``. dcgm-exporter does not say what a GPU cannot give."""
        del metric
        return f"NaN * {gone()}"

    def _scaled(self, metric: str, labels: dict[str, str], function: str) -> str | None:
        counter, selector = _counterpart(metric, labels), self.selector(metric, **labels)
        if counter is None or selector is None:
            return None
        back = "" if counter.times == 1 else f" / {counter.times:.12g}" if counter.times > 1 else f" * {1 / counter.times:.12g}"
        return function.format(selector) + back


def _counterpart(metric: str, labels: dict[str, str]) -> DcgmName | None:
    """A counter of the default set that is all of the metric with these labels."""
    return next((one for one in BY_NAME[metric].dcgm if one.default_on and one.labels == labels), None)


NATIVE: Final = Native()
DCGM: Final = Dcgm()

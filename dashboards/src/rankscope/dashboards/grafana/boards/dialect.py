"""What a board asks Prometheus for: the same quantities under the exporter's own names, or under those of dcgm-exporter.

Every quantity is named as in the exporter's catalogue and comes in its base unit. A dialect that has no name for one answers
``None``, and the panel that needs it is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from rankscope.exporter.catalogue import BY_NAME, DcgmName

SCOPE: Final = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
"""What the variables of every board pick. Not every site has the label ``cluster``: its "all" is ``.*``, which fits none, too."""

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect(ABC):
    """Names and labels of the GPUs' series.

    ``suffix`` is of uids, ``legend`` of a GPU's series, ``by`` are the labels that tell GPUs apart and that legends and tables
    show, ``alive`` has series as long as something is collected.
    """

    name: str
    suffix: str
    legend: str
    by: str
    alive: str

    @abstractmethod
    def selector(self, metric: str, /, **labels: str) -> str | None:
        """The series of the chosen GPUs, as they are published; ``labels`` as in the catalogue."""

    @abstractmethod
    def value(self, metric: str, /, **labels: str) -> str | None:
        """A gauge of each chosen GPU, in base units, with the labels of ``by``."""

    @abstractmethod
    def rate(self, metric: str, /, **labels: str) -> str | None:
        """A counter of each chosen GPU per second, in base units, with the labels of ``by``."""

    @abstractmethod
    def sum_of_rates(self, *metrics: str) -> str | None:
        """Several counters of each chosen GPU per second, added up."""

    @abstractmethod
    def increase(self, metric: str, /, **labels: str) -> str | None:
        """What a counter of each chosen GPU grew by over the time shown, with the labels of ``by``."""

    @abstractmethod
    def missing(self, metric: str) -> str:
        """A series without values for every GPU that does not give this metric, and for every exporter that is gone.

        ``of`` says which, ``why`` in what state it is: a legend shows what the lines cannot.
        """


def matchers(labels: dict[str, str]) -> str:
    """Further matchers, each with a comma before it. A value that begins with ``!`` is what the label is not."""
    parts = [f', {name}!="{value[1:]}"' if value.startswith("!") else f', {name}="{value}"' for name, value in labels.items()]
    return "".join(parts)


def gone() -> str:
    """A label pair ``of`` and ``why`` for every target of the chosen ones that does not answer Prometheus."""
    return f'label_replace(label_join(up{{{SCOPE}}} == 0, "of", "", "instance"), "why", "collection dead (no answer)", "", "")'


class Native(Dialect):
    """The exporter's own page. Values are known by ``uuid``; host and index are joined from ``gpu_info``."""

    def selector(self, metric: str, /, **labels: str) -> str:
        """See ``Dialect``."""
        return f'{metric}{{{SCOPE}, uuid=~"$gpu"{matchers(labels)}}}'

    def value(self, metric: str, /, **labels: str) -> str:
        """See ``Dialect``."""
        return named(self.selector(metric, **labels))

    def rate(self, metric: str, /, **labels: str) -> str:
        """See ``Dialect``."""
        return named(f"rate({self.selector(metric, **labels)}[{RATE}])")

    def sum_of_rates(self, *metrics: str) -> str:
        """See ``Dialect``."""
        return "\n+\n".join(self.rate(metric) for metric in metrics)

    def increase(self, metric: str, /, **labels: str) -> str:
        """See ``Dialect``."""
        return named(f"increase({self.selector(metric, **labels)}[{RANGE}])")

    def missing(self, metric: str) -> str:
        """See ``Dialect``."""
        absent = _told(self.selector("gpu_metric_absent_info", metric=metric), "not available ($1)")
        down = _told(self.selector("gpu_down_info"), "collection dead ($1)")
        return f"NaN * (\n  {absent}\nor\n  {down}\nor\n  {gone()}\n)"


def state(name: str | None = None) -> str:
    """The recorded state of each chosen GPU, one that is gone for less than an hour included; its label ``state`` says which."""
    wanted = "" if name is None else f', state="{name}"'
    return (
        f'(uuid_state:gpu_state:active{{instance=~"$instance", uuid=~"$gpu"{wanted}}}'
        f" and on (instance) last_over_time(up{{{SCOPE}}}[1h]))"
    )


def of_instances(recorded: str) -> str:
    """Recorded series of the chosen hosts: whoever scrapes them is told by ``up`` alone, which is quicker than by every GPU."""
    return f"({recorded} and on (instance) up{{{SCOPE}}})"


def named(expr: str) -> str:
    """The same series of GPUs with the host and the index that ``gpu_info`` has for them."""
    return f"{expr}\n* on (job, instance, uuid) group_left (host, index) gpu_info{{{SCOPE}}}"


def _told(series: str, why: str) -> str:
    joined = f'label_join({named(series)}, "of", " GPU ", "host", "index")'
    return f'label_replace({joined}, "why", "{why}", "reason", "(.*)")'


class Dcgm(Dialect):
    """dcgm-exporter, or the page of ``rankscope exporter --compat dcgm``: what is in its default set of counters.

    A GPU divided by MIG has a series for each instance, and for what only the whole has (power, say) the same value several
    times: sums over GPUs are over ``UUID``.
    """

    def selector(self, metric: str, /, **labels: str) -> str | None:
        """See ``Dialect``."""
        counter = _counterpart(metric, labels)
        return None if counter is None else _dcgm_selector(counter)

    def value(self, metric: str, /, **labels: str) -> str | None:
        """See ``Dialect``."""
        return self._scaled(_counterpart(metric, labels), "{}")

    def rate(self, metric: str, /, **labels: str) -> str | None:
        """See ``Dialect``."""
        counter = _counterpart(metric, labels)
        return self._scaled(counter, f"rate({{}}[{RATE}])" if counter is not None and not counter.rate else "{}")

    def sum_of_rates(self, *metrics: str) -> str | None:
        """See ``Dialect``."""
        names = set.intersection(*({one.name for one in BY_NAME[metric].dcgm if one.summed} for metric in metrics))
        return self._scaled(next((one for one in BY_NAME[metrics[0]].dcgm if one.name in names), None), "{}")

    def increase(self, metric: str, /, **labels: str) -> str | None:
        """See ``Dialect``."""
        counter = _counterpart(metric, labels)
        return None if counter is None or counter.rate else self._scaled(counter, f"increase({{}}[{RANGE}])")

    def missing(self, metric: str) -> str:
        """See ``Dialect``. dcgm-exporter does not say what a GPU cannot give."""
        del metric
        return f"NaN * {gone()}"

    def _scaled(self, counter: DcgmName | None, function: str) -> str | None:
        if counter is None:
            return None
        selector = _dcgm_selector(counter)
        back = "" if counter.times == 1 else f" / {counter.times:.12g}" if counter.times > 1 else f" * {1 / counter.times:.12g}"
        return function.format(selector) + back


def _dcgm_selector(counter: DcgmName) -> str:
    return f'DCGM_FI_{counter.name}{{{SCOPE}, UUID=~"$gpu"}}'


def _counterpart(metric: str, labels: dict[str, str]) -> DcgmName | None:
    """A counter of the default set that is all of the metric with these labels."""
    return next((one for one in BY_NAME[metric].dcgm if one.default_on and not one.summed and one.labels == labels), None)


NATIVE: Final = Native(
    name="native",
    suffix="",
    legend="{{host}} GPU {{index}}",
    by="host, index, uuid",
    alive=f"gpu_up{{{SCOPE}}} == 1",
)
DCGM: Final = Dcgm(
    name="dcgm",
    suffix="-dcgm",
    legend="{{Hostname}}{{hostname}} GPU {{gpu}} {{GPU_I_PROFILE}}",
    by="Hostname, hostname, gpu, UUID, GPU_I_ID, GPU_I_PROFILE",
    alive=f"DCGM_FI_DEV_GPU_TEMP{{{SCOPE}}}",
)

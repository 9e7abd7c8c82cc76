"""One ``NvmlGpu`` in a process of its own, over the real nvidia-ml-py and the fake driver; a test tells it what to do next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import msgspec
from tests.exporter.fake_driver import FakeDriver

from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.source import GpuIdentity, GpuSample

DEFAULT = frozenset(name for name, collector in COLLECTORS.items() if collector.default_on)
ALL = frozenset(COLLECTORS)

# The marks of a step are the calls it made, in their order.
_CHILD = """
import sys, msgspec
from rankscope.exporter.nvml.gpu import NvmlGpu, load_nvml
from rankscope.exporter.source import SourceError
marks = []
gpu = NvmlGpu(load_nvml(), sys.argv[1], frozenset(sys.argv[2].split(",")), marks.append)
for line in sys.stdin:
    marks.clear()
    try:
        answer = {"answer": getattr(gpu, line.strip())()}
    except SourceError as error:
        answer = {"reason": error.reason, "text": str(error)}
    print(msgspec.json.encode({**answer, "marks": marks}).decode(), flush=True)
"""


class _Answer(msgspec.Struct):
    marks: list[str]
    answer: msgspec.Raw = msgspec.Raw(b"null")
    reason: str | None = None
    text: str = ""


class DownError(Exception):
    """The GPU raised ``SourceError``."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(text)


class Sample:
    """A sample, to be looked up by name."""

    def __init__(self, sample: GpuSample) -> None:
        self.raw = sample
        self.identity, self.processes = sample.identity, sample.processes
        self.xids = [event.xid for event in sample.xids]
        self.errors = {run.collector: run.error for run in sample.runs if run.error}
        self.absent = {(one.metric, *(value for _, value in one.labels)): one.reason for one in sample.absent}
        self.metrics = {reading.metric for reading in sample.readings}
        self.series = {(one.metric, one.labels, one.uuid): one.value for one in sample.readings}
        assert len(self.series) == len(sample.readings), "a series twice"

    def value(self, metric: str, uuid: str = "", **labels: str) -> float:
        return self.series[metric, tuple(labels.items()), uuid]

    def all(self, metric: str) -> dict[tuple[str, ...], float]:
        """Values by those of the labels."""
        return {tuple(value for _, value in labels): value for (name, labels, _), value in self.series.items() if name == metric}


class AskedGpu:
    """The process. ``marks`` are the calls of the last step."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin: IO[str] = process.stdin
        self._stdout: IO[str] = process.stdout
        self.marks: list[str] = []

    def _do(self, what: str) -> msgspec.Raw:
        print(what, file=self._stdin, flush=True)
        answer = msgspec.json.decode(self._stdout.readline(), type=_Answer)
        self.marks = answer.marks
        if answer.reason is not None:
            raise DownError(answer.reason, answer.text)
        return answer.answer

    def open(self) -> GpuIdentity:
        return msgspec.json.decode(self._do("open"), type=GpuIdentity)

    def sample(self) -> Sample:
        return Sample(msgspec.json.decode(self._do("sample"), type=GpuSample))

    def part(self) -> None:
        self._do("part")

    def close(self) -> None:
        self._do("close")


@contextmanager
def asking(fake: FakeDriver, gpu: int = 0, collectors: frozenset[str] = DEFAULT) -> Iterator[AskedGpu]:
    """A process that is about to open the GPU of this index."""
    command = [sys.executable, "-c", _CHILD, str(fake.gpus[gpu]["bus"]), ",".join(sorted(collectors))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **fake.env}
    ) as process:
        try:
            yield AskedGpu(process)
        finally:
            process.kill()


@contextmanager
def opened(fake: FakeDriver, gpu: int = 0, collectors: frozenset[str] = DEFAULT) -> Iterator[AskedGpu]:
    """A process that has opened it."""
    with asking(fake, gpu, collectors) as asked:
        asked.open()
        yield asked


def sample_of(fake: FakeDriver, gpu: int = 0, collectors: frozenset[str] = DEFAULT) -> Sample:
    """The second sample of a fresh process: the first has nothing to compare with."""
    with opened(fake, gpu, collectors) as asked:
        asked.sample()
        return asked.sample()

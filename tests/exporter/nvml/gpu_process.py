"""One ``NvmlGpu`` in its own process, over the real nvidia-ml-py and the fake driver, controlled by the test."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
from tests.exporter.fake_driver import FakeDriver

from rankscope.exporter.catalogue import COLLECTORS
from rankscope.exporter.source import GpuIdentity, GpuSample

DEFAULT = frozenset(name for name, collector in COLLECTORS.items() if collector.default_on)
ALL = frozenset(COLLECTORS)

# Forks one process per GPU: importing everything anew would take longer than the rest of most tests.
# The marks of a step are its calls, in order.
_NURSERY = """
import json, os, signal, socket, sys, msgspec, pynvml
from rankscope.exporter.nvml.gpu import NvmlGpu, load_nvml
from rankscope.exporter.source import SourceError

def serve(bus, collectors, env):
    os.environ.update(env)
    print(os.getpid(), flush=True)
    marks = []
    gpu = NvmlGpu(load_nvml(), bus, frozenset(collectors), marks.append)
    for line in sys.stdin:
        marks.clear()
        try:
            answer = {"answer": getattr(gpu, line.strip())()}
        except SourceError as error:
            answer = {"reason": error.reason, "text": str(error)}
        print(msgspec.json.encode({**answer, "marks": marks}).decode(), flush=True)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
requests = socket.socket(fileno=0)
while (received := socket.recv_fds(requests, 65536, 2))[0]:
    if os.fork() == 0:
        for number, fd in enumerate(received[1]):
            os.dup2(fd, number)
        os.closerange(3, 64)
        try:
            serve(*json.loads(received[0]))
        finally:
            os._exit(0)
    for fd in received[1]:
        os.close(fd)
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
    """A sample with look-ups by metric name."""

    def __init__(self, sample: GpuSample) -> None:
        self.raw = sample
        self.identity, self.processes = sample.identity, sample.processes
        self.xids = [event.xid for event in sample.xids]
        self.errors = {run.collector: run.error for run in sample.runs if run.error}
        self.absent = {(absence.metric, *(value for _, value in absence.labels)): absence.reason for absence in sample.absent}
        self.metrics = {reading.metric for reading in sample.readings}
        self.series = {(item.metric, item.labels, item.uuid): item.value for item in sample.readings}
        assert len(self.series) == len(sample.readings), "a series twice"

    def value(self, metric: str, uuid: str = "", **labels: str) -> float:
        return self.series[metric, tuple(labels.items()), uuid]

    def all(self, metric: str) -> dict[tuple[str, ...], float]:
        """Return the values of a metric by the values of its labels."""
        return {tuple(value for _, value in labels): value for (name, labels, _), value in self.series.items() if name == metric}


class AskedGpu:
    """The process of one GPU. ``marks`` are the calls of the last step."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self.pid = int(stdout.readline())
        self.marks: list[str] = []

    def _do(self, step: str) -> msgspec.Raw:
        print(step, file=self._stdin, flush=True)
        answer = msgspec.json.decode(self._stdout.readline(), type=_Answer)
        self.marks = answer.marks
        if answer.reason is not None:
            raise DownError(answer.reason, answer.text)
        return answer.answer

    def open(self) -> GpuIdentity:
        return msgspec.json.decode(self._do("open"), type=GpuIdentity)

    def sample(self) -> Sample:
        return Sample(msgspec.json.decode(self._do("sample"), type=GpuSample))

    def sample_activity(self) -> None:
        self._do("sample_activity")

    def close(self) -> None:
        self._do("close")


@functools.cache
def _nursery(library: Path) -> socket.socket:
    """Return the request socket of the process that forks the others; it ends with the tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
        process = subprocess.Popen([sys.executable, "-c", _NURSERY], stdin=theirs.fileno(), env=environment)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


@contextmanager
def asking(fake: FakeDriver, gpu: int = 0, collectors: frozenset[str] = DEFAULT) -> Iterator[AskedGpu]:
    """Yield a process that has not opened its GPU yet."""
    (stdin, to_it), (from_it, stdout) = os.pipe(), os.pipe()
    request = json.dumps([str(fake.gpus[gpu]["bus"]).lower(), sorted(collectors), fake.env])
    socket.send_fds(_nursery(fake.library), [request.encode()], [stdin, stdout])
    os.close(stdin)
    os.close(stdout)
    with os.fdopen(to_it, "w") as commands, os.fdopen(from_it) as answers:
        gpu_process = AskedGpu(commands, answers)
        try:
            yield gpu_process
        finally:
            os.kill(gpu_process.pid, signal.SIGKILL)


@contextmanager
def opened(fake: FakeDriver, gpu: int = 0, collectors: frozenset[str] = DEFAULT) -> Iterator[AskedGpu]:
    """Yield a process that has opened its GPU."""
    with asking(fake, gpu, collectors) as gpu_process:
        gpu_process.open()
        yield gpu_process


def sample_of(fake: FakeDriver, gpu: int = 0, collectors: frozenset[str] = DEFAULT) -> Sample:
    """Return the second sample of a process: the first has no previous one to compare with."""
    with opened(fake, gpu, collectors) as gpu_process:
        gpu_process.sample()
        return gpu_process.sample()

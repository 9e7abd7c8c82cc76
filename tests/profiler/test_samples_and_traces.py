"""Real torchrun job beside a real exporter and a trace collector: data in the run and in the collector."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.exporter import conftest as exporter
from tests.exporter.conftest import RunningExporter
from tests.exporter.fake_driver import FakeDriver, build_library, h100_state, uuid_of
from tests.profiler.otlp_collector import ReceivedSpan, collecting
from tests.profiler.ranks import PreloadedTorch

from rankscope.profiler.helper.publishing.spans import trace_id
from rankscope.profiler.launch import LaunchOptions, launch
from rankscope.runs.reader import RunReader

JOB = Path(__file__).parent / "jobs" / "tiny_ddp.py"
STEPS, EVERY, PAUSE_S = 16, 5, 0.15

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

start_exporter = exporter.start_exporter


@dataclass
class Recorded:
    """The job's run, and the received spans."""

    run: RunReader
    spans: list[ReceivedSpan]
    reported: str


@pytest.fixture
def recorded(
    torch_ranks: PreloadedTorch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    require_program: Callable[[str], str],
    start_exporter: Callable[..., RunningExporter],
) -> Recorded:
    """Recorded job of two ranks, one of which waits for its data so that the job takes a while."""
    require_program("gcc")
    driver = FakeDriver(tmp_path / "driver", build_library(), [h100_state(0), h100_state(1)])
    node = start_exporter(env=driver.env)
    node.wait_until(lambda: len(node.values("gpu_power_watts")) == 2)
    options = LaunchOptions(
        run_dir=tmp_path / "run",
        name="tiny",
        window_steps=0,
        exporter_url=f"http://{node.host}:{node.port}/metrics",
        otlp_every=EVERY,
    )
    with collecting() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
        outcome = launch(
            torch_ranks.command(2, JOB, "--steps", str(STEPS), "--fault", "data:1", "--pause", str(PAUSE_S)), options
        )
        assert outcome.status == 0
        spans = collector.spans()
    return Recorded(RunReader(tmp_path / "run"), spans, capfd.readouterr().err)


def test_job_has_hardware_samples_and_otlp_traces_that_match_the_records(recorded: Recorded) -> None:
    # One helper has sampled both GPUs, whole rounds at a time
    host = socket.gethostname()
    assert recorded.run.hosts() == [host]
    samples = list(recorded.run.hardware(host))
    assert samples
    uuids = {uuid_of(0), uuid_of(1)}
    assert all(sample.missing is None for sample in samples)
    assert Counter((sample.unix_ns, sample.gpu_uuid) for sample in samples) == Counter(
        (moment, uuid) for moment in {sample.unix_ns for sample in samples} for uuid in uuids
    )
    assert {(sample.power_watts, sample.utilization_ratio, sample.xid_errors) for sample in samples} == {(251.25, 0.93, 0)}
    assert samples[0].throttle_reasons == ["sw_power_cap"]
    # Every fifth step of both ranks is one trace, at the times of the records
    info = recorded.run.info
    records = {(rank, step.step): step for rank in (0, 1) for step in recorded.run.steps(0, rank)}
    expected = {key: step for key, step in records.items() if key[1] % EVERY == 0}
    assert {step for _, step in expected} >= {5, 10, 15}
    parents = {_key(span): span for span in recorded.spans if span.name == "step"}
    assert parents.keys() == expected.keys()
    for (rank, number), parent in parents.items():
        step = expected[rank, number]
        assert parent.trace_id == f"{trace_id(info.run_id, 0, number):032x}"
        assert (parent.start_unix_ns, parent.end_unix_ns) == (step.start_unix_ns, step.start_unix_ns + round(step.wall_us * 1000))
        assert parent.resource["service.name"] == "tiny"
        assert parent.resource["host.name"] == host
        children = [span for span in recorded.spans if span.parent_id == parent.span_id]
        assert {child.trace_id for child in children} == {parent.trace_id}
        assert all(parent.start_unix_ns <= child.start_unix_ns <= child.end_unix_ns <= parent.end_unix_ns for child in children)
        assert sum(child.end_unix_ns - child.start_unix_ns for child in children) == pytest.approx(
            step.wall_us * 1000, rel=1e-6, abs=20
        )
        # Every phase is where it was, and its stretches add up to the record.
        sums: Counter[str] = Counter()
        for child in children:
            sums[child.name] += child.end_unix_ns - child.start_unix_ns
        for phase, ns in sums.items():
            assert ns == pytest.approx(getattr(step.phases_us, phase) * 1000, rel=2e-7, abs=20)
        assert sum(map(_blocked_us, children)) == pytest.approx(step.blocked_total_us, abs=1)
        order = [child.name for child in sorted(children, key=lambda child: child.start_unix_ns)]
        assert order.index("forward") < order.index("backward") < order.index("optimizer")
    # And the slow rank's waiting for data is in its traces
    waits = [span for span in recorded.spans if span.name == "data" and span.resource["rankscope.rank"] == 1]
    assert len(waits) >= 3
    assert all(span.end_unix_ns - span.start_unix_ns >= PAUSE_S * 0.99e9 for span in waits)
    assert "rankscope: rank" not in recorded.reported


def _key(span: ReceivedSpan) -> tuple[int, int]:
    rank, step = span.resource["rankscope.rank"], span.attributes["rankscope.step"]
    assert isinstance(rank, int)
    assert isinstance(step, int)
    return rank, step


def _blocked_us(span: ReceivedSpan) -> float:
    blocked_us = span.attributes["rankscope.blocked_us"]
    assert isinstance(blocked_us, float)
    return blocked_us

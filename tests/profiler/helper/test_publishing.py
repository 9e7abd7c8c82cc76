"""Metrics that a rank publishes, read back by Prometheus' own parser, and the task that publishes them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from tests.profiler.handovers import context_of, handover_of
from tests.rank_file import RANK, RUN, STEP, WINDOW, rank_text, totals_of

from rankscope.profiler.helper.publishing.metrics_publisher import MetricsPublisher, render, samples
from rankscope.profiler.helper.publishing.totals import Totals
from rankscope.profiler.helper.tasks import HelperContext
from rankscope.profiler.scratch import hold, spooled
from rankscope.runs.metrics import MAX_SCRIPT_METRICS, MAX_SECTIONS, RANK_LABELS, RANK_METRICS, STEP_BUCKETS_SECONDS, STEP_TAGS
from rankscope.runs.records import PhaseTimes, RankActivity, RankInfo, RunInfo, StepRecord

BARE_RANK = RankInfo(rank=3, world_size=8, host="node", pid=1, start_unix_ns=1)
BARE_STEP = StepRecord(step=0, start_unix_ns=10**18, wall_us=2e6, phases_us=PhaseTimes(forward=1.5e6, backward=0.5e6))
STANDING = RankActivity(attempt=0, rank=3, phase="backward", waiting=True, since_unix_ns=5 * 10**9, updated_unix_ns=17 * 10**9)


def parsed(totals: Totals, rank: RankInfo = RANK, run: RunInfo = RUN) -> dict[tuple[str, str], float]:
    """Return (sample name, content of its own label) to value."""
    identity = dict(zip(RANK_LABELS, ("llama", "3", "0"), strict=True))
    by_key: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(render(identity, samples(run, rank, totals))):
        for sample in family.samples:
            assert sample.labels.items() >= identity.items()
            own = {name: value for name, value in sample.labels.items() if name not in identity}
            key = sample.name, "" if sample.name == "rank_info" else "".join(own.values())
            assert key not in by_key
            by_key[key] = sample.value
    return by_key


def after(*steps: StepRecord) -> Totals:
    totals = Totals()
    for step in steps:
        totals.add_step(step)
    return totals


def test_every_sample_is_in_the_metrics_table_with_the_labels_of_the_row() -> None:
    rows = {row.name: row for row in RANK_METRICS}
    seen = set()
    for name, labels, _, suffix in samples(RUN, RANK, totals_of(3), STANDING):
        assert set(labels) == {*rows[name].labels, *(["le"] if suffix == "_bucket" else [])}
        assert bool(suffix) == (rows[name].type == "histogram")
        seen.add(name)
    assert seen == rows.keys()


def test_only_rank_info_has_the_run_id() -> None:
    lines = [line for line in rank_text().splitlines() if RUN.run_id in line]

    assert [line.partition("{")[0] for line in lines] == ["rank_info"]
    assert [row.name for row in RANK_METRICS if "run_id" in row.labels] == ["rank_info"]


def test_promtool_check_metrics_finds_no_problem(require_program: Callable[[str], str]) -> None:
    checked = subprocess.run(
        [require_program("promtool"), "check", "metrics"], input=rank_text().encode(), capture_output=True, check=False
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_counters_add_up_over_steps() -> None:
    values = parsed(totals_of(2))

    assert values["rank_steps_total", ""] == 2
    assert values["rank_last_step", ""] == 1
    assert values["rank_last_step_timestamp_seconds", ""] == pytest.approx(1e9 + 2)
    assert values["rank_phase_seconds_total", "backward"] == pytest.approx(0.8)
    assert values["rank_blocked_seconds_total", "backward"] == pytest.approx(0.4)
    assert values["rank_device_seconds_total", "forward"] == pytest.approx(0.4)
    assert values["rank_device_blocked_seconds_total", "backward"] == pytest.approx(0.2)
    assert values["rank_cpu_seconds_total", ""] == pytest.approx(1.8)
    assert values["rank_run_queue_seconds_total", ""] == pytest.approx(0.02)
    assert values["rank_gc_seconds_total", ""] == pytest.approx(0.002)
    assert (values["rank_tokens_total", ""], values["rank_flops_total", ""]) == (8192, 2e12)
    assert values["rank_profiled_steps_total", ""] == 1
    # gauges are not summed
    assert values["rank_device_memory_peak_bytes", ""] == 3 * 2**29
    assert values["rank_allocator_retries_total", ""] == 2
    # cost of the recorder, always on and windows apart
    assert values["rank_recorder_seconds_total", "steps"] == pytest.approx(0.05)
    assert values["rank_recorder_seconds_total", "windows"] == pytest.approx(0.2)
    assert (values["rank_windows_total", "recorded"], values["rank_windows_total", "missed"]) == (1, 0)
    assert values["rank_recorder_budget_ratio", ""] == 0.01


def test_memory_gauge_keeps_the_last_reading() -> None:
    values = parsed(after(STEP, replace(STEP, step=1, allocated_bytes=None, resident_bytes=None)))

    assert values["rank_device_memory_allocated_bytes", ""] == 2**30
    assert values["rank_resident_memory_bytes", ""] == 2**32


def test_step_duration_histogram_buckets_are_cumulative() -> None:
    walls_s = [0.0004, 0.001, 0.3, 0.3, 20.0, 1000.0]
    values = parsed(after(*(replace(BARE_STEP, wall_us=wall_s * 1e6) for wall_s in walls_s)))

    for bound in STEP_BUCKETS_SECONDS:
        assert values["rank_step_duration_seconds_bucket", str(bound)] == sum(wall_s <= bound for wall_s in walls_s)
    assert values["rank_step_duration_seconds_bucket", "+Inf"] == values["rank_step_duration_seconds_count", ""] == 6
    assert values["rank_step_duration_seconds_sum", ""] == pytest.approx(sum(walls_s))
    assert (STEP_BUCKETS_SECONDS[0], STEP_BUCKETS_SECONDS[-1]) == (0.001, 600)


def test_metric_without_a_signal_is_absent_not_zero() -> None:
    values = parsed(after(BARE_STEP), BARE_RANK)

    assert {name for name, _ in values if not name.startswith("rank_step_duration_seconds")} == {
        "rank_info",
        "rank_steps_total",
        "rank_last_step",
        "rank_last_step_timestamp_seconds",
        "rank_phase_seconds_total",
        "rank_steps_tagged_total",
        "rank_profiled_steps_total",
        "rank_windows_total",
        "rank_recorder_dropped_total",
        "rank_recorder_disabled",
    }
    assert ("rank_phase_seconds_total", "data") not in values
    assert "rank_last_step" not in {name for name, _ in parsed(Totals(), BARE_RANK)}


@pytest.mark.parametrize(("waiting", "label"), [(True, "yes"), (False, "no"), (None, "unknown")])
def test_standstill_metric_has_the_duration_phase_and_waiting_label(waiting: bool | None, label: str) -> None:
    rows = samples(RUN, RANK, Totals(), replace(STANDING, waiting=waiting))
    collected = [(dict(row.labels), row.value) for row in rows if row.metric == "rank_standstill_seconds"]
    assert collected == [({"phase": "backward", "waiting": label}, 12)]


def test_unblocked_rank_reports_zero_blocked_seconds() -> None:
    values = parsed(after(replace(BARE_STEP, blocked_us=PhaseTimes())))

    blocked = {phase: value for (name, phase), value in values.items() if name == "rank_blocked_seconds_total"}
    assert blocked == {"forward": 0, "backward": 0}


def test_window_gauges_use_the_last_window_and_counters_all_windows() -> None:
    totals = after(STEP)
    for step, overlap_us in ((10, 1e5), (11, 3e5), (50, 3e5), (51, 3.5e5)):
        totals.add_window(replace(WINDOW, step=step, overlap_us=overlap_us, exposed_communication_us=4e5 - overlap_us))
    values = parsed(totals)

    assert values["rank_overlap_ratio", ""] == pytest.approx(0.65 / 0.8)
    assert values["rank_exposed_communication_seconds", ""] == pytest.approx(0.15 / 2)
    assert values["rank_window_seconds_total", "overlap"] == pytest.approx(1.05)
    assert values["rank_window_seconds_total", "exposed_communication"] == pytest.approx(0.55)

    totals.add_window(replace(WINDOW, step=90, communication_us=0.0, overlap_us=0.0, exposed_communication_us=0.0))
    values = parsed(totals)
    assert ("rank_overlap_ratio", "") not in values, "without communication nothing can be hidden"
    assert values["rank_exposed_communication_seconds", ""] == 0


def test_custom_step_tags_create_no_series() -> None:
    values = parsed(after(replace(BARE_STEP, tags=["gc", "gc", "epoch 17"]), replace(BARE_STEP, tags=["gc", "checkpoint"])))

    tagged = {tag: value for (name, tag), value in values.items() if name == "rank_steps_tagged_total"}
    assert tagged == dict.fromkeys(STEP_TAGS, 0) | {"gc": 2, "checkpoint": 1}


def test_section_labels_are_bounded_and_the_rest_is_summed_as_other() -> None:
    many = {f"step {number}": 1e6 for number in range(100)}
    odd = {"a\x1bb": 1e6, "a\x00b": 1e6, "x" * 500: 1e6, "x" * 400: 1e6}
    totals = after(replace(BARE_STEP, sections_us=odd), replace(BARE_STEP, sections_us=many))
    sections = {section: value for (name, section), value in parsed(totals).items() if name == "rank_section_seconds_total"}

    assert len(sections) == MAX_SECTIONS + 1
    assert (sections["a?b"], sections["x" * 128]) == (2, 2)
    assert sum(sections.values()) == 104
    assert sections["other"] == 104 - 4 - (MAX_SECTIONS - 2)


def test_script_metrics_are_gauges_with_a_bounded_number_of_names() -> None:
    many = {f"number {number}": 1.0 for number in range(100)}
    totals = after(
        replace(BARE_STEP, metrics={"loss": 2.5, "a\x1bb": 1.0}),
        replace(BARE_STEP, metrics=many),
        replace(BARE_STEP, metrics={"loss": 2.0}),
    )
    numbers = {label: value for (name, label), value in parsed(totals).items() if name == "rank_script_metric"}

    assert len(numbers) == MAX_SCRIPT_METRICS
    assert (numbers["loss"], numbers["a?b"]) == (2.0, 1.0)
    assert not any(name == "rank_script_metric" for name, _ in parsed(after(BARE_STEP)))


@pytest.fixture
def context(tmp_path: Path) -> Callable[..., HelperContext]:
    """Factory of ``HelperContext``: a rank with a launcher and a spool; ``tmp_path / "job"`` is the launcher's folder."""
    spool, job = tmp_path / "spool", tmp_path / "job"
    spool.mkdir()
    job.mkdir()
    hold(job)

    def make(*, scratch: str = "rank", **fields: Any) -> HelperContext:
        (job / scratch).mkdir(exist_ok=True)
        more: dict[str, Any] = {"run": lambda: RUN, "info": lambda: RANK, **fields}
        return context_of(handover_of(Path(), spool=spool), job / scratch, **{"report": pytest.fail} | more)

    return make


def names(tmp_path: Path) -> list[str]:
    return sorted(entry.name for entry in (tmp_path / "spool").iterdir())


def test_launcher_lists_the_metrics_file_until_the_rank_ends(context: Callable[..., HelperContext], tmp_path: Path) -> None:
    task = MetricsPublisher(context())
    task.step(STEP)
    task.tick()
    assert names(tmp_path) == spooled(tmp_path / "job") == ["llama-3-0.prom"]
    assert "rank_steps_total" in (tmp_path / "spool" / "llama-3-0.prom").read_text()

    task.end(vanished=False)

    # another job may use the name by now
    assert names(tmp_path) == spooled(tmp_path / "job") == []


def test_metrics_file_of_a_vanished_rank_is_kept_for_the_launcher(context: Callable[..., HelperContext], tmp_path: Path) -> None:
    task = MetricsPublisher(context())
    task.tick()
    task.end(vanished=True)

    assert names(tmp_path) == spooled(tmp_path / "job") == ["llama-3-0.prom"]


def test_replacement_helper_reuses_the_metrics_file_of_the_rank(context: Callable[..., HelperContext], tmp_path: Path) -> None:
    MetricsPublisher(context()).tick()
    task = MetricsPublisher(context())
    task.tick()
    assert names(tmp_path) == ["llama-3-0.prom"]

    MetricsPublisher(context(scratch="another process")).tick()
    assert names(tmp_path) == ["llama-3-0.prom", "llama-3-1.prom"]


def test_metrics_file_is_renamed_when_the_run_name_changes(context: Callable[..., HelperContext], tmp_path: Path) -> None:
    runs = [RUN]
    task = MetricsPublisher(context(run=lambda: runs[-1]))
    task.tick()
    runs.append(replace(RUN, name="first/launcher", run_id="its-id"))
    task._due = 0
    task.tick()

    assert names(tmp_path) == spooled(tmp_path / "job") == ["first_launcher-3-0.prom"]
    assert 'run_id="its-id"' in (tmp_path / "spool" / "first_launcher-3-0.prom").read_text()


def test_unwritable_spool_is_logged_once_and_retried(context: Callable[..., HelperContext], tmp_path: Path) -> None:
    collected: list[str] = []
    task = MetricsPublisher(context(report=collected.append))
    (tmp_path / "spool").rmdir()
    for _ in range(3):
        task._due = 0
        task.tick()
    assert len(collected) == 1
    assert "cannot write metrics" in collected[0]

    (tmp_path / "spool").mkdir()
    task._due = 0
    task.tick()
    assert names(tmp_path) == ["llama-3-0.prom"]


def test_documentation_has_the_rank_metrics_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "run-directory.md").read_text()
    rows = [
        f"| `{row.name}` | {row.type} | {', '.join(f'`{label}`' for label in row.labels)} | {row.help} |" for row in RANK_METRICS
    ]

    assert "\n".join(rows) in page

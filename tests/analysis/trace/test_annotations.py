"""Time that the host keeps the device waiting, by its annotations."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.trace_events import Event, annotation, kernel, launch, trace_event, trace_of

from rankscope.analysis.collectives.windows import step_breakdowns
from rankscope.analysis.trace.annotations import host_times, kind_of_annotation
from rankscope.analysis.trace.categories import NOTE
from rankscope.analysis.trace.columns import read_trace
from rankscope.analysis.trace.work import work_events


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data"),
        ("get_batch", "data"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("Optimizer.zero_grad#AdamW.zero_grad", "optimizer"),
        ("## forward ##", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("Forward 3", "forward"),
        ("## backward ##", "backward"),
        ("FullyShardedDataParallel._pre_backward_hook", "backward"),
        ("save_checkpoint", "checkpoint"),
        ("dcp.save", "checkpoint"),
        ("[pl][profile][Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end", "checkpoint"),
        ("torch/serialization.py(944): save", "checkpoint"),
        ("torch/distributed/checkpoint/state_dict_saver.py(87): async_save", "checkpoint"),
        ("train.py(12): save_checkpoint", "checkpoint"),
        ("## evaluation ##", "evaluation"),
        ("[pl][profile][Strategy]DDPStrategy.validation_step", "evaluation"),
        ("Python GC", "gc"),
        ("<built-in function collect>", "gc"),
        ("gc.collect", "gc"),
        ("activation checkpoint", None),
        ("checkpointed layer 3: recompute", None),
        ("load_checkpoint", None),
        ("nccl:all_reduce", None),
        ("ProfilerStep#7", None),
        ("FSDP::all_gather (layers.0)", None),
        ("", None),
    ],
)
def test_annotation_names_of_torch_and_scripts_are_classified(name: str, kind: str | None) -> None:
    assert kind_of_annotation(name) == kind


def launched(number: int, at: float, ts: float, dur: float, *, tid: int = 1, name: str = "mm") -> list[Event]:
    """Return a kernel or copy, and the call that launches it ``at`` a time."""
    return [launch(number, at, tid=tid), kernel(name, ts, dur, correlation=number)]


def two_steps(*more: Event) -> list[Event]:
    """Return two steps of 1,000 µs, in each of which the device is busy from 200 to 700, and ``more``."""
    events = list(more)
    for step in range(2):
        at = 1000.0 * step
        events.append(annotation(f"ProfilerStep#{step}", at, 1000))
        events += launched(step + 1, at + 150, at + 200, 500)
    return events


def times_of(folder: Path, events: list[Event]) -> dict[str, dict[int, float]]:
    trace = trace_of(folder, events)
    work = work_events(trace)
    result = host_times(trace, work, step_breakdowns(trace, work))
    assert result is not None
    return {kind: dict(by_step) for kind, by_step in result.items()}


def test_phase_counts_while_the_device_idles_in_the_extended_step(tmp_path: Path) -> None:
    # given a loader at the end of the step 0, after 100 µs of the optimizer that its work hides
    times = times_of(
        tmp_path,
        two_steps(
            annotation("Optimizer.step#AdamW.step", 600, 200),
            annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1000, 120),
        ),
    )
    # then the time before the first work of step 1 is of step 0, whose device window it makes longer
    assert times == {"data": {0: 120.0, 1: 0.0}, "optimizer": {0: 100.0, 1: 0.0}}


def test_activity_counts_with_the_work_it_launches(tmp_path: Path) -> None:
    # given a checkpoint from 600 on, with a copy of 150 µs, that waits for 100 µs of the step's work
    times = times_of(
        tmp_path,
        two_steps(annotation("save_checkpoint", 600, 400), *launched(9, 610, 750, 150, name="Memcpy DtoH (Device -> Pinned)")),
    )
    assert times["checkpoint"] == {0: 300.0, 1: 0.0}
    assert times["between_steps"] == {0: 300.0, 1: 0.0}


def test_passes_of_an_evaluation_are_no_phases(tmp_path: Path) -> None:
    times = times_of(
        tmp_path,
        two_steps(annotation("evaluate", 700, 300), annotation("## forward ##", 800, 100), annotation("## forward ##", 1100, 50)),
    )
    assert times["evaluation"] == {0: 300.0, 1: 0.0}
    assert times["forward"] == {0: 50.0, 1: 0.0}


def test_optimizer_that_runs_a_closure_is_no_phase(tmp_path: Path) -> None:
    """``Optimizer.step(closure)``, as in Lightning, has forward and backward inside its annotation."""
    step = annotation("Optimizer.step#AdamW.step", 100, 850)
    of_autograd = launched(9, 720, 730, 10, tid=2)
    assert "optimizer" not in times_of(tmp_path, two_steps(step, *of_autograd))
    assert "optimizer" in times_of(tmp_path, two_steps(step))


def test_annotations_of_other_threads_do_not_count_as_device_idle_time(tmp_path: Path) -> None:
    assert times_of(tmp_path, two_steps(annotation("save_checkpoint", 700, 300, tid=5))) == {}


def test_only_python_functions_that_interrupt_training_are_read(tmp_path: Path) -> None:
    events = two_steps(
        trace_event("python_function", "Python GC", 750, 50),
        trace_event("python_function", "torch/serialization.py(944): save", 800, 100),
        trace_event("python_function", "torch/utils/checkpoint.py(40): checkpoint", 900, 50),
        trace_event("python_function", "train.py(3): <module>", 0, 2000),
    )
    times = times_of(tmp_path, events)
    assert times["gc"] == {0: 50.0, 1: 0.0}
    assert times["checkpoint"] == {0: 100.0, 1: 0.0}
    trace = read_trace(tmp_path / "rank-0.json")
    assert "train.py(3): <module>" not in trace.names
    assert len(trace.rows(NOTE)) == 4


def test_host_times_are_unknown_without_host_annotations(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, launched(1, 150, 200, 500))
    assert host_times(trace, work_events(trace), []) is None

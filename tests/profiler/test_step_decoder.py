"""Words of a step and what they say: phases, evaluations, sections, and what a rank is doing now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.profiler.recorded_words import START, at
from tests.ring_step import SEEN, event, numbers

from rankscope.profiler import words
from rankscope.profiler.handover import MessageKind
from rankscope.profiler.phases import BACKWARD, DATA, H2D, OPTIMIZER, UNSEEN
from rankscope.profiler.step_decoder import StepDecoder, activity
from rankscope.profiler.words import (
    BATCH,
    CHECKPOINT_BEGINS,
    CHECKPOINT_ENDS,
    LEAVE,
    NO_BATCH,
    RAISED,
    READY,
    RETURNED,
    SECTION,
    SECTION_ENDS,
    TAG,
    UNSEEN_WAIT,
    WAIT,
    WAITED,
    bytes_of_message,
    detail,
    details_of_float,
    float_of,
    size_of_message,
    value_of,
    words_of_message,
)
from rankscope.profiler.work import MAX_NAME_BYTES, MAX_SECTIONS, Sections, short
from rankscope.runs.records import PHASES


@given(st.none() | st.integers(0, 2**62 - 2), st.none() | st.floats(allow_nan=False), st.binary(max_size=300))
def test_encoded_words_decode_to_the_same_value_and_are_never_zero(
    number: int | None, real: float | None, content: bytes
) -> None:
    assert value_of(detail(number)) == number
    assert float_of(*details_of_float(real)) == real
    message = words_of_message(MessageKind.WINDOW, content)
    kind, size, following = size_of_message(message[0])
    assert (kind, size, following) == (MessageKind.WINDOW, len(content), len(message) - 1)
    assert bytes_of_message(size, message[1:]) == content
    written = [detail(number), *details_of_float(real), *message]
    assert all(0 < word < 2**64 for word in written)


def test_names_are_truncated_at_a_character_and_are_always_encodable() -> None:
    assert short("forward") == "forward"
    assert short("\N{OWL}" * 100) == "\N{OWL}" * (MAX_NAME_BYTES // 4)
    assert short("caf\udce9") == "caf?"
    assert short(7) == "7"


def test_sections_are_summed_and_a_nested_repetition_counts_once() -> None:
    sections = Sections()
    for start in (0, 100):
        sections.enter("loss", start)
        sections.enter("inner", start + 10)
        sections.enter("loss", start + 20)
        sections.leave("loss", start + 30)
        sections.leave("inner", start + 40)
        sections.leave("loss", start + 50)
    sections.leave("never begun", 200)
    assert sections.take(200) == {"loss": 100, "inner": 60}
    assert sections.take(300) == {}
    for number in range(2 * MAX_SECTIONS):
        sections.enter(str(number), 300)
    assert len(sections.take(400)) == MAX_SECTIONS


ON, OFF = True, False


Events = Iterable[tuple[int, str]]


def decoded(events: Events, *, end: int) -> tuple[dict[str, int], list[str], tuple[int | None, int | None]]:
    """Return the phases, tags and work of a step with these events. A batch has 4 samples of 2 elements."""
    words_by_event: dict[str, list[int]] = {
        "data": [DATA],
        "batch": [words.BATCH, detail(4), detail(8)],
        "no more": [words.NO_BATCH],
        "backward": [BACKWARD],
        "optimizer": [OPTIMIZER],
        "end": [words.LEAVE],
        "batch without gradients": [words.BATCH_WITHOUT_GRADIENTS],
        "eval()": [words.MODEL_EVALUATES, detail(ON)],
        "eval() without gradients": [words.MODEL_EVALUATES, detail(OFF)],
        "train()": [words.MODEL_TRAINS, detail(ON)],
        "data to train on": [words.TRAINING_BATCH],
    }
    written = [word for at, name in events for word in event(words_by_event[name][0], at, *words_by_event[name][1:])]
    step = StepDecoder(lambda _: "").decode(written, 0, SEEN, 0, end)
    assert step.wall_ns == end
    times: dict[str, int] = {phase: time for phase, time in zip(PHASES, step.phases_ns, strict=True) if time not in (0, UNSEEN)}
    assert sum(times.values()) == end
    return times, step.work.tags, step.work.work[:2]


TRAINS = [(100, "data"), (110, "batch"), (140, "backward"), (190, "end"), (190, "optimizer"), (200, "end")]


TRAINED = {"data": 10, "forward": 30, "backward": 50, "optimizer": 10, "between_steps": 100}


EVALUATIONS: dict[str, Events] = {
    "batches without gradients": [(0, "batch without gradients"), (50, "batch without gradients")],
    "eval() and its batches": [(0, "eval()"), (10, "data"), (20, "batch"), (60, "data"), (60, "no more"), (70, "train()")],
    "eval() without gradients or loader": [(0, "eval() without gradients"), (90, "train()")],
    "a loader with gradients, and nobody says train()": [
        (0, "eval()"),
        (10, "data"),
        (20, "batch"),
        (60, "data"),
        (60, "no more"),
        (100, "data to train on"),
    ],
}


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_evaluation_before_a_step_is_between_steps(kind: str) -> None:
    times, tags, work = decoded([*EVALUATIONS[kind], *TRAINS], end=200)
    assert times == TRAINED
    assert tags == ["eval"]
    assert work == (4, 8)


@pytest.mark.parametrize("kind", list(EVALUATIONS)[:3])
def test_evaluation_within_a_step_is_not_a_forward_pass(kind: str) -> None:
    middle = [(at + 20, word) for at, word in EVALUATIONS[kind]]
    last = middle[-1][0]
    events = [(0, "data"), (10, "batch"), *middle, (last + 5, "backward"), (last + 55, "end"), (last + 55, "optimizer")]
    times, tags, work = decoded([*events, (last + 65, "end")], end=last + 65)
    assert times == {"data": 10, "forward": 15, "backward": 50, "optimizer": 10, "between_steps": last - 20}
    assert tags == ["eval"]
    assert work == (4, 8)


@pytest.mark.parametrize("frozen", ["before the loop", "in every step"])
def test_frozen_part_of_a_model_is_not_an_evaluation(frozen: str) -> None:
    first, second = [(100, "eval()")], [(112, "train()"), (113, "eval()")]
    events = [*first, *TRAINS] if frozen == "before the loop" else [*TRAINS[:2], *second, *TRAINS[2:]]
    times, tags, work = decoded(events, end=200)
    assert (times, tags, work) == (TRAINED, [], (4, 8))


def now_in(*happened: list[int]) -> tuple[str, int, bool] | None:
    doing = activity([word for words_ in happened for word in words_])
    return None if doing is None else (PHASES[doing.phase], doing.since_ns - START, doing.waits)


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        ([], None),
        ([at(TAG, 5, detail(0))], None),
        ([at(DATA, 10)], ("data", 10, False)),
        ([at(DATA, 10), at(BATCH, 20, *numbers(1, 1))], ("forward", 20, False)),
        ([at(DATA, 10), at(BATCH, 20, *numbers(1, 1)), at(H2D, 30), at(LEAVE, 40)], ("forward", 40, False)),
        ([at(DATA, 10), at(NO_BATCH, 20), at(CHECKPOINT_BEGINS, 30)], ("between_steps", 30, False)),
        ([at(BACKWARD, 10)], ("backward", 10, False)),
        ([at(BACKWARD, 10), at(WAIT, 20)], ("backward", 20, True)),
        ([at(BACKWARD, 10), at(WAIT, 20), at(WAITED, 30)], ("backward", 30, False)),
        ([at(BACKWARD, 10), at(LEAVE, 40)], ("optimizer", 40, False)),
        ([at(BACKWARD, 10), at(READY, 20), at(LEAVE, 40), at(OPTIMIZER, 50), at(RAISED, 60)], ("optimizer", 60, False)),
        ([at(OPTIMIZER, 10), at(LEAVE, 20)], ("between_steps", 20, False)),
    ],
)
def test_current_phase_of_a_rank_is_decoded(happened: Sequence[list[int]], expected: tuple[str, int, bool] | None) -> None:
    assert now_in(*happened) == expected


@pytest.mark.parametrize(
    ("happened", "ready_ns", "expected"),
    [
        ([at(BACKWARD, 10)], START + 20, ("backward", 20, True)),
        ([at(BACKWARD, 10)], START + 5, ("backward", 10, False)),
        ([at(BACKWARD, 10), at(LEAVE, 30)], START + 20, ("optimizer", 30, False)),
        ([at(BACKWARD, 10), at(RETURNED, 30)], START + 20, ("backward", 30, False)),
        ([at(DATA, 10)], START + 20, ("data", 10, False)),
    ],
)
def test_backward_pass_waits_once_the_graph_is_exhausted(
    happened: Sequence[list[int]], ready_ns: int, expected: tuple[str, int, bool]
) -> None:
    doing = activity([word for words_ in happened for word in words_], ready_ns)
    assert doing is not None
    assert (PHASES[doing.phase], doing.since_ns - START, doing.waits) == expected


def test_activity_includes_checkpoint_section_and_unseen_waits() -> None:
    sections = [*at(SECTION, 1, detail(3)), *at(SECTION, 2, detail(4)), *at(SECTION_ENDS, 3, detail(4))]
    inside = activity([*sections, *at(CHECKPOINT_BEGINS, 5), *at(UNSEEN_WAIT, 6)])
    after = activity([*sections, *at(CHECKPOINT_BEGINS, 5), *at(CHECKPOINT_ENDS, 7)])
    assert inside is not None
    assert after is not None
    assert (inside.section, inside.checkpoint, inside.unseen) == (3, True, True)
    assert (after.section, after.checkpoint, after.unseen) == (3, False, False)

"""Process groups besides DDP's make own time on a device unknown."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

pytestmark = pytest.mark.usefixtures("require_torch")


@dataclass
class Group:
    """Process group that counts its collectives."""

    group_name: str
    issued: int = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.issued


def test_communication_in_other_groups_is_known_from_the_first_look_at_it() -> None:
    from rankscope.profiler.rank.wrappers.groups import EVERY, OtherGroups

    data, tensor, host = Group("0"), Group("1"), Group("2")
    others = OtherGroups(lambda: [(data, "nccl"), (tensor, "nccl"), (host, "gloo")])
    assert others.communicate(0, [data]), "one look tells nothing"
    data.issued, host.issued = 5, 7
    assert not others.communicate(1, [data]), "DDP's own group, and one in which the host waits"
    tensor.issued = 1
    assert not others.communicate(2, [data]), "it is not looked at in every step"
    assert others.communicate(1 + EVERY, [data])
    assert not others.communicate(1 + 2 * EVERY, [data]), "a checkpoint's collectives need not last"


def test_groups_that_do_not_tell_and_jobs_without_groups() -> None:
    from rankscope.profiler.rank.wrappers.groups import OtherGroups

    others = OtherGroups(lambda: [(object(), "nccl")])
    assert [others.communicate(step, []) for step in range(3)] == [True, False, False]
    none = OtherGroups()
    assert [none.communicate(step, []) for step in range(3)] == [True, False, False]


def test_where_torch_does_not_list_its_groups_they_may_communicate() -> None:
    from rankscope.profiler.rank.wrappers.groups import EVERY, OtherGroups

    def missing() -> list[tuple[object, str]]:
        raise AttributeError("module has no attribute _world")

    others = OtherGroups(missing)
    assert all(others.communicate(step, []) for step in range(3 * EVERY))


def test_own_time_on_a_device_needs_a_pass_that_reduced_gradients() -> None:
    """A replayed CUDA graph runs none, and its waits are inside the graph."""
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.rank.wrappers.ddp import Tail
    from rankscope.profiler.rank.wrappers.groups import OtherGroups
    from rankscope.profiler.ring import RingWriter
    from rankscope.profiler.settings import RecorderSettings

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    recorder._others = OtherGroups(list)
    recorder._others.communicate(0, [])
    recorder.step_number = 1
    recorder.gradients.present = True
    assert not recorder._is_signalled()
    tail = Tail(None, RingWriter().ready)
    tail.stamps.append(40)
    assert recorder.enter_backward()
    recorder.leave_backward(tail)
    assert recorder._is_signalled()
    recorder.disable("the test is over")

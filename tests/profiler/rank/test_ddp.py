"""End of this rank's own part of a backward pass, under DDP."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import pickle
import signal
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402  # torch may be missing
from torch import (  # noqa: E402
    Tensor,
    futures,
    nn,
)
from torch._C._distributed_c10d import HashStore  # noqa: E402
from torch.autograd import Variable  # noqa: E402
from torch.autograd.graph import get_gradient_edge  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from rankscope.profiler.rank.wrappers import ddp  # noqa: E402
from rankscope.profiler.ring import RingWriter  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_rank_world() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Events in order, including each reading of the clock."""
    seen: list[str] = []

    def clock() -> int:
        seen.append("exhausted")
        return len(seen)

    monkeypatch.setattr(ddp, "now", clock)
    return seen


def watched(model: nn.Module, **options: Any) -> tuple[DistributedDataParallel, ddp.PassEndDetector]:
    parallel = DistributedDataParallel(model, **options)
    gradients = ddp.PassEndDetector(RingWriter().ready)
    gradients.adopt(parallel)
    return parallel, gradients


def noting(model: nn.Module, events: list[str]) -> None:
    """Record when the gradients of ``model`` are ready."""
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _parameter, name=name: events.append(name))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("watch", ["watch", "watch_pass"])
@pytest.mark.parametrize(
    "options", [{}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}]
)
def test_pass_ends_after_the_last_gradient_and_before_the_ddp_wait(
    events: list[str], options: dict[str, bool], watch: str
) -> None:
    model = nn.Linear(4, 1)
    parallel, gradients = watched(model, **options)
    noting(model, events)

    def reduced(_state: None, bucket: Any) -> Any:
        future: Any = futures.Future()
        future.set_result(bucket.buffer())
        # Queued like DDP's own waiting, which comes at the same moment.
        Variable._execution_engine.queue_callback(lambda: events.append("waited"))
        return future

    reduced.__annotations__.clear()  # DDP compares them with types, but here they are strings
    parallel.register_comm_hook(None, reduced)
    for _ in range(3):
        loss = parallel(torch.ones(2, 4)).sum()
        events.clear()
        pass_end = getattr(gradients, watch)(loss)
        loss.backward()
        assert pass_end is not None
        assert pass_end is gradients.shared_end or watch == "watch" or "find_unused_parameters" in options
        assert sorted(events[:2]) == ["bias", "weight"]
        assert events[2:] == ["exhausted", "waited"]
        assert list(pass_end.stamps) == [3]


def test_pass_without_synchronisation_has_no_tail(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    with parallel.no_sync():
        loss = parallel(torch.ones(2, 4)).sum()
        assert gradients.watch(loss) is None
    assert gradients.watch(loss) is not None
    other, _ = watched(nn.Linear(4, 1))
    gradients.adopt(other)
    with parallel.no_sync():
        assert gradients.watch(loss) is not None, "the other model does"


def test_every_kind_of_backward_root_is_followed(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    aside = nn.Linear(4, 1)

    def loss() -> Tensor:
        return parallel(torch.ones(2, 4)).sum()  # type: ignore[no-any-return]

    for roots in (
        loss,
        lambda: [loss()],
        lambda: (aside(torch.ones(1, 4)).sum(), loss()),
        lambda: [get_gradient_edge(loss())],
    ):
        roots_given = roots()
        pass_end = gradients.watch(roots_given)
        torch.autograd.backward(roots_given, [torch.ones(())] if isinstance(roots_given, list) else None)
        assert pass_end is not None
        assert pass_end.stamps
        assert events.count("exhausted") == 1, "once per pass, however many roots"
        events.clear()
    empty: list[Tensor] = []
    for nothing in (torch.ones(1), None, 3, empty):
        unseen = gradients.watch(nothing)
        assert unseen is not None
        assert not unseen.stamps


def test_backward_twice_over_one_graph_is_two_passes(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    first = gradients.watch(loss)
    loss.backward(retain_graph=True)
    assert first is not None
    ready = list(first.stamps)
    second = gradients.watch(loss)
    assert second is not None
    with parallel.no_sync():
        loss.backward()
    assert (list(first.stamps), list(second.stamps)) == (ready, [2])


def test_repeated_backward_over_one_graph_has_constant_cost() -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    calls: list[object] = []
    for number in range(50):
        gradients.watch(loss)
        gradients._hooks[0] = calls.append
        loss.backward(retain_graph=True)
        assert len(calls) == number + 1


def test_nested_passes_have_separate_ends(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given reentrant checkpoints: the last gradients, and DDP's waiting, are inside a pass that one of them runs
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            first: Tensor = checkpoint(self.layers[0], x, use_reentrant=True)
            return self.layers[1](first)  # type: ignore[no-any-return]

    parallel, gradients = watched(Checkpointed())
    noting(layers[0], events)
    pass_ends: list[ddp.PassEnd | None] = []
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        pass_ends.append(gradients.watch(tensors))
        original(tensors, *args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", backward)
    # When the model runs a backward pass
    parallel(torch.ones(2, 4, requires_grad=True)).sum().backward()
    # Then both passes have an end of their own, the inner one first
    outer, inner = pass_ends
    assert outer is not None
    assert inner is not None
    assert sorted(events[:2]) == ["bias", "weight"]
    assert (list(inner.stamps), list(outer.stamps)) == ([3], [4])


def test_released_pass_end_is_reused_by_the_next_pass(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    pass_ends: list[ddp.PassEnd] = []
    for _ in range(3):
        loss = parallel(torch.ones(2, 4)).sum()
        pass_end = gradients.watch(loss)
        assert pass_end is not None
        before = list(pass_end.stamps)
        loss.backward()
        assert (before, list(pass_end.stamps)) == ([], [len(events)])
        gradients.passed(pass_end)
        pass_ends.append(pass_end)
    assert pass_ends[0] is pass_ends[1] is pass_ends[2]
    assert len(events) == 3


def test_deleted_model_is_forgotten(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = nn.Linear(4, 1)(torch.ones(2, 4)).sum()
    assert gradients.present
    del parallel
    gc.collect()
    assert gradients.watch(loss) is None
    assert not gradients.present


def test_pass_that_begins_while_the_recorder_closes_runs_normally(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    gradients.close()
    gradients._follow(loss.grad_fn)
    loss.backward()
    assert parallel.module.weight.grad is not None


def test_torch_function_modes_of_the_script_do_not_affect_the_detector() -> None:
    class Refusing(TorchFunctionMode):
        def __torch_function__(self, *_: Any) -> Any:
            raise NotImplementedError

    with Refusing():
        ddp.PassEndDetector(RingWriter().ready)


class TooLongError(Exception):
    """Raised by the handler of a signal."""


def test_signal_handler_exception_in_backward_is_raised_after_ddp_ends() -> None:
    parallel, gradients = watched(nn.Linear(4, 1))

    def handler(*_: object) -> None:
        raise TooLongError

    # Builtins only: they send the signal, and no Python bytecode runs that would handle it
    sent = map(deque[int](maxlen=1).append, map(ctypes.CDLL(None)["raise"], [signal.SIGUSR1]))
    parallel.module.weight.register_hook(partial(next, sent))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        loss = parallel(torch.ones(2, 4)).sum()
        pass_end = gradients.watch(loss)
        with pytest.raises(TooLongError):
            loss.backward()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert pass_end is not None
    assert pass_end.stamps
    # DDP refuses to continue after an incomplete pass
    parallel(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize("lacks", ["no dictionaries of hooks", "no callbacks"])
def test_torch_without_the_private_api_detects_no_end_and_breaks_nothing(
    events: list[str], monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    roots_given = loss
    if lacks == "no dictionaries of hooks":
        monkeypatch.setattr(ddp, "Tensor", Root)
        roots_given = Root(loss.grad_fn)
    else:
        monkeypatch.setattr(ddp, "_queue", None)
    pass_end = gradients.watch(roots_given)
    loss.backward()
    assert pass_end is not None
    assert not pass_end.stamps, "not seen, so it is not claimed"
    assert parallel.module.weight.grad is not None


class Root:
    """Tensor whose autograd node has only public attributes."""

    def __init__(self, node: Any) -> None:
        self.grad_fn = SimpleNamespace(register_prehook=node.register_prehook)


def test_compiled_autograd_has_no_detected_pass_end(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    monkeypatch.setattr(ddp, "_compiled_autograd", lambda: True)
    pass_end = gradients.watch(loss)
    loss.backward()
    assert pass_end is not None
    assert not pass_end.stamps, "not seen, so it is not claimed"


def test_one_hook_serves_all_passes_of_a_model(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    pass_end = gradients.shared_end
    assert pass_end is not None
    for _ in range(3):
        loss = parallel(torch.ones(2, 4)).sum()
        assert gradients.watch_pass(loss) is pass_end
        assert not pass_end.stamps
        events.clear()
        loss.backward()
        assert list(pass_end.stamps) == [1]
        assert events == ["exhausted"]
        gradients.passed(pass_end)
    assert gradients.shared_end is pass_end
    assert not loss.grad_fn.metadata, "no hook in the graph"


def test_one_hook_is_not_used_for_models_whose_passes_may_differ() -> None:
    _, differing = watched(nn.Linear(4, 1), find_unused_parameters=True)
    assert differing.shared_end is None
    _, gradients = watched(nn.Linear(4, 1))
    assert gradients.shared_end is not None
    other, _ = watched(nn.Linear(4, 1))
    gradients.adopt(other)
    assert gradients.shared_end is None


def test_frozen_parameters_have_no_hook(events: list[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    parallel, gradients = watched(model)
    loss = parallel(torch.ones(2, 4)).sum()
    pass_end = gradients.watch_pass(loss)
    loss.backward()
    assert pass_end is not None
    assert pass_end is gradients.shared_end
    assert pass_end.stamps


def ends_of_passes(parallel: DistributedDataParallel, gradients: ddp.PassEndDetector, events: list[str]) -> None:
    """Check that a pass is watched by itself, and that the hook of all is gone."""
    assert gradients.shared_end is None
    events.clear()
    loss = parallel(torch.ones(2, 4)).sum()
    pass_end = gradients.watch_pass(loss)
    loss.backward()
    assert pass_end is not None
    assert list(pass_end.stamps) == [1]
    assert events == ["exhausted"]


def test_one_hook_is_dropped_for_nested_passes(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    outer = gradients.watch_pass(loss)
    inner = gradients.watch(nn.Linear(4, 1)(torch.ones(2, 4)).sum())
    assert outer is not inner
    loss.backward()
    ends_of_passes(parallel, gradients, events)


def test_one_hook_is_dropped_if_a_pass_does_not_reach_the_hooked_parameter(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = nn.Linear(4, 1)(torch.ones(2, 4)).sum()
    pass_end = gradients.watch_pass(loss)
    loss.backward()
    assert pass_end is not None
    assert not pass_end.stamps
    gradients.passed(pass_end)
    ends_of_passes(parallel, gradients, events)


def test_one_hook_is_dropped_under_compiled_autograd(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    loss = parallel(torch.ones(2, 4)).sum()
    with monkeypatch.context() as compiled:
        compiled.setitem(sys.modules, ddp._COMPILED, SimpleNamespace(compiled_autograd_enabled=True))
        pass_end = gradients.watch_pass(loss)
        loss.backward()
    assert pass_end is not None
    assert not pass_end.stamps
    assert not events
    ends_of_passes(parallel, gradients, events)


def test_one_hook_adds_no_tail_to_a_pass_without_synchronisation(events: list[str]) -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    pass_end = gradients.shared_end
    for _ in range(2):
        with parallel.no_sync():
            loss = parallel(torch.ones(2, 4)).sum()
            assert gradients.watch_pass(loss) is None
            loss.backward()
        loss = parallel(torch.ones(2, 4)).sum()
        assert gradients.watch_pass(loss) is pass_end is not None
        assert not pass_end.stamps, "of this pass alone"
        loss.backward()
        assert pass_end.stamps


def test_one_hook_is_not_part_of_the_model() -> None:
    parallel, gradients = watched(nn.Linear(4, 1))
    assert gradients.shared_end is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (parallel, parallel.module):
            copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
            for saved in (model, model.state_dict(), list(model.parameters())):
                torch.save(saved, io.BytesIO())
            for copied in copies:
                copied(torch.ones(2, 4)).sum().backward()
    assert not gradients.shared_end.stamps, "passes of the copies are not those of the model"


def test_gradients_are_equal_with_one_hook_a_hook_per_pass_or_none() -> None:
    def trained(watching: str) -> list[Tensor]:
        torch.manual_seed(1)
        parallel = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
        gradients = ddp.PassEndDetector(RingWriter().ready)
        if watching:
            gradients.adopt(parallel)
        for _ in range(3):
            loss = parallel(torch.randn(16, 4)).square().mean()
            if watching:
                pass_end = (gradients.watch if watching == "each" else gradients.watch_pass)(loss)
                assert (pass_end is gradients.shared_end) is (watching == "all")
            loss.backward()
        return [parameter.grad for parameter in parallel.parameters() if parameter.grad is not None]

    unwatched = trained("")
    for watching in ("all", "each"):
        assert all(map(torch.equal, trained(watching), unwatched))
    assert len(unwatched) == 4

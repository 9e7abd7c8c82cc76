"""Waits for other ranks on the host: each way in which a script can wait is recorded, once."""

from __future__ import annotations

import operator
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402  # torch may be missing

from rankscope.profiler.rank.wrappers.waits import TimedOperator  # noqa: E402  # torch may be missing


class WaitCounter:
    """Recorder that counts waits like the real one: a nested wait is part of the outer one."""

    def __init__(self) -> None:
        self.inside = False
        self.waits = 0

    def enter_wait(self) -> int:
        if self.inside:
            return 0
        self.inside = True
        return 1

    def leave_wait(self, started: int) -> None:
        assert self.inside, started
        self.inside = False
        self.waits += 1


def test_nested_wait_counts_once_and_a_raising_wait_ends() -> None:
    recorder = WaitCounter()
    inner = TimedOperator(lambda: 1 / 0, lambda: recorder)
    outer = TimedOperator(inner, lambda: recorder)
    with pytest.raises(ZeroDivisionError):
        outer()
    assert (recorder.waits, recorder.inside) == (1, False)


def test_timed_operator_works_without_a_recorder() -> None:
    assert TimedOperator(operator.add, lambda: None)(2, 3) == 5


def test_timed_operator_keeps_the_identity_of_the_operator() -> None:
    recorder = WaitCounter()
    timed = TimedOperator(operator.add, lambda: recorder)
    # Torch keeps operators in sets and dictionaries by the hash of their builtin.
    assert hash(timed) == hash(operator.add)
    assert timed == operator.add
    assert timed != operator.sub
    assert timed.__qualname__ == operator.add.__qualname__
    assert timed(2, 3) == 5
    assert recorder.waits == 1


def test_operator_on_fake_tensors_counts_no_wait() -> None:
    recorder = WaitCounter()
    timed = TimedOperator(torch.ops.aten.neg.default, lambda: recorder)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(3))
        assert timed(fake).shape == (3,)
    assert recorder.waits == 0
    assert timed(torch.ones(3)).tolist() == [-1.0] * 3
    assert recorder.waits == 1


EVERY_WAIT = """
import os
import sys
import torch
import torch.distributed as dist
from rankscope.profiler.rank.wrappers import waits

class WaitCounter:
    inside, waits = False, 0
    def enter_wait(self):
        if self.inside:
            return 0
        self.inside = True
        return 1
    def leave_wait(self, started):
        assert self.inside
        self.inside = False
        self.waits += 1

counter = WaitCounter()
before = {op: hash(op) for op in (torch.ops._c10d_functional.wait_tensor, torch.ops._c10d_functional.wait_tensor.default)}
waits.watch(lambda: None if torch.compiler.is_compiling() else counter)
assert all(hash(op) == was for op, was in before.items())
assert "torch.distributed.fsdp" not in sys.modules and "torch.distributed.tensor" not in sys.modules, "nothing is imported for it"
import torch.distributed._functional_collectives as funcol

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
one, world = torch.ones(4), dist.group.WORLD
other = 1 - rank

def both_ways():
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, other), dist.P2POp(dist.irecv, torch.ones(4), other)]):
        work.wait()

def compiled():
    graphs = []
    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward
    @torch.compile(fullgraph=True, backend=backend)
    def reduced(x):
        return funcol.all_reduce(x * 2, "sum", world) + 1
    before = counter.waits
    for _ in range(3):
        assert reduced(one).tolist() == [5.0] * 4
    assert len(graphs) == 1, "one graph, compiled once"
    assert counter.waits == before + 3, "and every call of it waits"

def coalesced():
    with dist._coalescing_manager(async_ops=True) as works:
        dist.all_reduce(one.clone())
        dist.all_reduce(one.clone())
    works.wait()

WAYS = {
    "all_reduce": lambda: dist.all_reduce(one.clone()),
    "async": lambda: dist.all_reduce(one.clone(), async_op=True).wait(),
    "future": lambda: dist.all_reduce(one.clone(), async_op=True).get_future().wait(),
    "future of a hook": lambda: dist.all_reduce(one.clone(), async_op=True).get_future().then(lambda f: f.value()).wait(),
    "barrier": lambda: dist.barrier(),
    "monitored_barrier": lambda: dist.monitored_barrier(),
    "point to point": lambda: dist.send(one, other) if rank else dist.recv(torch.ones(4), other),
    "from anybody": lambda: dist.send(one, other) if rank else dist.recv(torch.ones(4)),
    "batched point to point": both_ways,
    "broadcast_object_list": lambda: dist.broadcast_object_list([rank]),
    "all_gather_object": lambda: dist.all_gather_object([None, None], rank),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.ones(2), one),
    "coalesced": coalesced,
    "functional": lambda: funcol.wait_tensor(funcol.all_reduce(one, "sum", world)),
    "functional, on use": lambda: funcol.all_reduce(one, "sum", world) + 1,
    "in a compiled graph": compiled,
}
for name, way in WAYS.items():
    counter.waits = 0
    way()
    print(f"{rank}|{name}|{counter.waits}|{counter.inside}", flush=True)
dist.destroy_process_group()
# Without the recorder, which waits a little there, torch may abort an interpreter that ends (pytorch/pytorch#190489).
os._exit(0)
"""


@pytest.mark.slow
def test_every_kind_of_wait_is_counted_and_graphs_stay_whole(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", EVERY_WAIT, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    outcome = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outcome
    for rank, (out, _) in enumerate(outcome):
        lines = [line for line in out.splitlines() if line.startswith(f"{rank}|")]  # torch 2.8 writes there, too
        seen = dict(line.split("|")[1:3] for line in lines)
        assert len(seen) == 16, out
        assert [name for name, count in seen.items() if int(count) < 1] == [], "ways to wait that nobody is told of"
        assert all(line.endswith("|False") for line in lines)

"""Position of a rank in the parallel layout, and its sources."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402  # torch may be missing
from torch._C._distributed_c10d import HashStore  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402

from rankscope.profiler.rank import layout  # noqa: E402
from rankscope.runs.records import Pipeline  # noqa: E402


class Mesh:
    """Mesh of another world than the test's, with the attributes of torch's that readers use."""

    def __init__(self, shape: tuple[int, ...], names: tuple[str, ...] | None, place: tuple[int, ...] | None) -> None:
        self.mesh = torch.arange(int(torch.tensor(shape).prod())).reshape(shape)
        self.mesh_dim_names = names
        self.place = place

    def get_coordinate(self) -> tuple[int, ...] | None:
        return self.place


@pytest.fixture(autouse=True)
def no_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registry of meshes, empty at the start of every test."""
    monkeypatch.setattr(layout, "_meshes", weakref.WeakValueDictionary())
    monkeypatch.setattr(layout, "_made_in", None)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Function ``noted(mesh, …)``, which registers meshes that stay alive during the test."""
    alive: list[Mesh] = []

    def note(*meshes: Mesh) -> None:
        alive.extend(meshes)
        monkeypatch.setattr(layout, "_meshes", weakref.WeakValueDictionary({id(mesh): mesh for mesh in alive}))

    yield note
    alive.clear()


@pytest.fixture
def one_rank_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Process group of one rank, in which real meshes can be made."""
    monkeypatch.setattr(DeviceMesh, "__init__", DeviceMesh.__init__)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("text", "coordinates"),
    [("dp=3,tp=0", {"dp": 3, "tp": 0}), ("pp=1", {"pp": 1}), (" dp = 3 , my_dim2=10 ", {"dp": 3, "my_dim2": 10})],
)
def test_coordinates_are_parsed_from_text(text: str, coordinates: dict[str, int]) -> None:
    assert layout.parse_coordinates(text) == coordinates
    assert layout.find_layout(text).coordinates == coordinates


@pytest.mark.parametrize(
    "text", ["", "dp", "dp=", "dp=-1", "dp=1.5", "=1", "dp=1;tp=2", "dp=1,dp=2", "2d=1", "dp=1,", "dp=99999999999"]
)
def test_invalid_coordinates_are_logged_in_one_line_and_ignored(
    text: str, capsys: pytest.CaptureFixture[str], noted: Any
) -> None:
    noted(Mesh((2, 2), ("dp", "tp"), (1, 0)))
    assert layout.find_layout(text).coordinates == {"dp": 1, "tp": 0}
    err = capsys.readouterr().err
    assert err.startswith(f"rankscope: coordinates ignored: {text!r} ")
    assert err.count("\n") == 1


def test_layout_is_the_largest_named_mesh_of_the_rank(noted: Any) -> None:
    noted(
        Mesh((2, 4), ("replicate", "shard"), (1, 2)),  # a slice
        Mesh((8, 2), None, (3, 1)),  # unnamed
        Mesh((16,), ("world",), (7,)),  # flattened
        Mesh((2, 2, 4), ("pp", "replicate", "shard"), (0, 1, 2)),
        Mesh((4, 8), ("others", "not_here"), None),  # this rank is not in it
    )
    rank_layout = layout.find_layout(None)
    assert rank_layout.coordinates == {"pp": 0, "replicate": 1, "shard": 2}
    assert list(rank_layout.sizes.items()) == [("pp", 2), ("replicate", 2), ("shard", 4)]


def test_user_coordinates_override_the_detected_layout(noted: Any) -> None:
    noted(Mesh((4, 2), ("dp", "tp"), (1, 0)))
    rank_layout = layout.find_layout("dp=3,tp=1")
    assert rank_layout == ({"dp": 3, "tp": 1}, {"dp": 4, "tp": 2})
    assert layout.find_layout("stage=1") == ({"stage": 1}, {}), "of other dimensions nobody knows the size"


def test_mesh_is_tracked_from_creation_to_deletion(one_rank_world: None) -> None:
    layout.watch_meshes()
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("fsdp", "tp"))
    before = len(layout._meshes)
    for _ in range(3):
        assert mesh["tp"].mesh_dim_names == ("tp",)
    gc.collect()
    assert len(layout._meshes) <= before + 1, "slices do not stay"
    assert layout.find_layout(None) == ({"fsdp": 0, "tp": 0}, {"fsdp": 1, "tp": 1})
    del mesh
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert layout.find_layout(None) == ({}, {})


def test_mesh_of_a_destroyed_process_group_is_ignored(one_rank_world: None) -> None:
    layout.watch_meshes()
    # Given a script that creates a mesh for a trial, and keeps it
    tried = init_device_mesh("cpu", (1, 1), mesh_dim_names=("fsdp", "tp"))
    dist.destroy_process_group()
    # When it trains in another process group
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert layout.find_layout(None) == ({}, {})
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    # Then the mesh of the current group counts
    assert layout.find_layout(None) == ({"dp": 0}, {"dp": 1})
    assert tried.mesh_dim_names != mesh.mesh_dim_names


def test_layout_is_derived_from_group_names_of_an_untracked_mesh(one_rank_world: None) -> None:
    init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    described = {group.group_desc for group in dist.distributed_c10d._world.pg_map}
    if described >= {"mesh_dp", "mesh_tp"}:
        assert layout.find_layout(None).coordinates == {"dp": 0, "tp": 0}
    else:
        # A mesh of one rank may have no groups of its own; then the layout is unknown.
        assert layout.find_layout(None) == ({}, {})


def test_group_dimensions_are_ordered_by_rank_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        def __init__(self, described: str, ranks: list[int]) -> None:
            self.group_desc = described
            self.ranks = ranks

    world = [Group("default_pg", list(range(8))), Group("mesh_tp", [6, 7]), Group("mesh_pp", [2, 6]), Group("mesh_dp", [4, 6])]
    world += [Group("mesh_tp", [0, 1]), Group("mesh_dim_0", [6, 7])]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 6)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: group.ranks)
    monkeypatch.setattr(dist.distributed_c10d, "_world", SimpleNamespace(pg_map=dict.fromkeys(world)))
    rank_layout = layout.find_layout(None)
    assert list(rank_layout.coordinates.items()) == [("pp", 1), ("dp", 1), ("tp", 0)]
    assert rank_layout.sizes == {"pp": 2, "dp": 2, "tp": 2}


def test_megatron_layout_is_read_only_when_megatron_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"pipeline_model": (1, 2), "data": (3, 4), "context": (0, 1), "tensor_model": (5, 8)}
    state = SimpleNamespace(model_parallel_is_initialized=lambda: True)
    for name, (rank, size) in ranks.items():
        setattr(state, f"get_{name}_parallel_rank", lambda rank=rank: rank)
        setattr(state, f"get_{name}_parallel_world_size", lambda size=size: size)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    rank_layout = layout.find_layout(None)
    assert rank_layout.coordinates == {"pp": 1, "dp": 3, "cp": 0, "tp": 5}
    assert list(rank_layout.sizes.items()) == [("pp", 2), ("dp", 4), ("cp", 1), ("tp", 8)]
    state.model_parallel_is_initialized = lambda: False
    assert layout.find_layout(None) == ({}, {})
    del state.model_parallel_is_initialized
    assert layout.find_layout(None) == ({}, {}), "another version of it: nothing is known, nothing breaks"


def test_pipeline_stage_object_gives_the_pipeline_coordinate(monkeypatch: pytest.MonkeyPatch, noted: Any) -> None:
    stage_module = pytest.importorskip("torch.distributed.pipelining.stage")

    class Stage(stage_module.PipelineStage):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.group_rank, self.group_size = 3, 4

    stage = Stage()
    assert layout.find_layout(None) == ({"pp": 3}, {"pp": 4})
    noted(Mesh((2,), ("dp",), (1,)))
    assert layout.find_layout(None) == ({"pp": 3, "dp": 1}, {"pp": 4, "dp": 2})
    noted(Mesh((2, 2), ("pipeline", "dp"), (0, 1)))
    assert layout.find_layout(None).coordinates == {"pipeline": 0, "dp": 1}, "the script's name for it"
    del stage


def test_pipeline_schedule_is_read_from_the_schedule_object() -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    gc.collect()
    assert layout.find_pipeline() is None, "the module alone says nothing"

    class Interleaved(schedules.PipelineScheduleMulti):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self._n_microbatches, self._stages = 8, [object(), object()]

    schedule = Interleaved()
    assert layout.find_pipeline() == Pipeline(schedule="Interleaved", microbatches=8, chunks=2)
    del schedule._n_microbatches
    assert layout.find_pipeline() is None, "another version of it: nothing is known, nothing breaks"
    del schedule

"""Place of this rank in the parallel layout: set by the user, else derived from device meshes, Megatron, groups and pipelines.

Only existing objects are examined, once, when recording begins; nothing is imported or created. Names are the script's own.
"""

from __future__ import annotations

import gc
import re
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Final, NamedTuple

from torch import distributed as dist
from torch.compiler import is_compiling

from rankscope.profiler.rank.guard import print_line
from rankscope.runs.records import Pipeline

_COORDINATE: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,9})\s*")
_MESH_GROUP: Final = "mesh_"
_UNNAMED: Final = ("default", "dim_")
# Outermost first, Megatron's default order of ranks. Expert parallelism cuts across these dimensions.
_MEGATRON: Final = (("pp", "pipeline_model"), ("dp", "data"), ("cp", "context"), ("tp", "tensor_model"))


class RankLayout(NamedTuple):
    """Place of a rank. Both fields are empty if nothing is known; only ``sizes`` is empty if only the user's coordinates are."""

    coordinates: dict[str, int]
    """This rank's place in each dimension, by name."""
    sizes: dict[str, int]
    """Number of places in each dimension, by name, outermost first."""


_STAGES: Final = frozenset(("pp", "pipe", "pipeline", "stage"))

_NOWHERE: Final = RankLayout({}, {})
_meshes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# By identity, because equal meshes may have different names. Weak, because slices are short-lived.
_made_in: weakref.ref[Any] | None = None
# The default process group of these meshes: older versions of torch keep meshes alive after their groups are destroyed.


def watch_meshes() -> None:
    """Record every device mesh that is made from now on."""
    kind = getattr(dist, "DeviceMesh", None) if dist.is_available() else None
    if kind is not None:
        kind.__init__ = _noting(kind.__init__)


def adopt(candidate: object) -> None:
    """Record ``candidate`` if it is a device mesh."""
    kind = getattr(dist, "DeviceMesh", None)
    if kind is not None and issubclass(type(candidate), kind):
        _note(candidate)


def find_layout(given_layout: str | None) -> RankLayout:
    """Return the place of this rank. ``given_layout``: the user's text, ``dp=3,tp=0``; invalid text is reported and ignored.

    Never raises.
    """
    layout_found = next(
        (layout for look in (_of_meshes, _of_megatron, _of_groups) if (layout := _safely(look)).coordinates), _NOWHERE
    )
    if not _STAGES & layout_found.coordinates.keys():
        # Pipeline stages do different work, so they must not be missed.
        stage = _safely(_of_pipelines)
        layout_found = RankLayout(stage.coordinates | layout_found.coordinates, stage.sizes | layout_found.sizes)
    if given_layout is None:
        return layout_found
    try:
        coordinates = parse_coordinates(given_layout)
    except ValueError as error:
        print_line(f"coordinates ignored: {error}")
        return layout_found
    return RankLayout(coordinates, layout_found.sizes if layout_found.sizes.keys() == coordinates.keys() else {})


def parse_coordinates(text: str) -> dict[str, int]:
    """Return coordinates like ``dp=3,tp=0`` as a dictionary. Raises ``ValueError``."""
    coordinates: dict[str, int] = {}
    for part in text.split(","):
        match = _COORDINATE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is not like dp=3,tp=0")
        if match[1] in coordinates:
            raise ValueError(f"{text!r} names {match[1]} twice")
        coordinates[match[1]] = int(match[2])
    return coordinates


def _noting(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not is_compiling():
            with suppress(Exception):  # this runs inside the script's own call
                _note(self)

    return init


def _note(mesh: Any) -> None:
    global _made_in  # noqa: PLW0603  # beside ``_meshes``
    world = dist.group.WORLD
    if world is not (None if _made_in is None else _made_in()):
        _meshes.clear()
        _made_in = None if world is None else weakref.ref(world)
    _meshes[id(mesh)] = mesh


def _safely(look: Callable[[], RankLayout]) -> RankLayout:
    try:
        return look()
    except Exception:  # noqa: BLE001  # the script's objects may be in any state
        return _NOWHERE


def _of_meshes() -> RankLayout:
    """Return the layout of the named mesh with most ranks, and then most dimensions: the others are its slices."""
    best, most = _NOWHERE, (0, 0)
    if _made_in is not None and _made_in() is not dist.group.WORLD:
        return best
    for mesh in list(_meshes.values()):
        names, place, shape = mesh.mesh_dim_names, mesh.get_coordinate(), tuple(mesh.mesh.shape)
        size = (mesh.mesh.numel(), len(shape))
        if names and place is not None and len(place) == len(names) == len(shape) and size > most:
            best = RankLayout(dict(zip(names, map(int, place), strict=True)), dict(zip(names, map(int, shape), strict=True)))
            most = size
    return best


def _of_megatron() -> RankLayout:
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return _NOWHERE
    coordinates, sizes = {}, {}
    for name, megatron_name in _MEGATRON:
        coordinates[name] = int(getattr(state, f"get_{megatron_name}_parallel_rank")())
        sizes[name] = int(getattr(state, f"get_{megatron_name}_parallel_world_size")())
    return RankLayout(coordinates, sizes)


def _of_groups() -> RankLayout:
    """Return the layout from the process groups of a device mesh that was made and released before it could be recorded."""
    if not dist.is_initialized():
        return _NOWHERE
    rank = dist.get_rank()
    groups: list[tuple[int, str, int, int]] = []
    for group in list(dist.distributed_c10d._world.pg_map):  # noqa: SLF001  # there is no public list
        described = str(getattr(group, "group_desc", ""))
        name = described.removeprefix(_MESH_GROUP)
        if name == described or name.startswith(_UNNAMED):
            continue
        ranks = dist.get_process_group_ranks(group)
        if rank in ranks:
            stride = ranks[1] - ranks[0] if len(ranks) > 1 else 0
            groups.append((stride, name, ranks.index(rank), len(ranks)))
    # Ranks of an outer dimension have a larger stride.
    groups.sort(key=lambda member_group: -member_group[0])
    return RankLayout({name: place for _, name, place, _ in groups}, {name: size for _, name, _, size in groups})


def _of_pipelines() -> RankLayout:
    """Return the layout from torch's pipeline stages, whose process group needs no name."""
    stage = _living("torch.distributed.pipelining.stage", "_PipelineStageBase")
    return _NOWHERE if stage is None else RankLayout({"pp": int(stage.group_rank)}, {"pp": int(stage.group_size)})


def find_pipeline() -> Pipeline | None:
    """Return the micro-batch schedule of torch's pipelining; ``None`` if it is not used. Never raises."""
    with suppress(Exception):  # the script's objects may be in any state
        schedule = _living("torch.distributed.pipelining.schedules", "_PipelineSchedule")
        if schedule is not None:
            chunks = len(getattr(schedule, "_stages", ())) or 1
            return Pipeline(schedule=type(schedule).__name__, microbatches=int(schedule._n_microbatches), chunks=chunks)  # noqa: SLF001  # there is no public name
    return None


def _living(module: str, name: str) -> Any:
    """Return any object of that class or a subclass. Examines every object, if the module is loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    if kind is None:
        return None
    kinds = {kind}
    while more := {deeper for class_ in kinds for deeper in class_.__subclasses__()} - kinds:
        kinds |= more
    # ``gc.get_referrers`` of the classes goes through all objects several times faster than Python code.
    return next((instance for instance in gc.get_referrers(*kinds) if type(instance) in kinds), None)

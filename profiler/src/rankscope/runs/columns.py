"""Records as Arrow columns and back: every column's type follows from the record's own annotations, here and nowhere else.

A struct within a record is a struct column, a list a list, a dict a map, a pair a list of fixed size; ``None`` is null. What a
file holds is checked as strictly as JSON is when it is decoded, for a run directory may be anybody's.

With ``rows`` and ``parquet`` the only module that imports pyarrow; readers import them for Parquet files only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.runs.rows import Layout, valid_of

_SCALARS: Final = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}

_T = TypeVar("_T", bound=msgspec.Struct)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


class ColumnError(ValueError):
    """Columns that hold no records of this type: which column, and why."""


def arrow_schema(kind: type[msgspec.Struct]) -> pa.Schema:
    """Columns of a record. Raises ``TypeError`` for an annotation that has no column type."""
    return pa.schema([_arrow_field(field.name, field.type) for field in _fields(kind)])


def _arrow_field(name: str, annotation: Any) -> pa.Field:
    inner, nullable = _optional(annotation)
    return pa.field(name, _arrow_type(inner), nullable=nullable)


def _arrow_type(annotation: Any) -> pa.DataType:
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin is Literal and all(isinstance(value, str) for value in args):
        return pa.string()
    if origin is dict and args[0] is str:
        return pa.map_(pa.string(), _arrow_type(args[1]))
    if origin is list:
        return pa.list_(_arrow_type(args[0]))
    if origin is tuple and set(args) == {args[0]}:
        return pa.list_(_arrow_type(args[0]), len(args))
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return pa.struct(_within(annotation))
    raise TypeError(f"no column type for {annotation!r}")


def _within(kind: type[msgspec.Struct]) -> list[pa.Field]:
    """Fields of a struct inside a record, all nullable: where the struct itself is not there, nothing in it is."""
    return [_arrow_field(field.name, field.type).with_nullable(nullable=True) for field in _fields(kind)]


def _optional(annotation: Any) -> tuple[Any, bool]:
    """The annotation without ``None``, and whether that was in it."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation, False
    rest = [arg for arg in get_args(annotation) if arg is not NoneType]
    if len(rest) != 1:
        raise TypeError(f"no column type for {annotation!r}")
    return rest[0], True


def float_columns(kind: type[msgspec.Struct], prefix: str = "") -> list[str]:
    """Paths of the columns of measured numbers, those of structs within the record too."""
    paths: list[str] = []
    for field in _fields(kind):
        inner, _ = _optional(field.type)
        if inner is float:
            paths.append(prefix + field.name)
        elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            paths += float_columns(inner, f"{prefix}{field.name}.")
    return paths


def to_columns(records: Sequence[msgspec.Struct], kind: type[msgspec.Struct]) -> dict[str, pa.Array]:
    """Columns of ``records``. Raises ``ColumnError`` for a value that no column can hold (an integer beyond 64 bits)."""
    columns: dict[str, pa.Array] = {}
    for field in _fields(kind):
        try:
            columns[field.name] = _to_array([getattr(record, field.name) for record in records], field.type)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise ColumnError(f"{field.name}: {error}") from error
    return columns


def _to_array(values: list[Any], annotation: Any) -> pa.Array:
    inner, _ = _optional(annotation)
    if get_origin(inner) is dict:
        values = [None if value is None else list(value.items()) for value in values]
    elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        fields = _fields(inner)
        children = [
            _to_array([None if value is None else getattr(value, field.name) for value in values], field.type) for field in fields
        ]
        return pa.StructArray.from_arrays(
            children,
            fields=_within(inner),
            mask=pa.array([value is None for value in values], pa.bool_()),
        )
    return pa.array(values, _arrow_type(inner))


def from_columns(batch: pa.RecordBatch, kind: type[_T]) -> Iterator[_T]:
    """The records of ``batch``. Columns it has besides are ignored, and those it lacks have the record's defaults.

    Raises ``ColumnError`` or ``msgspec.ValidationError`` for columns that cannot be records.
    """
    fields = _fields(kind)
    columns: list[tuple[msgspec.structs.FieldInfo, pa.Array]] = []
    for field in fields:
        at = batch.schema.get_field_index(field.name)
        if at >= 0:
            if not _is_default(batch.column(at), field):
                columns.append((field, batch.column(at)))
        elif field.required:
            raise ColumnError(f"there is no column {field.name}")
    if all(_is_number(field.type) for field in fields if field.required):
        yield from _from_numbers(columns, kind, len(batch))
        return
    names = [field.name for field, _ in columns]
    values = [_from_array(array, field.type, field.name) for field, array in columns]
    for row in zip(*values, strict=True):
        yield kind(**dict(zip(names, row, strict=True)))


def _from_numbers(columns: list[tuple[msgspec.structs.FieldInfo, pa.Array]], kind: type[_T], rows: int) -> Iterator[_T]:
    """Records whose numbers are laid out for msgspec to decode; what else they have, most often nothing, is set afterwards."""
    layout = Layout(rows)
    laid_out: list[tuple[msgspec.structs.FieldInfo, pa.Array]] = []
    others: dict[int, list[tuple[str, Any]]] = {}
    for field, array in columns:
        # Passing over a field takes longer than to set it in the few rows that have it.
        if _is_laid_out(field.type) and array.null_count <= rows // 2:
            laid_out.append((field, array))
            continue
        for row, value in _set_rows(array, field):
            others.setdefault(row, []).append((field.name, value))
    _lay_out(layout, laid_out, nulls=0)
    for row, record in enumerate(layout.decode(kind)):
        for name, value in others.get(row, ()):
            msgspec.structs.force_setattr(record, name, value)
        yield record


def _set_rows(array: pa.Array, field: msgspec.structs.FieldInfo) -> Iterator[tuple[int, Any]]:
    """Rows of a column that have something in them, and what."""
    rows = np.arange(len(array))
    if array.null_count and field.default is None:
        rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        array = array.drop_null()
    elif field.default_factory in (list, dict) and not array.null_count and _has_offsets(array):
        rows = np.flatnonzero(np.diff(array.offsets.to_numpy()))
        array = array.take(pa.array(rows))
    yield from zip(rows.tolist(), _from_array(array, field.type, field.name), strict=True)


def _lay_out(layout: Layout, columns: list[tuple[msgspec.structs.FieldInfo, pa.Array]], *, nulls: int) -> None:
    """Lay out one map; ``nulls`` rows of it are not there at all."""
    layout.begin_map(len(columns))
    for field, array in columns:
        inner, nullable = _optional(field.type)
        if array.null_count > nulls and not (nullable and field.default is None):
            raise ColumnError(f"{field.name}: a value is missing")
        layout.key(field.name, valid_of(array))
        if not _is_number(inner):
            if not pa.types.is_struct(array.type):
                raise ColumnError(f"{field.name}: {array.type} where there should be a struct")
            children = dict(zip((child.name for child in array.type), array.flatten(), strict=True))
            within = [(one, children[one.name]) for one in _fields(inner) if one.name in children]
            _lay_out(layout, [(one, child) for one, child in within if not _is_default(child, one)], nulls=array.null_count)
        elif not layout.numbers(array, inner):
            raise ColumnError(f"{field.name}: {array.type} where there should be numbers, or one is not a number")


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float, bool)


@cache
def _is_laid_out(annotation: Any) -> bool:
    """Whether a field is a number, or a record of numbers."""
    inner, _ = _optional(annotation)
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return all(_is_number(_optional(field.type)[0]) for field in _fields(inner))
    return _is_number(inner)


def _is_default(array: pa.Array, field: msgspec.structs.FieldInfo) -> bool:
    """Whether all of a column is the record's own default; then reading it would only take time."""
    if field.default is None:
        return bool(array.null_count == len(array))
    if field.default is False and array.type == pa.bool_():
        return bool(array.null_count == 0 and array.true_count == 0)
    if field.default_factory in (list, dict) and _has_offsets(array):
        return bool(array.null_count == 0 and array.offsets[0] == array.offsets[-1])
    return False


def _has_offsets(array: pa.Array) -> bool:
    return bool(pa.types.is_list(array.type) or pa.types.is_map(array.type))


def _from_array(array: pa.Array, annotation: Any, name: str) -> list[Any]:
    inner, nullable = _optional(annotation)
    if array.null_count:
        if not nullable:
            raise ColumnError(f"{name}: a value is missing")
        values = iter(_from_array(array.drop_null(), inner, name))
        return [next(values) if valid else None for valid in array.is_valid().to_pylist()]
    if pa.types.is_dictionary(array.type):
        words = _from_array(array.dictionary, inner, name)
        return [words[index] for index in array.indices.to_pylist()]
    if inner in _SCALARS or get_origin(inner) is Literal:
        return _from_scalars(array, inner, name)
    if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
        return _from_structs(array, inner, name)
    _expect(array, _arrow_type(inner), name)
    return _from_maps(array, inner, name) if get_origin(inner) is dict else _from_lists(array, inner, name)


def _from_lists(array: pa.Array, inner: Any, name: str) -> list[Any]:
    args = get_args(inner)
    collect: type[list[Any] | tuple[Any, ...]] = get_origin(inner)
    lengths = [len(args)] * len(array) if collect is tuple else pc.list_value_length(array).to_pylist()
    flat = iter(_from_array(array.flatten(), args[0], name) if any(lengths) else [])
    return [collect(islice(flat, length)) for length in lengths]


def _expect(array: pa.Array, expected: pa.DataType, name: str) -> None:
    # Names of what is inside lists, and whether it may be null, are the writer's own.
    if array.type.id != expected.id:
        raise ColumnError(f"{name}: {array.type} where there should be {expected}")


def _from_scalars(array: pa.Array, inner: Any, name: str) -> list[Any]:
    expected = _arrow_type(inner)
    if array.type != expected:
        raise ColumnError(f"{name}: {array.type} where there should be {expected}")
    if inner is float and not pc.all(pc.is_finite(array), min_count=0).as_py():
        raise ColumnError(f"{name}: a value is not a number")
    values: list[Any] = array.to_pylist()
    if get_origin(inner) is Literal and not set(values) <= set(get_args(inner)):
        raise ColumnError(f"{name}: a value is none of {', '.join(get_args(inner))}")
    return values


def _from_structs(array: pa.Array, kind: type[msgspec.Struct], name: str) -> list[Any]:
    if not pa.types.is_struct(array.type):
        raise ColumnError(f"{name}: {array.type} where there should be a struct")
    children = pa.RecordBatch.from_arrays(array.flatten(), [field.name for field in array.type])
    fields = _fields(kind)
    known = [field for field in fields if field.name in children.schema.names]
    if not any(field.required for field in fields) and all(_is_default(children.column(one.name), one) for one in known):
        return [kind() for _ in range(len(array))]
    return list(from_columns(children, kind))


def _from_maps(array: pa.Array, inner: Any, name: str) -> list[Any]:
    value_type = get_args(inner)[1]
    expected = _arrow_type(value_type)
    if array.type.key_type != pa.string() or array.type.item_type != expected:
        raise ColumnError(f"{name}: {array.type} where there should be {expected} by name")
    maps = [dict(pairs) for pairs in array.to_pylist()]
    for one in maps:
        for key, value in one.items():
            if not isinstance(value, value_type) or (value_type is float and not math.isfinite(value)):
                raise ColumnError(f"{name}: {key!r} has no value")
    return maps

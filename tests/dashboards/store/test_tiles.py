"""Matrices on disk: reads return the written values, for any order of writes."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankscope.base.errors import InputError
from rankscope.dashboards.store.tiles import BLOCK_STEPS, LEVELS, Tiles, TileWriter

COARSE = LEVELS[1]

Cells = dict[tuple[str, int, int], float]

ADDED = st.tuples(
    st.integers(0, 5),
    st.lists(st.integers(0, 3 * BLOCK_STEPS), max_size=40, unique=True).map(sorted),
    st.sets(st.sampled_from(["own_us", "wall_us", "gc_us"]), min_size=1),
    st.booleans(),
)
"""One write: a rank, its steps, metrics, and whether it is published at once."""


def cells_of(tiles: Tiles) -> Cells:
    """Return all finite cells by metric, rank and step."""
    by_key: Cells = {}
    for metric in tiles.meta.metrics:
        values = tiles.part(metric, most_columns=10**9).values
        for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
            by_key[metric, int(tiles.ranks[row]), int(tiles.steps[column])] = float(values[row, column])
    return by_key


@given(st.lists(ADDED, min_size=1, max_size=12))
def test_last_written_value_is_read_for_any_write_order(
    added: list[tuple[int, list[int], set[str], bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer, expected = TileWriter(Path(folder) / "steps"), Cells()
        for number, (rank, steps, metrics, shown) in enumerate(added):
            writer.add_ranks([rank])
            values = np.arange(len(steps), dtype=np.float32) + 1000 * number
            writer.add(rank, np.array(steps, dtype=np.int64), dict.fromkeys(metrics, values))
            expected |= {
                (metric, rank, step): float(value) for metric in metrics for step, value in zip(steps, values, strict=True)
            }
            if shown:
                writer.publish()
                assert cells_of(Tiles(Path(folder) / "steps")) == expected
        writer.publish()
        tiles = Tiles(Path(folder) / "steps")
        assert cells_of(tiles) == expected
        for metric in tiles.meta.metrics:
            fine = tiles.part(metric, most_columns=10**9).values
            for most in (fine.shape[1] // 2, 2, 1):
                coarse = tiles.part(metric, most_columns=max(1, most))
                every = coarse.steps_per_column
                padded = np.full((len(fine), every * coarse.values.shape[1]), np.nan, np.float32)
                padded[:, : fine.shape[1]] = fine
                np.testing.assert_array_equal(coarse.values, np.fmax.reduce(padded.reshape(len(fine), -1, every), axis=2))


@pytest.fixture
def noise() -> NDArray[np.float32]:
    """Random values of 5 ranks and more steps than two blocks hold."""
    return np.random.default_rng(3).random((5, 2 * BLOCK_STEPS + 100), dtype=np.float32)


def test_part_equals_the_slice_of_the_whole_matrix(tmp_path: Path, noise: NDArray[np.float32]) -> None:
    writer = TileWriter(tmp_path)
    writer.fill(range(5), np.arange(noise.shape[1]) + 7, [("own_us", noise)])
    writer.publish()
    tiles = Tiles(tmp_path)
    assert tiles.ranks.tolist() == [0, 1, 2, 3, 4]
    assert tiles.steps[0] == 7
    np.testing.assert_array_equal(tiles.part("own_us").values, noise)
    part = tiles.part("own_us", 200, 300)
    assert (part.first, part.steps_per_column) == (200, 1)
    np.testing.assert_array_equal(part.values, noise[:, 200:300])
    coarse = tiles.part("own_us", 100, 300, most_columns=150)
    assert (coarse.first, coarse.steps_per_column) == (96, COARSE)
    np.testing.assert_array_equal(coarse.values[:, 0], noise[:, 96:112].max(axis=1))
    assert coarse.values.shape == (5, 13), "up to the column that holds the last step asked for"


@pytest.mark.parametrize("most", [1, 2, 3, 7, 40, 100])
def test_binned_part_has_few_columns_with_the_worst_steps(tmp_path: Path, noise: NDArray[np.float32], most: int) -> None:
    writer = TileWriter(tmp_path)
    writer.fill(range(5), np.arange(noise.shape[1]), [("own_us", noise), ("overlap_ratio", noise)])
    writer.publish()
    for first, last in ((0, noise.shape[1]), (37, 530)):
        for metric, worst in (("own_us", np.fmax), ("overlap_ratio", np.fmin)):
            part = Tiles(tmp_path).part(metric, first, last, most_columns=most)
            assert part.values.shape[1] <= most + 1
            for column in range(part.values.shape[1]):
                begin = part.first + column * part.steps_per_column
                steps = noise[:, begin : begin + part.steps_per_column]
                np.testing.assert_array_equal(part.values[:, column], worst.reduce(steps, axis=1))


def test_metric_without_records_is_unknown_and_not_zero(tmp_path: Path, noise: NDArray[np.float32]) -> None:
    writer = TileWriter(tmp_path)
    writer.fill(range(5), np.arange(noise.shape[1]), [("own_us", noise)])
    writer.publish()
    assert np.isnan(Tiles(tmp_path).part("gc_us", 0, 10).values).all()


def test_metrics_with_equal_values_are_stored_once(tmp_path: Path, noise: NDArray[np.float32]) -> None:
    writer = TileWriter(tmp_path)
    writer.fill(range(1, 6), np.arange(noise.shape[1]), [("data_us", noise)], {"own_data_us": "data_us"})
    writer.publish()
    for ranks_before in (0, 1):
        tiles = Tiles(tmp_path)
        assert list(tiles.metrics) == ["data_us", "own_data_us"]
        np.testing.assert_array_equal(tiles.part("own_data_us").values[ranks_before:], noise)
        assert not list(tmp_path.glob("own_data_us.*"))
        writer.add_ranks([0])
        writer.publish()


def test_open_readers_are_unaffected_by_inserted_rows(tmp_path: Path, noise: NDArray[np.float32]) -> None:
    writer = TileWriter(tmp_path)
    writer.fill(range(1, 6), np.arange(noise.shape[1]), [("own_us", noise)])
    writer.publish()
    before = Tiles(tmp_path)
    writer.add_ranks([0])
    np.testing.assert_array_equal(before.part("own_us").values, noise)
    writer.publish()
    after = Tiles(tmp_path)
    assert after.ranks.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(after.part("own_us").values[1:], noise)
    assert np.isnan(after.part("own_us").values[0]).all()


def test_emptied_cache_file_is_an_error(tmp_path: Path, noise: NDArray[np.float32]) -> None:
    writer = TileWriter(tmp_path)
    writer.fill(range(5), np.arange(noise.shape[1]), [("own_us", noise)])
    writer.publish()
    tiles = Tiles(tmp_path)
    for file in tmp_path.glob("own_us.*"):
        file.write_bytes(b"")
    with pytest.raises(InputError, match="cached matrices cannot be read"):
        tiles.part("own_us")
    with pytest.raises(InputError, match="cached matrices cannot be read"):
        Tiles(tmp_path / "nothing")


@pytest.mark.slow
def test_reader_never_sees_truncated_steps_during_a_publish(tmp_path: Path) -> None:
    writer = TileWriter(tmp_path)
    writer.add_ranks([0])
    steps = np.arange(200_000, dtype=np.int64)
    writer.add(0, steps, {"own_us": steps.astype(np.float32)})
    writer.publish()
    published = threading.Event()

    def publish() -> None:
        for _ in range(100):
            writer.publish()
        published.set()

    thread = threading.Thread(target=publish)
    thread.start()
    while not published.is_set():
        assert len(Tiles(tmp_path).steps) == len(steps)
    thread.join()

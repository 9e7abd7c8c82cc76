"""The inventory: the GPUs that the exporter remembers on disk, and the file that another process may change."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.fleet.gpu_child import identity

from rankscope.base.locks import lock_file
from rankscope.exporter.fleet.inventory import Inventory, forget

DAY_S = 86400.0


def save(inventory: Inventory, *numbers: int) -> None:
    """See GPUs, and write the file."""
    for number in numbers:
        inventory.see(identity(number))
    inventory.save()
    inventory.wait(60)


def test_inventory_survives_a_restart(tmp_path: Path) -> None:
    first = Inventory(tmp_path / "state")
    first.see(identity(1))
    save(first, 0)

    assert Inventory(tmp_path / "state").identities() == (identity(0), identity(1))
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["gpus.json", "gpus.lock"]


def test_gpu_seen_during_a_write_is_saved_on_close(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)
    lock = lock_file(tmp_path / "gpus.lock")
    assert lock is not None
    inventory.see(identity(0))
    inventory.save()  # waits for the lock
    inventory.see(identity(1))

    threading.Timer(0.5, os.close, (lock,)).start()
    inventory.close(60)

    assert Inventory(tmp_path).identities() == (identity(0), identity(1))


def test_energy_is_kept_until_the_next_boot(tmp_path: Path) -> None:
    first = Inventory(tmp_path)
    first.see(identity(0))
    first.read_meters({"GPU-0": 5000.0, "GPU-unknown": 1.0})
    first.see(identity(0))
    first.pass_time(1.0, frozenset())
    first.save(meters=True)
    first.wait(60)

    meter = Inventory(tmp_path).meter("GPU-0")
    assert meter is not None
    assert meter.energy_j == 5000.0
    file = tmp_path / "gpus.json"
    file.write_text(file.read_text().replace(meter.boot_id, "another-boot"))
    assert Inventory(tmp_path).meter("GPU-0") is None
    assert Inventory(tmp_path).identities() == (identity(0),)


def test_another_users_link_or_pipe_is_replaced_without_writing_or_waiting(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    puts: list[Callable[[Path], object]] = [lambda path: path.symlink_to(target), os.mkfifo]
    for number, put in enumerate(puts):
        folder = tmp_path / str(number)
        folder.mkdir()
        put(folder / "gpus.json")
        inventory = Inventory(folder)
        save(inventory, 0)
        assert Inventory(folder).identities() == (identity(0),)
    assert target.read_text() == "precious"


def test_temporary_file_of_a_killed_exporter_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".gpus.json.7-0123456789ab").write_text("[")
    inventory = Inventory(tmp_path)
    save(inventory, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpus.json", "gpus.lock"]


def test_new_gpu_replaces_the_old_and_a_moved_gpu_keeps_identity() -> None:
    inventory = Inventory(None)
    inventory.see(identity(0))
    inventory.see(identity(1))

    inventory.see(identity(7, bus=1))
    inventory.see(identity(0, bus=5))

    assert inventory.identities() == (identity(7, bus=1), identity(0, bus=5))


def test_absent_gpu_is_forgotten_only_after_observed_time(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path, forget_after_s=30 * DAY_S)
    inventory.see(identity(0))
    inventory.see(identity(1))
    inventory.pass_time(29 * DAY_S, frozenset({"GPU-0"}))
    save(inventory)

    # the duration of an absence is kept across restarts
    later = Inventory(tmp_path, forget_after_s=30 * DAY_S)
    later.pass_time(0.5 * DAY_S, frozenset({"GPU-0"}))
    assert len(later) == 2
    later.pass_time(0.6 * DAY_S, frozenset({"GPU-0"}))
    assert later.identities() == (identity(0),)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": "rankscope.gpus/2", "gpus": []}', b"\xff" * 2_000_000])
def test_damaged_inventory_is_logged_and_treated_as_empty(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpus.json").write_bytes(content)

    inventory = Inventory(tmp_path)

    assert inventory.identities() == ()
    assert len(caplog.records) == 1
    assert str(tmp_path / "gpus.json") in caplog.text


def test_full_disk_is_logged_once_and_keeps_only_the_old_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = Inventory(tmp_path, retry_s=0)
    save(inventory, 0)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for number in (1, 2):
        save(inventory, number)

    assert [record.getMessage().count("No space left") for record in caplog.records] == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpus.json", "gpus.lock"]
    assert Inventory(tmp_path).identities() == (identity(0),)

    # when there is room again, everything is written
    monkeypatch.undo()
    save(inventory)
    assert len(Inventory(tmp_path)) == 3


def test_inventory_file_is_private_to_the_exporter_user(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    mask = os.umask(0)
    try:
        inventory = Inventory(folder)
        save(inventory, 0)
        written = (folder / "gpus.json").stat().st_mode & 0o777
        inventory.see(identity(1))
        (folder / "gpus.json").chmod(0o644)  # as older exporters wrote it
        save(inventory)
        forget(folder, "GPU-1")
    finally:
        os.umask(mask)

    assert written == 0o600
    assert (folder / "gpus.json").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o007 == 0


def test_gpu_removed_from_the_file_is_forgotten_unless_present(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)
    save(inventory, 0, 1, 2)

    forget(tmp_path, "GPU-0")
    forget(tmp_path, "GPU-1")
    with pytest.raises(KeyError):
        forget(tmp_path, "GPU-1")
    assert not inventory.changed()
    inventory.take_over_changes(frozenset({"GPU-1"}))
    inventory.wait(60)
    assert inventory.changed()
    inventory.take_over_changes(frozenset({"GPU-1"}))

    assert inventory.identities() == (identity(1), identity(2))
    assert not inventory.changed()


def test_forgotten_gpu_is_not_written_again(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)
    save(inventory, 0, 1)

    forget(tmp_path, "GPU-0")
    save(inventory, 2)
    assert Inventory(tmp_path).identities() == (identity(1),)
    assert inventory.changed()
    inventory.take_over_changes(frozenset({"GPU-1", "GPU-2"}))
    save(inventory)

    assert inventory.identities() == (identity(1), identity(2))
    assert Inventory(tmp_path).identities() == (identity(1), identity(2))


def test_a_gpu_forgotten_while_the_exporter_writes_stays_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = Inventory(tmp_path)
    save(inventory, 0, 1)
    replacing, go_on = threading.Event(), threading.Event()

    def replace(*paths: Any, **options: Any) -> None:
        if threading.current_thread().name == "inventory":
            replacing.set()
            assert go_on.wait(60)
        real(*paths, **options)

    real = os.replace
    monkeypatch.setattr(os, "replace", replace)
    inventory.see(identity(2))
    inventory.save()
    assert replacing.wait(60)
    other = threading.Thread(target=forget, args=(tmp_path, "GPU-0"))
    other.start()
    other.join(0.2)
    go_on.set()
    other.join(60)
    inventory.wait(60)
    for _ in range(2):
        inventory.take_over_changes(frozenset({"GPU-1", "GPU-2"}))
        inventory.wait(60)

    assert inventory.identities() == Inventory(tmp_path).identities() == (identity(1), identity(2))


def test_hung_disk_does_not_block_change_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = Inventory(tmp_path)
    inventory.see(identity(0))
    hanging, healed = threading.Event(), threading.Event()

    def stat(self: Path, **options: Any) -> os.stat_result:
        hanging.set()
        assert healed.wait(60)
        return real(self, **options)

    real = Path.stat
    monkeypatch.setattr(Path, "stat", stat)
    inventory.take_over_changes(frozenset())
    assert hanging.wait(60)
    inventory.save()
    inventory.take_over_changes(frozenset())
    assert inventory.identities() == (identity(0),)

    healed.set()
    inventory.wait(60)

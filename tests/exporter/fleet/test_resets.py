"""Whether a GPU was reset while no process read it, and when."""

from __future__ import annotations

import pytest
from tests.exporter.fleet.gpu_story import BUS_ID, IDENTITY, Story

from rankscope.exporter.fleet.inventory import EnergyMeter
from rankscope.exporter.fleet.wire import Failed, Opened
from rankscope.exporter.source import DownReason, GpuIdentity


@pytest.mark.parametrize("reason", ["missing", "not_in_driver", "no_driver", "library_mismatch"])
@pytest.mark.parametrize(("joules", "resets"), [(1_000_500.0, 0), (300.0, 1), (0.0, 1)])
def test_absence_alone_is_no_reset(reason: DownReason, joules: float, resets: int) -> None:
    """Else alerts about its Xids would end without a repair."""
    story = Story()
    story.until_sampling(1_000_000, 100)
    story.hear(Failed("nvml_error", "x"))
    story.exit("ended with status 0")
    assert story.step(5, (reason, "so the survey")) == "absent"

    story.until_read_again(joules, 100)

    if joules == 0:  # no counter on this board any more
        story.now += 61
        story.hear(story.sample(0, 100))
    assert len(story.resets) == resets


def test_delayed_energy_reading_is_awaited_before_a_reset() -> None:
    for readings, resets in (((0, 0, 1_000_900), 0), ((0, 300), 1), ((0, 0), 0), ((0,) * 8, 1)):
        story = Story()
        story.until_sampling(1_000_000, 100)
        story.hear(Failed("no_driver", "x"))
        story.until_read_again(readings[0], 100)
        for joules in readings[1:]:
            story.now += 10
            story.hear(story.sample(joules, 100))
        assert len(story.resets) == resets, readings


def test_changed_driver_version_without_reload_is_no_reset() -> None:
    for joules, resets in ((1_000_500.0, 0), (300.0, 1)):
        story = Story()
        story.until_sampling(1_000_000, 100)
        story.slot.start_afresh(story.now, "590.44.01")
        story.until_read_again(joules, 100)
        assert len(story.resets) == resets


@pytest.mark.parametrize("joules", [300.0, 0.0])
def test_process_restarted_before_a_driver_survey_counts_one_reset(joules: float) -> None:
    """Else one reload would be two resets, and the second would end the alert about an Xid in between."""
    story = Story()
    story.step()
    story.hear(Opened(IDENTITY, "580.65.06"), story.sample(1000 * joules, 100))
    story.hear(Failed("nvml_error", "uninitialized"))
    story.exit("ended with status 0")
    story.now += 10
    assert story.step() == "opening"
    story.hear(Opened(IDENTITY, "590.44.01"), story.sample(joules, 100))
    assert len(story.resets) == 1

    story.slot.start_afresh(story.now, "590.44.01")

    assert story.slot.state == "sampling"
    story.hear(story.sample(joules, 100))
    assert len(story.resets) == 1


def test_small_energy_counter_does_not_rule_out_a_reset() -> None:
    story = Story()
    story.until_sampling(1000, 100)
    story.hear(Failed("no_driver", "x"))
    story.until_read_again(2000, 100)
    assert len(story.resets) == 1


@pytest.mark.parametrize("release", [False, True])
def test_lost_or_released_gpu_counts_as_reset_regardless_of_energy(release: bool) -> None:
    story = Story()
    story.until_sampling(1_000_000, 100)
    down_s = story.now
    if release:
        story.slot.release(story.now, 5)
        story.step()
        story.exit("ended with status 0")
        story.step()
    else:
        story.hear(Failed("lost", "x"))
    story.until_read_again(1_000_500, 100)
    assert story.resets == [pytest.approx(down_s)]


def test_failed_release_does_not_hide_the_reset_of_a_lost_gpu() -> None:
    story = Story()
    story.until_sampling()
    story.hear(Failed("lost", "x"))
    story.slot.release(story.now, 60)
    story.slot.give_up_release(story.now)
    story.until_read_again()
    assert len(story.resets) == 1


def test_a_hang_alone_is_no_reset() -> None:
    story = Story()
    story.until_sampling(1_000_000, 100)
    story.process.hang = "x"
    story.step()
    story.until_read_again(1_000_500, 100)
    assert story.resets == []


def test_reset_time_is_derived_from_the_energy_counter() -> None:
    """An error of the job that used it before the exporter did is not repaired."""
    story = Story()
    story.until_sampling(1_000_000, 400)
    story.slot.release(story.now, 600)
    story.step()
    story.exit("ended with status 0")
    released_s = story.now

    story.until_read_again(400 * 500.0, 400, after_s=600)  # 500 s at work
    assert story.resets == [pytest.approx(released_s + 100, abs=1)]

    # each failed attempt to open a lost GPU shows that it was not reset before
    story.hear(Failed("lost", "x"))
    story.exit("ended with status 0")
    story.step(20)
    story.hear(Failed("lost", "x"))
    lost_s = story.now
    story.until_read_again(400 * 500.0, 400, after_s=30)
    assert story.resets[1:] == [pytest.approx(lost_s)]


def test_gpu_moved_while_sampled_counts_as_reset() -> None:
    for was_read, resets in ((True, 1), (False, 0)):
        old, new = Story(), Story()
        old.slot.remember(IDENTITY, None)
        if was_read:
            old.until_sampling(100, 100)
        new.step()
        new.hear(Opened(IDENTITY))
        new.slot.move_from(old.slot, new.now)
        new.hear(new.sample())
        assert len(new.resets) == resets


def test_a_smaller_energy_counter_of_a_new_process_is_a_reset() -> None:
    story = Story()
    story.until_sampling(100)
    story.hear(story.sample(5000))
    story.exit()
    story.until_read_again(5001, after_s=60)
    assert story.resets == []
    story.exit()
    story.until_read_again(150, after_s=60)
    assert story.resets == [story.now]
    story.exit()
    story.until_read_again(0, after_s=60)  # not in the first samples
    story.hear(story.sample(0), story.sample(20))
    assert len(story.resets) == 2
    # another GPU in its place
    other = GpuIdentity("GPU-1", index=0, model="Test GPU", pci_bus_id=BUS_ID)
    story.exit()
    assert story.step(60) == "opening"
    story.hear(Opened(other), story.sample(1, identity=other))
    assert len(story.resets) == 2


def test_energy_counter_reveals_a_reset_while_the_exporter_was_down() -> None:
    story = Story()
    story.slot.remember(IDENTITY, EnergyMeter(900.0, "boot", story.now - 60))
    story.until_sampling()
    story.hear(story.sample(30))
    assert len(story.resets) == 1


def test_replacement_gpu_does_not_count_as_reset() -> None:
    story = Story()
    story.slot.remember(IDENTITY, EnergyMeter(900.0, "boot", story.now - 60))
    other = GpuIdentity("GPU-1", index=0, model="Test GPU", pci_bus_id=BUS_ID)
    assert story.step() == "opening"
    story.hear(Opened(other), story.sample(30, identity=other))
    assert story.resets == []


def test_failed_release_is_no_reset() -> None:
    story = Story()
    story.until_sampling(1_000_000, 100)
    story.slot.release(story.now, 60)
    story.slot.give_up_release(story.now)
    story.hear(story.sample(1_000_500, 100))
    assert story.resets == []

"""A task that fails costs only itself."""

from __future__ import annotations

from rankscope.profiler.helper.tasks import HelperTask, HelperTasks


class Failing(HelperTask):
    """Task that fails at its first tick, and optionally at its end."""

    def __init__(self, *, at_end: bool) -> None:
        self.at_end = at_end
        self.ends = list[bool]()

    def tick(self) -> None:
        """Fail."""
        raise ValueError("bad day")

    def end(self, *, vanished: bool) -> None:
        """Record the end."""
        self.ends.append(vanished)
        if self.at_end:
            raise ValueError("worse")


def test_a_task_that_fails_is_ended_and_said_once_and_the_others_go_on() -> None:
    text, ticks = list[str](), list[int]()

    class Other(HelperTask):
        def tick(self) -> None:
            ticks.append(1)

    failing = [Failing(at_end=False), Failing(at_end=True)]
    tasks = HelperTasks([*failing, Other()], text.append)
    tasks.tick()
    tasks.tick()
    tasks.end(vanished=True)
    # The helper leaves nothing behind that would make the rank look vanished.
    assert [task.ends for task in failing] == [[False], [False]]
    assert len(ticks) == 2
    assert len(text) == 2
    assert all("Failing failed (ValueError: bad day)" in line for line in text)

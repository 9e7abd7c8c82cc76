"""Callback for Lightning, under both its names (``lightning.pytorch`` and ``pytorch_lightning``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rankscope.profiler.integrations.fit_session import FitSession, harmless
from rankscope.profiler.rank.measures import measure

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _base_classes() -> tuple[type[Any], type[Any]]:
    """Return the base classes from the package that the script uses; importing the other one too would take seconds."""
    for package in sorted(_PACKAGES, key=lambda package: package not in sys.modules):
        try:
            return import_module(package).Callback, import_module(f"{package}.loggers.logger").DummyLogger
        except ModuleNotFoundError:
            continue
    raise ImportError("Lightning is not installed: pip install lightning")


_Callback, _DummyLogger = _base_classes()


class _MetricsLogger(_DummyLogger):  # type: ignore[misc, valid-type]  # known at run time only
    """Logger that records in ``fit`` what Lightning has converted to plain numbers for the ``first`` logger.

    Whatever else a script calls on all of its loggers does nothing here.
    """

    def __init__(self, fit: FitSession, first: Any) -> None:
        super().__init__()
        self.fit = fit
        self._first = first

    @property
    def version(self) -> Any:
        """Version of the first logger: progress bars show the distinct versions of all loggers."""
        return self._first.version

    @harmless
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:  # noqa: ARG002  # Lightning's names
        """Record the metrics of this rank, without the epoch that Lightning adds and the many of its ``DeviceStatsMonitor``."""
        for name, value in metrics.items():
            if name != "epoch" and not name.startswith("DeviceStatsMonitor."):
                self.fit.metric(name, value)


def _other_loggers(trainer: Any) -> list[Any]:
    """Return the loggers of the script."""
    return [logger for logger in trainer.loggers if not isinstance(logger, _MetricsLogger)]


class RankscopeCallback(_Callback):  # type: ignore[misc, valid-type]  # as above
    """Callback that records every ``trainer.fit``: a step is one optimizer step, as in ``trainer.global_step``.

    ::

        trainer = Trainer(callbacks=[RankscopeCallback("runs/first")])

    ``run_dir`` must be the same folder on all ranks; omit it under ``rankscope run``, whose folder and settings are used. A
    second fit of the same process is recorded in ``run_dir``-2, and so on. ``validate``, ``test`` and ``predict`` alone record
    nothing. ``tokens`` is a function that returns the number of tokens of a batch. A module's ``flops_per_batch``, as defined by
    Lightning's ``ThroughputMonitor``, is recorded. Further options are those of ``StepProfiler``. With several optimizers (manual
    optimization) a step is a batch in which at least one has stepped.

    Metrics that Lightning logs during the fit are recorded, as by ``StepProfiler.metric``, in the step that follows. Each rank
    records its own values; those logged with ``sync_dist=True`` are the same on all ranks. With ``logger=False`` there are none,
    because reading them would wait for the device. During the fit, ``trainer.loggers`` ends with one more logger.

    Raises ``ValueError`` if there is neither a ``run_dir`` nor a launcher, and ``TypeError`` for an unknown option. Later errors
    are reported once on stderr, and training goes on.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        tokens: Callable[[Any], int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.fit = FitSession(run_dir, options)
        self._tokens = tokens
        self._stepped = 0

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's names, as below
        """Begin a fit: training begins, and the sanity check is over."""
        self._stepped = trainer.global_step
        self.fit.begin()
        loggers = _other_loggers(trainer)
        if loggers:
            trainer.loggers = [*loggers, _MetricsLogger(self.fit, loggers[0])]

    @harmless
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Add a finished batch, and end the step if an optimizer has stepped (gradient accumulation: not at every batch)."""
        if not self.fit.active:
            return
        tokens = None if self._tokens is None else self._tokens(batch)
        self.fit.add(measure(batch)[0], tokens, getattr(pl_module, "flops_per_batch", None))
        if trainer.global_step != self._stepped:
            self._stepped = trainer.global_step
            self.fit.step()

    @harmless
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Tag the step, if validation runs inside a fit."""
        self.fit.tag("eval")

    @harmless
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:  # noqa: ARG002
        """Tag the step with a checkpoint: called on all ranks, of which one writes."""
        self.fit.tag("checkpoint")

    @harmless
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the fit."""
        self._end(trainer)

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the fit with an exception."""
        self._end(trainer, exception)

    @harmless
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """End the fit, if it is still open."""
        self._end(trainer)

    def _end(self, trainer: Any, error: BaseException | None = None) -> None:
        self.fit.end(error)
        trainer.loggers = _other_loggers(trainer)

"""Callback for the ``Trainer`` of Hugging Face's transformers, and for trainers derived from it."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

from rankscope.profiler.integrations.fit_session import FitSession, harmless
from rankscope.profiler.rank.measures import measure

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise ImportError("transformers is not installed: pip install transformers") from error


class RankscopeCallback(TrainerCallback):  # type: ignore[misc]  # a class of a package that mypy does not follow
    """Callback that records every ``trainer.train()``: a step is one optimizer step, as in ``state.global_step``.

    ::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[RankscopeCallback("runs/first")])

    ``run_dir`` must be the same folder on all ranks; omit it under ``rankscope run``, whose folder and settings are used. A
    second ``train()`` of the same process is recorded in ``run_dir``-2, and so on. ``evaluate`` and ``predict`` alone record
    nothing. Samples, tokens (padding included) and the trainer's own estimate of the floating-point operations are those of this
    rank. Further options are those of ``StepProfiler``.

    The trainer does not report exceptions to callbacks. An exception that ends the process ends the recording; after a caught one
    the recording stays open until the next ``train()`` or the end of the process.

    Raises ``ValueError`` if there is neither a ``run_dir`` nor a launcher, and ``TypeError`` for an unknown option. Later errors
    are reported once on stderr, and training goes on.
    """

    def __init__(self, run_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.fit = FitSession(run_dir, options)

    @harmless
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002  # the library's names
        """Begin a fit."""
        _watch_batches()
        self.fit.begin()

    @harmless
    def trained_on(self, trainer: Any, batch: Any, flops: float) -> None:
        """Add a batch after its forward and backward. ``flops``: the trainer's estimate, 0 where it has none."""
        name = getattr(trainer.model, "main_input_name", "input_ids")
        # Elements of an image or a waveform are not tokens.
        tokens = batch[name].numel() if name == "input_ids" and name in batch else None
        self.fit.add(measure(batch)[0], tokens, flops or None)

    @harmless
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End the step after the optimizer; logging, evaluation and checkpoints follow and belong to the next step."""
        self.fit.step()

    @harmless
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Record the logged loss, learning rate and gradient norm; the trainer logs after the end of a step, so in the next."""
        for name in ("loss", "learning_rate", "grad_norm"):
            if logs and name in logs:
                self.fit.metric(name, logs[name])

    @harmless
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Tag the step with an evaluation: one of its batches is done."""
        self.fit.tag("eval")

    @harmless
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Tag the step with a checkpoint that was written: called on all ranks."""
        self.fit.tag("checkpoint")

    @harmless
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """End the fit."""
        self.fit.end()


def _watch_batches() -> None:
    """Make trainers pass their batches to our callbacks: the library does not.

    ``Trainer.floating_point_ops`` is called once per batch, right after its backward.
    """
    from transformers import Trainer

    original = Trainer.floating_point_ops
    if hasattr(original, "rankscope"):
        return

    @wraps(original)
    def floating_point_ops(trainer: Any, inputs: Any) -> Any:
        flops = original(trainer, inputs)
        for callback in getattr(getattr(trainer, "callback_handler", None), "callbacks", ()):
            if isinstance(callback, RankscopeCallback):
                callback.trained_on(trainer, inputs, flops)
        return flops

    floating_point_ops.rankscope = True  # type: ignore[attr-defined]
    Trainer.floating_point_ops = floating_point_ops

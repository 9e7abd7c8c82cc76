"""Trainings of one process with the callback, in a folder of its own: an evaluation alone, the page's example, then others.

Its argument is a file with the example.
"""

from __future__ import annotations

import sys
from pathlib import Path

from train_huggingface import Sequences, arguments  # type: ignore[import-not-found]  # beside this script
from train_huggingface import model as new_model
from transformers import Trainer, TrainerCallback

from rankscope.profiler.integrations.huggingface import RankscopeCallback


class Failing(TrainerCallback):
    """Training fails at the third step."""

    def on_step_begin(self, args: object, state: object, control: object, **kwargs: object) -> None:
        if getattr(state, "global_step", 0) == 2:
            raise RuntimeError("the script's own error")


if __name__ == "__main__":
    # given the names that the example leaves to the user
    model, args, train, test = new_model(), arguments("out"), Sequences(9), Sequences(3)
    # when only evaluated, in a process that may record
    Trainer(model, args, eval_dataset=test, callbacks=[RankscopeCallback("runs/none")]).evaluate()
    # when trained as in the example
    exec(Path(sys.argv[1]).read_text())
    # when training fails and the script continues
    trainer = Trainer(model, args, train_dataset=train, eval_dataset=test, callbacks=[RankscopeCallback("runs/first"), Failing()])
    try:
        trainer.train()
    except RuntimeError as error:
        print(error, flush=True)
    trainer.remove_callback(Failing)
    trainer.train()
    print(f"{trainer.state.global_step} steps", flush=True)

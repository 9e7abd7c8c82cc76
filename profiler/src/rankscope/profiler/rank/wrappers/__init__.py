"""Wrappers around functions of torch and Python, through which an unmodified script is recorded.

``attach`` installs them. What the other modules see:

- the end of a step: ``optimizers``; work: ``model_inputs``; the data loader's worker processes: ``worker_count``; ``checkpoints``
- time blocked on other ranks: ``waits`` (on the host), ``ddp`` (end of the rank's own backward pass), ``groups`` (in streams)
- the end of the process: ``process_end``; waits of the script for its children: ``hidden_helpers``
"""

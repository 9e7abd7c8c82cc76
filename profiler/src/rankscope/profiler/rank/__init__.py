"""Inside the training process: wrappers that report what happens in a step, and what is read at its end.

``attach`` wraps the functions that every training loop calls. The wrappers report to ``recorder``, which stores a word per event:

- the end of a step: ``optimizers``; data: ``loaders``; work: ``measures`` (batches) and ``model_inputs``;
- time blocked on other ranks: ``waits`` (on the host), ``ddp`` (end of the rank's own backward pass), ``groups``;
- ``occasional_events``: copies, checkpoints (``checkpoints``), evaluations, sections and tags of the script.

``step_ends`` does what is due between two steps: ``meters`` (CPU, garbage collection, memory), ``device`` (times on a GPU, in the
steps that ``mark_sampling`` chooses, never inside ``graph_capture``), and ``windows`` of torch's profiler (``kineto``).

``lifecycle`` starts and ends the recording: ``identity`` and ``layout`` (which rank this is, and its place in the job),
``session`` (ring and helper), ``hidden_helpers``, ``process_end``, ``unrecorded`` (why no step was seen). ``flight_dump`` and
``memory_snapshot`` write torch's own dumps. ``guard`` keeps every error of the recorder away from training.
"""

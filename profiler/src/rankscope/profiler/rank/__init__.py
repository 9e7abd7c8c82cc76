"""Inside the training process: wrappers that report what happens in a step, and what is read at its end.

``wrappers/`` wraps the functions that every training loop calls. The wrappers report to ``recorder``, which stores a word per
event; ``occasional_events`` has those that do not come in every step, ``measures`` the sizes of batches and the script's
numbers.

``step_ends`` does what is due between two steps: ``meters`` (CPU, garbage collection, memory), and in ``gpu/`` times on the
device and profiler windows.

``lifecycle`` starts and ends the recording: ``identity`` and ``layout`` (which rank this is, and its place in the job),
``session`` (ring and helper), ``unrecorded`` (why no step was seen). ``guard`` keeps every error of the recorder away from
training.

There is one recording at a time. A second ``StepProfiler`` adds nothing (``profiler/step.py``, by ``wrappers/attach``). Of
threads that train at once one is recorded (``claim`` in ``lifecycle``). The helper refuses a second process in the place of a
living rank (``helper/writing/store.py``).
"""

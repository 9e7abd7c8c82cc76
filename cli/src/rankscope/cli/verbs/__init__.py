"""Verbs of the command that have no folder of their own, a module each, and what only they use.

``schema`` lists every JSON that has a schema. ``step_batches`` converts step records for ``steps``; ``check``,
``kept_files`` and ``nvml`` belong to ``doctor``.
"""

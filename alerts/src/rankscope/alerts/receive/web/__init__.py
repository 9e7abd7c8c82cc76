"""HTTP of the receiver: ``server`` (TLS) → ``app`` (paths) → ``authentication`` and ``bodies``, or ``refusals``."""

"""Modules shared by several packages of rankscope. Every package may import this one; it imports none of them.

- Errors and problems: ``errors`` (what a user can act on, with its exit status), ``problems`` (reported once while they last).
- Text and values: ``text``, ``options`` (values of command lines and files), ``config_files`` (TOML), ``version``.
- Files: ``atomic_files`` (replaced as a whole), ``regular_files`` and ``followed_files`` (of other users, of slow disks),
  ``locks``, ``formats`` (names and numbers of file formats), ``line_writer`` (never blocks).
- Processes: ``process``, ``launchers`` (rank and world size from the environment), ``progress``, ``logs``.
- Network: ``http`` (without a server library), ``http_server`` (uvicorn's protocol, with deadlines), ``exposition`` (Prometheus).
"""

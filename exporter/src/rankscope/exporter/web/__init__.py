"""HTTP: pages, health, and cooperative release of GPUs.

Path of a request: a TCP socket, or the Unix socket of ``control`` → ``rankscope.base.http_server`` (limits, deadlines, TLS) →
``app`` (routes) → ``access`` (users and passwords) → the handler.

The handlers are ``rendered`` (cache of the pages from ``pages/``), ``landing`` (the page for a browser) and ``control`` (release
and resume, with their client). ``config`` reads the web configuration.
"""

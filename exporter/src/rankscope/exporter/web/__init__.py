"""HTTP: pages, health, and cooperative release of GPUs.

Path of a request: a TCP socket, or ``unix_socket`` → ``rankscope.base.http_server`` (limits, deadlines, TLS) → ``app`` (routes) →
``access`` (users and passwords) → the handler.

The handlers are ``rendered`` (cache of the pages from ``pages/``), ``landing`` (the page for a browser) and ``control`` (release
and resume). ``config`` reads the web configuration.
"""

"""HTTP: pages, health, and cooperative release of GPUs.

The way of a request: ``listening`` (sockets) → ``rankscope.base.http_server`` (limits, deadlines, TLS) → ``app`` (routes) →
``access`` (users and passwords of the web configuration, which ``config`` reads) → ``rendered`` (a page that is there, or one
that ``pages/`` renders now), ``landing`` (the page for a browser) or ``control`` (release and resume).
"""

"""Web server of the pages: access control, login, security headers.

``server`` runs gunicorn as ``config`` says. ``security`` checks host names and sets headers; ``access`` decides what a visitor
may do, by ``token`` (with ``login``) or ``trusted_proxy``. ``viewer_cookie`` tells browsers apart, ``compression`` compresses,
``errors`` answers for uncaught errors.
"""

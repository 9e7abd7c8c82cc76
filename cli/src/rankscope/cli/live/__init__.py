"""``rankscope capture``: requests to the ranks of a live run.

``capture`` is the verb, ``capture_result`` its JSON. ``capture_request`` requests a profile, ``dump_request`` dumps, with ids
that outlive the caller (``request_id``). ``live_run`` has the live ranks, ``profile_progress`` their progress, ``standstill``
those that record nothing.
"""

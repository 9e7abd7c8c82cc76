"""``rankscope capture``: requests to the ranks of a live run.

``capture`` is the verb, ``capture_result`` its JSON. ``capturing`` requests a profile, ``dumping`` dumps, with ids that outlive
the caller (``request_id``). ``live_run`` has the live ranks, ``profiled`` their progress, ``standstill`` those that record
nothing.
"""

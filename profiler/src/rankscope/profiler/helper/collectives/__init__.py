"""What torch and NCCL know about collectives: durations, Flight Recorder dumps, the answer of NCCL RAS.

``collective_times`` records durations, from a ``times_source``: ``flight_times`` (dumps before they are overwritten) or
``inspector_log`` (with ``log_follower``). ``flight`` copies dumps into the run, ``ras`` asks NCCL.
"""

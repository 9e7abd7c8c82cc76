"""First view of a run: verdict, waterfall of a step's time, trend, advice.

``verdict`` is the card at the top, ``figures`` has the waterfall and the trend, ``script_rows`` the script's own metrics and
tags below it, ``changes`` what changed when, ``advice`` what to try.
"""

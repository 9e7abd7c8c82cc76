"""Dash adapter: draws the model of a page live and keeps it up to date. Only this package knows Dash.

``pages`` makes the page of an address, in the frame of ``shell``, from blocks that ``components`` and ``grid`` (tables) turn into
Dash's. Callbacks: ``routing`` (address, links, cancelling), ``selection`` (controls and clicks), ``redraw`` (figures, parts,
tables), ``lists`` (of runs and alerts), ``downloads`` (CSV, Perfetto). ``capture_api`` is the only address that changes a run.
"""

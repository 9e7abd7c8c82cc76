"""Declarative model of a page: what it shows, not how it is drawn.

A page is a list of blocks (``page``; ``columns`` of tables, ``line`` for emphasis and links, ``run_head`` around every view)::

    page -> Section -> Figure | Table | Text | Items | Facts | Details | … | Part, and controls in its tools

A view is a function ``(run, state) -> blocks`` (``view``), where ``state`` is the selection in the address (``state``). Building
the blocks is cheap: figures, tables and parts hold functions that are called when they are drawn. Two writers draw the same
blocks: ``live`` as Dash components, which redraws figures, tables and parts when the run, the address or the colour scheme
changes, and ``report`` as one HTML file through a Jinja template, which leaves out controls and requests. To add a kind of block,
add a class here, a case in ``live.components`` and a macro in ``report/report.html``; a test compares the three.

The way of the data: ``data`` (what is known of a run) -> a feature's ``data`` (what its view computes), ``figures`` (pure:
records -> ``drawn.Drawn``), ``view`` (blocks) -> ``registry`` -> ``live`` or ``report``.
"""

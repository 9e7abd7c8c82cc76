"""From the computed facts to the rows and the advice of a result, and to its text on a terminal.

``ranks`` makes a row for each rank, from its windows, its waits and its step records. ``assembly`` makes a complete ``Analysis``
(see ``result``) of any source, with waterfall and advice.

``terminal`` renders an ``Analysis`` for people, answer first: read it for the order of the page. Its tables are in
``terminal_tables``, its blocks of figures in ``terminal_costs``, and the breakdown of ``--detail`` in ``terminal_detail``. The
dashboard renders the same ``Analysis`` itself.
"""

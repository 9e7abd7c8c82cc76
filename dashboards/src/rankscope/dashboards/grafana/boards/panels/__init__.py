"""What the boards are made of: the frame, panels, queries, and what several boards show.

``board`` has identity, variables and links, ``canvas`` rows and places, ``kinds`` the panels, ``columns`` those of tables,
``marks`` colours, thresholds and texts, ``promql`` PromQL. ``availability`` shows whether exporters and rules answer;
``infiniband`` and ``xids`` are rows of several boards.
"""

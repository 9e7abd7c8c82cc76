"""View of one value per rank and step.

``view`` uses the map of ``charts.heatmap``, with the events of ``figures``; ``data`` has one rank in one step, ``tables`` all
ranks and hosts.
"""

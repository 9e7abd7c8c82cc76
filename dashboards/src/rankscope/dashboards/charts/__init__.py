"""What figures of several features share: styles, and reduction to what fits a screen.

``frame`` is the common look of all figures, ``palette`` their colours, ``causes`` and ``bars`` the styles of bars. ``heatmap``
draws ranks and steps, ``downsampled_trend`` a run over its steps; ``cells`` reduces a matrix or a table to what fits.
"""

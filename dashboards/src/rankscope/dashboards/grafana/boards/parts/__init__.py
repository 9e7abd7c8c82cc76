"""Parts of the boards: the frame, panels, queries, and what several boards show."""

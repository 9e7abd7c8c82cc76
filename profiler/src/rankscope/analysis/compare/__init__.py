"""Two runs, or a run before and after a step: what changed, and is it real. And runs of several world sizes."""

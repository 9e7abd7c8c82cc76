"""Compare two runs, or a run before and after a step, or runs of several world sizes; test changes against noise."""

"""The what-if analysis: step times on the dependency graph with some of the operations at their ideal durations."""

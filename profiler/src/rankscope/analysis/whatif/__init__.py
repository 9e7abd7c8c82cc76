"""What if nobody were slow: step times on the dependency graph with some of the operations at their ideal durations."""

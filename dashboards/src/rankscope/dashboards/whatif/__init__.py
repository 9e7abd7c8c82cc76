"""What-if view: step times without slow ranks, stages, causes or phases."""

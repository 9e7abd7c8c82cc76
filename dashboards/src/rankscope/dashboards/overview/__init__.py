"""First view of a run: verdict, waterfall of a step's time, trend, advice."""

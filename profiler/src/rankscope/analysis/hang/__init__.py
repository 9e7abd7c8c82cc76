"""Find the ranks that hung a job, from their Flight Recorder dumps."""

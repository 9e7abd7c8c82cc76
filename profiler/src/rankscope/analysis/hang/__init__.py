"""Who hung the job: from Flight Recorder dumps of its ranks."""

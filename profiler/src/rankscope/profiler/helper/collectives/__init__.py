"""What torch and NCCL know about collectives: durations, Flight Recorder dumps, the answer of NCCL RAS."""

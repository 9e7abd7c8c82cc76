"""Table of the step records of all ranks: how it is read, filled, and kept in step."""

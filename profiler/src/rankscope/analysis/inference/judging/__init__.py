"""Judgement of ranks: which of them make the others wait, by tests against the noise of the run."""

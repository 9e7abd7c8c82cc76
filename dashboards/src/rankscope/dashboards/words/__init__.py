"""Text of the pages: sanitized names, units, numbers and verdicts in words."""

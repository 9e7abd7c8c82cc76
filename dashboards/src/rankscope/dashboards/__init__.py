"""The pages that show the evidence: a Dash app over run directories."""

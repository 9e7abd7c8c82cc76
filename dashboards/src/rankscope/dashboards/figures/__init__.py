"""Pure functions from records or arrays to Plotly figures."""

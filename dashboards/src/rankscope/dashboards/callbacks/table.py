"""The table of ranks."""

from __future__ import annotations

from dash import Dash, Input, Output


def register(app: Dash) -> None:
    """Add the callback that saves the table."""

    @app.callback(Output("rank-table", "exportDataAsCsv"), Input("save-csv", "n_clicks"), prevent_initial_call=True)
    def save_csv(clicks: int | None) -> bool:
        return bool(clicks)

"""Addresses of experiment trackers from the environment."""

from __future__ import annotations

import pytest

from rankscope.profiler.trackers import tracker_urls

WANDB = {"WANDB_ENTITY": "team a", "WANDB_PROJECT": "bert", "WANDB_RUN_ID": "x1", "WANDB_API_KEY": "secret"}
MLFLOW = {"MLFLOW_RUN_ID": "ab12", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_TRACKING_TOKEN": "secret"}


def test_identifiers_make_addresses_without_keys_and_passwords() -> None:
    environ = {**WANDB, **MLFLOW, "MLFLOW_TRACKING_URI": "https://me:secret@ml.example:5000/x/?token=secret"}

    assert tracker_urls(environ) == {
        "W&B": "https://wandb.ai/team%20a/bert/runs/x1",
        "MLflow": "https://ml.example:5000/x/#/experiments/7/runs/ab12",
    }
    assert "secret" not in str(tracker_urls(environ))


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WANDB_PROJECT": "bert"},
        {**MLFLOW, "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"},
        {**MLFLOW, "MLFLOW_TRACKING_URI": "http://[bad"},
        {**WANDB, "WANDB_BASE_URL": "javascript:alert(1)"},
    ],
)
def test_without_an_address_there_is_no_link(environ: dict[str, str]) -> None:
    assert tracker_urls(environ) == {}

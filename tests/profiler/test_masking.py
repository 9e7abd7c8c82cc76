"""What a run keeps of the command line and the environment: secrets are masked, trackers have addresses."""

from __future__ import annotations

import shlex

import pytest

from rankscope.profiler.masking import masked
from rankscope.profiler.trackers import tracker_urls


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("env HF_TOKEN=s3cret WANDB_API_KEY=s3cret python x.py", "env 'HF_TOKEN=***' 'WANDB_API_KEY=***' python x.py"),
        ("env MYKEYS=s3cret DBPASSWORD='s3 cret' x", "env 'MYKEYS=***' 'DBPASSWORD=***' x"),
        ("x.py --hf-token s3cret --epochs 3", "x.py --hf-token '***' --epochs 3"),
        ("x.py --api-key=s3cret --api_key s3cret --apikey s3cret", "x.py '--api-key=***' --api_key '***' --apikey '***'"),
        ("x.py +logger.password=s3cret ++db.secret=s3cret", "x.py '+logger.password=***' '++db.secret=***'"),
        ("x.py --push-token --epochs 3", "x.py --push-token --epochs 3"),
        ("x.py --data s3://me:s3cret@host/data", "x.py --data 's3://***@host/data'"),
        ("sh -c 'A=1 HF_TOKEN=s3cret x.py --api-key s3cret --lr 1'", "sh -c 'A=1 HF_TOKEN=*** x.py --api-key *** --lr 1'"),
    ],
)
def test_values_of_secrets_are_masked(command: str, shown: str) -> None:
    assert shlex.join(masked(shlex.split(command))) == shown


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc-per-node 8 train.py --tokenizer gpt2 --max-tokens 512 --lr=0.1",
        "env TOKENIZERS_PARALLELISM=false MAX_TOKENS=4 train.py --monkey 3 --num-keys=4",
        "sh -c 'cd /data && python train.py --batch 3 > log'",
        "train.py --data s3://bucket/path@v2",
    ],
)
def test_nothing_else_is(command: str) -> None:
    assert masked(shlex.split(command)) == shlex.split(command)


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

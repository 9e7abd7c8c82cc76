"""Settings: invalid ones are refused while the script trains on; secrets of the command are masked, trackers have addresses."""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import info_of

from rankscope.profiler import settings as settings_module
from rankscope.profiler.masking import masked
from rankscope.profiler.settings import RecorderSettings, RecordingOptions, default_spool_dir, from_environment
from rankscope.profiler.trackers import tracker_urls
from rankscope.runs.reader import is_run

WRONG: list[tuple[str, Any]] = [
    ("budget", 5.0),
    ("budget", -1.0),
    ("budget", 0.0),
    ("budget", float("nan")),
    ("window_first", 0),
    ("window_every", -1),
    ("window_steps", -3),
    ("keep_traces", -1),
    ("retain_bytes", 0),
    ("otlp_every", 0),
    ("stacks_seconds", 0.0),
    ("plan_ahead_steps", -1),
    ("plan_ahead_seconds", float("inf")),
    ("price_per_gpu_hour", -2.0),
]


BASE: dict[str, Any] = {"run_dir": "/r", "run_id": "r", "name": "r", "start_unix_ns": 1}


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_invalid_number_is_refused_from_every_source(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is .*, it must be"):
        RecorderSettings(**(BASE | {name: value}))
    variables = RecorderSettings(**BASE).environment() | {f"RANKSCOPE_{name.upper()}": str(value)}
    with pytest.raises(msgspec.ValidationError):
        from_environment(variables)
    if value == value and value != float("inf"):  # noqa: PLR0124  # JSON has neither nan nor infinity
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.json.decode(msgspec.json.encode(BASE | {name: value}), type=RecorderSettings)


@pytest.mark.usefixtures("require_torch")
@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name, value in WRONG if not name.startswith("plan_ahead")),
        {"budget": "a lot"},
        {"budget": None},
        {"window_steps": "3"},
        {"window_first": 2.5},
        {"coordinates": 7},
        {"run_dir": None},
        {"run_dir": ""},
        {"run_dir": "a\0b"},
        {"spool_dir": 5},
        {"spool_dir": "\udce4"},
        {"coordinates": 5},
        {"coordinates": [1]},
    ],
    ids=str,
)
def test_invalid_options_log_one_line_and_the_script_continues(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: dict[str, Any]
) -> None:
    from rankscope.profiler.step import StepProfiler

    with StepProfiler(**({"run_dir": tmp_path / "run"} | wrong)) as prof:
        for batch in prof.data([1, 2]):
            with prof.section("h2d"):
                prof.tag("eval")
            prof.step(samples=batch)
    err = capfd.readouterr().err
    assert err.startswith("rankscope: not recorded: ")
    assert err.endswith("; training goes on\n")
    assert err.count("\n") == 1
    assert not is_run(tmp_path / "run")


@pytest.mark.usefixtures("require_torch")
def test_invalid_variable_of_a_script_is_logged_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankscope.profiler.step import StepProfiler

    monkeypatch.setenv("RANKSCOPE_PLAN_AHEAD_SECONDS", "soon")
    with StepProfiler(tmp_path / "run") as prof:
        prof.step()
    err = capfd.readouterr().err
    assert err.startswith("rankscope: not recorded: RANKSCOPE_PLAN_AHEAD_SECONDS=soon: ")
    assert err.count("\n") == 1
    assert not is_run(tmp_path / "run")


@pytest.mark.usefixtures("require_torch")
@pytest.mark.parametrize("budget", ["2%", "0.02", 0.02])
def test_script_options_accept_a_text_budget_and_override_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str | float
) -> None:
    from rankscope.profiler.step import StepProfiler

    monkeypatch.setenv("RANKSCOPE_PLAN_AHEAD_STEPS", "7")
    monkeypatch.setenv("RANKSCOPE_COORDINATES", "dp=3")
    settings = StepProfiler(tmp_path, budget=budget, retain_bytes=None)._settings
    assert settings is not None
    assert (settings.budget, settings.plan_ahead_steps, settings.coordinates) == (0.02, 7, "dp=3")
    assert settings.retain_bytes is None
    # An argument takes precedence over a variable.
    settings = StepProfiler(tmp_path, coordinates={"dp": 1})._settings
    assert settings is not None
    assert settings.coordinates == "dp=1"


@pytest.mark.usefixtures("require_torch")
def test_script_options_match_the_settings(tmp_path: Path) -> None:
    from rankscope.profiler.step import StepProfiler

    options = [name for name in inspect.signature(StepProfiler).parameters if name not in {"run_dir", "name"}]
    assert options == list(RecordingOptions.__struct_fields__)
    with pytest.raises(TypeError, match="no option windows_every; it has spool_dir, budget, window_first"):
        StepProfiler(tmp_path, windows_every=3)


@pytest.mark.usefixtures("require_torch")
def test_default_spool_is_the_exporter_folder_when_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.profiler.step import StepProfiler

    monkeypatch.setattr(settings_module, "SPOOL_DIR", tmp_path / "spool")
    assert default_spool_dir() is None
    (tmp_path / "spool").mkdir()
    chosen = [StepProfiler(tmp_path / "run", spool_dir=item)._settings for item in (None, tmp_path / "mine")]
    assert [entry and entry.spool_dir for entry in chosen] == [str(tmp_path / "spool"), str(tmp_path / "mine")]
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert default_spool_dir() is None


@pytest.mark.slow
@pytest.mark.usefixtures("require_torch")
@pytest.mark.parametrize(("error", "end"), [(KeyboardInterrupt, "interrupted"), (SystemExit, "exit"), (ValueError, "crash")])
def test_interrupted_script_is_not_recorded_as_a_crash(
    torch_ranks: PreloadedTorch, tmp_path: Path, error: type[BaseException], end: str
) -> None:
    script = (
        "import sys; from rankscope.profiler.step import StepProfiler\n"
        "with StepProfiler(sys.argv[1], window_steps=0, exporter_url=None) as prof:\n"
        f"    prof.step(); prof.step(); raise {error.__name__}"
    )
    # The helper shares the captured streams: it is done when they are closed.
    subprocess.run(torch_ranks.command(0, "-c", script, tmp_path / "run"), capture_output=True, check=False, timeout=60)
    info = info_of(tmp_path / "run")
    assert info.end_reason == end


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
def test_secret_values_are_masked(command: str, shown: str) -> None:
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
def test_text_without_secrets_is_unchanged(command: str) -> None:
    assert masked(shlex.split(command)) == shlex.split(command)


WANDB = {"WANDB_ENTITY": "team a", "WANDB_PROJECT": "bert", "WANDB_RUN_ID": "x1", "WANDB_API_KEY": "secret"}


MLFLOW = {"MLFLOW_RUN_ID": "ab12", "MLFLOW_EXPERIMENT_ID": "7", "MLFLOW_TRACKING_TOKEN": "secret"}


def test_tracker_urls_contain_no_keys_or_passwords() -> None:
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
def test_tracker_without_an_address_has_no_url(environ: dict[str, str]) -> None:
    assert tracker_urls(environ) == {}

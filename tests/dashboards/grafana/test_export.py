"""``rankscope grafana``: its output, and its errors for bad input."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.command_line import one_line_error

from rankscope.base.errors import InputError
from rankscope.dashboards.grafana.commands import grafana
from rankscope.dashboards.grafana.export import export
from rankscope.dashboards.grafana.shipped import shipped

PROVIDER, SOURCE = "provisioning/dashboards/rankscope.yaml", "provisioning/datasources/rankscope.yaml.example"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(grafana, [str(argument) for argument in arguments])


def variable(path: Path, name: str) -> dict[str, object]:
    (ones,) = [load for load in json.loads(path.read_text())["templating"]["list"] if load["name"] == name]
    assert isinstance(ones, dict)
    return ones


def test_exported_folder_has_boards_and_provisioning_files(tmp_path: Path) -> None:
    written = export(tmp_path / "out")

    boards = {f"dashboards/{board.uid}.json" for board in shipped()}
    assert len(boards) == 5
    assert {str(path.relative_to(tmp_path / "out")) for path in written} == boards | {"README.md", PROVIDER, SOURCE}
    assert {path for path in (tmp_path / "out").rglob("*") if path.is_file()} == set(written)
    (provider,) = yaml.safe_load((tmp_path / "out" / PROVIDER).read_text())["providers"]
    assert provider["options"]["path"] in (tmp_path / "out" / "README.md").read_text()
    (source,) = yaml.safe_load((tmp_path / "out" / SOURCE).read_text())["datasources"]
    assert (source["type"], source["uid"]) == ("prometheus", "prometheus")


def test_export_by_default_writes_boards_as_generated(tmp_path: Path) -> None:
    export(tmp_path)
    generated = files("rankscope.dashboards") / "grafana" / "json"
    for path in (tmp_path / "dashboards").iterdir():
        assert path.read_text() == (generated / path.name).read_text()


def test_dashboard_url_and_data_source_are_set_in_every_board(tmp_path: Path) -> None:
    completed = run("export", tmp_path, "--datasource-uid", "prom-1", "--dashboard-url", "https://r.example/x/")

    assert completed.exit_code == 0
    paths = list((tmp_path / "dashboards").iterdir())
    assert len(paths) == 5
    for path in paths:
        assert variable(path, "dashboard_url")["query"] == "https://r.example/x"
        assert variable(path, "datasource")["current"] == {"selected": False, "text": "prom-1", "value": "prom-1"}
    (source,) = yaml.safe_load((tmp_path / SOURCE).read_text())["datasources"]
    assert source["uid"] == "prom-1"


def test_json_output_lists_the_written_files(tmp_path: Path) -> None:
    completed = json.loads(run("export", tmp_path, "--format", "json").stdout)
    assert all(Path(name).is_file() for name in completed["files"])


def test_repeated_export_replaces_own_files_and_keeps_others(tmp_path: Path) -> None:
    export(tmp_path, dashboard_url="https://old.example")
    (tmp_path / "dashboards" / "mine.json").write_text("{}")

    export(tmp_path, dashboard_url="https://new.example")

    assert (tmp_path / "dashboards" / "mine.json").read_text() == "{}"
    assert variable(tmp_path / "dashboards" / "rankscope-run.json", "dashboard_url")["query"] == "https://new.example"
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--datasource-uid", "a/b"),
        ("--datasource-uid", ""),
        ("--datasource-uid", "x" * 41),
        ("--datasource-uid", "${x}"),
        ("--dashboard-url", "ftp://h"),
        ("--dashboard-url", "javascript:alert(1)"),
        ("--dashboard-url", "http://user:secret@h"),
        ("--dashboard-url", "http://h/?a=b"),
        ("--dashboard-url", "http://h/${__user.login}"),
        ("--dashboard-url", "http://h/\n"),
    ],
)
def test_invalid_uid_or_url_is_a_usage_error(tmp_path: Path, option: str, value: str) -> None:
    completed = run("export", tmp_path / "out", option, value)
    assert completed.exit_code == 2
    assert option in completed.stderr
    assert "secret" not in completed.stderr
    assert not (tmp_path / "out").exists()


def test_unwritable_output_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file"):
        export(tmp_path / "file")
    (tmp_path / "out" / "dashboards" / "rankscope-alerts.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"rankscope-alerts\.json"):
        export(tmp_path / "out")


def test_list_command_names_every_board() -> None:
    answer = json.loads(run("list", "--format", "json").stdout)
    rows = answer["boards"]
    assert answer["schema"] == "rankscope.grafana/1"
    text = run("list").stdout
    boards = shipped()
    assert [row["uid"] for row in rows] == [board.uid for board in boards]
    assert all(board.uid in line and board.title in line for board, line in zip(boards, text.splitlines(), strict=True))
    assert all(row["panels"] >= 10 for row in rows)


def test_unwritable_output_is_a_one_line_error_with_status_3(
    cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in one_line_error(cli("grafana", "export", tmp_path / "file" / "out"))

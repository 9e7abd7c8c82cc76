"""The receiver's part of alerts.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankscope.alerts.deliver.target_file import load_targets
from rankscope.alerts.receive.config import ActionRule, ReceiverConfig, ReceiveSection, action_rate, load_config, unknown_alerts
from rankscope.alerts.receive.receiver_settings import load_credentials
from rankscope.base.errors import InputError

GOOD = """
[receive]
listen = "0.0.0.0:9099"
repeat_after = "1h"
bearer = [{ env = "TOKEN" }]

[[target]]
name = "pager"
url = "http://127.0.0.1:1/"

[[route]]
match = { severity = "critical" }
targets = ["pager"]

[[action]]
alert = "TrainingStraggler"
do = "capture"
steps = 5
"""


def load(tmp_path: Path, text: str) -> ReceiverConfig:
    (tmp_path / "alerts.toml").write_text(text)
    return load_config(tmp_path / "alerts.toml")


def test_valid_file_is_loaded(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert config.receive.listen == "0.0.0.0:9099"
    assert config.targets == ["pager"]
    assert config.routes[0].matches({"severity": "critical"})
    assert config.actions[0].steps == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[receive]", "[recieve]", "no such section: recieve"),
        ("listen =", "listne =", "receive: no such setting: listne; did you mean listen?"),
        ('{ env = "TOKEN" }', '"secret"', "receive.bearer[0]: expected a table with env, file, found a text in quotes"),
        ("[[route]]", "[route]", "route: expected a list, found a table; begin each with [[route]]"),
        ('{ env = "TOKEN" }', '{ env = "TOKEN", file = "x" }', "receive.bearer[0]"),
        ('"1h"', '"soon"', "receive: 'soon' is not a duration"),
        ('"1h"', '"20"', "receive: '20' is a duration without its unit, as in 20s or 20m"),
        ("steps = 5", 'wait = "600"', "action[0]: '600' is a duration without its unit"),
        ('do = "capture"', 'do = "rm -rf"', "action[0].do: 'rm -rf' is none of capture, dump"),
        ("steps = 5", "steps = 5000", "action[0].steps"),
        ("steps = 5", 'at_most = "often"', "action[0]: 'often' is not a rate"),
        ('targets = ["pager"]', 'targets = ["nobody"]', "route[0].targets: there is no [[target]] of the name 'nobody'"),
        ("steps = 5", "steps = [", "not TOML"),
        ("[receive]", '[receive]\ntls_cert = "x"', "tls_cert and tls_key"),
        ("0.0.0.0:9099", "9099", "receive: '9099' is not HOST:PORT"),
        ("[receive]", '[receive]\ndashboard_url = "ftp://x"', "https://host:port"),
        ("[receive]", '[receive]\ndashboard_url = "https://u:pw@x/"', "has a user in it"),
    ],
)
def test_configuration_error_is_one_line_with_the_file(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "alerts.toml" in str(caught.value)


def test_configuration_example_of_the_documentation_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "receiver.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    monkeypatch.setenv("RANKSCOPE_WEBHOOK_SECRET", "whsec_" + "c2VjcmV0" * 6)
    for name, secret in (("receiver.token", "t" * 32), ("chat.url", "https://chat.example/hook"), ("pager.key", "k")):
        (tmp_path / name).write_text(secret)
    config = load(tmp_path, text)
    assert [rule.do for rule in config.actions] == ["capture", "dump"]
    assert load_credentials(config.receive, folder=tmp_path, report=pytest.fail).required
    assert [target.name for target in load_targets(tmp_path / "alerts.toml")] == config.targets
    # and the page names every field of the receiver's own sections
    for section in (ReceiveSection, ActionRule):
        for name in section.__struct_fields__:
            assert re.search(rf"\b{name}\b", page), name


def test_an_action_for_an_unknown_alert_is_a_warning_not_an_error(tmp_path: Path) -> None:
    assert unknown_alerts(load(tmp_path, GOOD)) == []
    mistyped = GOOD.replace("TrainingStraggler", "TrainingStragler") + '[[action]]\nalert = "OurOwn"\ndo = "dump"\n'
    first, second = unknown_alerts(load(tmp_path, mistyped))
    assert all(fact in first for fact in ("action[0].alert", "'TrainingStragler'", "did you mean TrainingStraggler?"))
    assert all(fact in second for fact in ("action[1].alert", "'OurOwn'"))


def test_action_rates_are_parsed() -> None:
    assert [action_rate(text) for text in ("1/10min per run", "30/h", "2/1h", "5/s")] == [(1, 600), (30, 3600), (2, 3600), (5, 1)]
    for text in ("", "1", "1/0s", "-1/s", "1/10", "1/10min per day"):
        with pytest.raises(ValueError, match="is not a rate"):
            action_rate(text)

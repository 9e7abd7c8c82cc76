"""The operator's targets: every mistake is reported in one line that names its place and contains no secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankscope.alerts.deliver.http_courier import HttpCourier
from rankscope.alerts.deliver.secret import Secret, SecretUnavailableError
from rankscope.alerts.deliver.target_file import load_targets
from rankscope.alerts.deliver.targets import Rate
from rankscope.base.errors import InputError

KEY = "whsec_" + "QUJD" * 12
SECRET = "s3cr3t"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOOK_URL", f"https://hooks.example/{SECRET}")
    monkeypatch.setenv("HOOK_KEY", KEY)
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "login").write_text(f"me:{SECRET}\n")
    (tmp_path / "foreign").write_text(f"{SECRET} für alle")
    (tmp_path / "ca.pem").write_text("")


def write(folder: Path, text: str) -> Path:
    path = folder / "alerts.toml"
    path.write_text(text)
    return path


def test_every_target_setting_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [[target]]
        name = "oncall"
        url_env = "HOOK_URL"
        template = "slack"
        secrets = [{env = "HOOK_KEY"}, {file = "key"}]
        basic = {file = "login"}
        retry_for = "2h"
        rate_limit = "30/min"
        ca_file = "ca.pem"
        proxy = "http://proxy.example:3128"
        timeout = "5s"

        [[target]]
        name = "pager"
        template = "pagerduty"
        routing_key = {env = "HOOK_KEY"}

        [[target]]
        name = "plain"
        url = "http://10.0.0.1/hook"
        proxy = "none"
        """,
    )
    oncall, pager, plain = load_targets(path)
    assert (oncall.url.read(), oncall.template, oncall.retry_for_s) == (f"https://hooks.example/{SECRET}", "slack", 7200)
    assert [secret.read() for secret in oncall.secrets] == [KEY, KEY]
    assert (oncall.rate, oncall.timeout_s, oncall.ca_file) == (Rate(30, 60), 5, tmp_path / "ca.pem")
    assert (pager.url.read(), pager.most_alerts) == ("https://events.pagerduty.com/v2/enqueue", 1)
    assert (plain.proxy, plain.rate, plain.secrets) == ("", None, ())
    assert not any(secret in repr([oncall, pager, plain]) for secret in (SECRET, KEY))


ONE = '[[target]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "target"),
        ("target = 3", "target"),
        ("[[target]", "not TOML"),
        (f"{ONE}url = 'http://h/'\ncolour = 1", "target[0] (a): no such setting: colour; there are url,"),
        ("[webhook]\n", "alerts.toml: no such setting: webhook; there are target, alertmanager,"),
        ("[[target]]\nurl = 'http://h/'", "target[0]: name is missing"),
        ("[[target]]\nname = '../x'\nurl = 'http://h/'", "target[0].name"),
        ('[[target]]\nname = "x\\n"\nurl = "http://h/"', "target[0].name"),
        (f"{ONE}url = 'http://h/'\n{ONE}url = 'http://h/'", "target[1].name: 'a' is the name of another target"),
        (ONE, "target[0].url (a): give exactly one of url, url_env, url_file"),
        (f"{ONE}url = 'http://h/'\nurl_env = 'HOOK_URL'", "target[0].url (a): give exactly one"),
        (f"{ONE}url = 'ftp://h/{SECRET}'", "target[0].url (a): expected an address like"),
        (f"{ONE}url_env = 'NOT_SET'", "target[0].url_env (a): the variable NOT_SET: not set"),
        (f"{ONE}url_file = 'nowhere'", "No such file or directory"),
        (f"{ONE}url_file = '.'", "Is a directory"),
        (
            f"{ONE}url = 'http://h/'\ntemplate = 'fax'",
            "target[0].template (a): 'fax' is none of apprise, generic, pagerduty,",
        ),
        (f"{ONE}url = 'http://h/'\ntemplate = 'Slack'", "target[0].template (a): 'Slack' is none of"),
        (f"{ONE}url = 'http://h/'\ntemplate = 'Slack'", "; did you mean slack?"),
        (f"{ONE}templte = 'slack'", "target[0] (a): no such setting: templte; did you mean template?"),
        (f"{ONE}bearer = {{evn = 'HOOK_KEY'}}", "target[0].bearer (a): no such setting: evn; did you mean env?"),
        ("[target]\nname = 'a'", "target (a): expected a list, found a table; begin each with [[target]]"),
        ('[[target]]\nname = "a"\n"x\\ny\\u001b" = 1', "target[0] (a): no such setting: x�y�;"),
        ("target = []", "no [[target]]"),
        (f"{ONE}url = 3", "target[0].url (a): expected a text in quotes, found a whole number"),
        (f"{ONE}bearer = '{SECRET}'", "target[0].bearer (a): expected a table with env, file, found a text in quotes"),
        (
            f"{ONE}url = 'http://h/'\nsecrets = [{{env = 'HOOK_URL'}}]",
            "target[0].secrets[0] (a): the variable HOOK_URL: expected",
        ),
        (f"{ONE}url = 'http://h/'\nsecrets = [{{}}]", "target[0].secrets[0] (a): give either env or file"),
        (
            f"{ONE}url = 'http://h/'\nsecrets = ['{KEY}']",
            "target[0].secrets[0] (a): expected a table with env, file",
        ),
        (f"{ONE}url = 'http://h/'\nbearer = {{file = 'nowhere'}}", "target[0].bearer"),
        (f"{ONE}url = 'http://h/'\nbearer = {{file = 'foreign'}}", "target[0].bearer"),
        (f'{ONE}url_file = "a\\u0000b"', "u0000"),
        ('[[target]]\n"\\u0000" = [{a = 1}]', "u0000"),
        (f"{ONE}url = 'http://h/'\nbasic = {{file = 'key'}}", "target[0].basic"),
        (f"{ONE}url = 'http://h/'\nbasic = {{file = 'login'}}\nbearer = {{file = 'key'}}", "target[0].basic (a)"),
        (f"{ONE}url = 'http://h/'\nrate_limit = 'often'", "target[0].rate_limit (a): 'often' is no rate"),
        (f"{ONE}url = 'http://h/'\nrate_limit = '0/s'", "target[0].rate_limit"),
        (f"{ONE}url = 'http://h/'\nrate_limit = '1/000s'", "target[0].rate_limit"),
        (f"{ONE}url = 'http://h/'\nretry_for = '-1s'", "target[0].retry_for"),
        (
            f"{ONE}url = 'http://h/'\nretry_for = '20'",
            "target[0].retry_for (a): '20' is a duration without its unit, as in 20s or 20m",
        ),
        (f"{ONE}url = 'http://h/'\ntimeout = '1h'", "target[0].timeout (a): at most 60s"),
        (f"{ONE}url = 'http://h/'\nca_file = 'nowhere'", "target[0].ca_file"),
        (f"{ONE}url = 'http://h/'\nproxy = 'socks5://h'", "target[0].proxy"),
        (f"{ONE}url = 'http://h/'\nproxy = 'http://me:{SECRET}@h'", "target[0].proxy (a): a password does not belong here"),
        (f"{ONE}template = 'pagerduty'", "target[0].routing_key (a): required"),
        (f"{ONE}url = 'http://h/'\nrouting_key = {{env = 'HOOK_KEY'}}", "target[0].routing_key"),
        (f"{ONE}url = 'json://h/{SECRET}'\ntemplate = 'apprise'", "target[0].url (a): an address of Apprise is a secret"),
    ],
)
def test_configuration_error_is_one_line_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_targets(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert "\n" not in message
    assert SECRET not in message
    assert KEY not in message


def test_missing_files_are_retried_other_problems_are_errors(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""
        [[target]]
        name = "away"
        url_file = "away/url"
        secrets = [{{file = "away/key"}}]
        bearer = {{file = "away/token"}}
        ca_file = "away/ca.pem"
        {ONE}url = 'http://h/'
        """,
    )
    collected: list[str] = []
    away, targets = load_targets(path, absent=collected.append)
    assert [line.partition(tmp_path.name)[2] for line in collected] == [
        "/away/url: No such file or directory; retried until the file exists",
        "/away/ca.pem: no such file; retried until the file exists",
        "/away/token: No such file or directory; retried until the file exists",
        "/away/key: No such file or directory; retried until the file exists",
    ]
    assert all(line.startswith("target away: ") for line in collected)
    assert targets.url.read() == "http://h/"
    # and its courier answers "retry" as long as the file is missing
    courier = HttpCourier(away)
    judged = courier.attempt("msg_1", b"{}")
    assert (judged.kind, judged.reason) == ("retry", f"{tmp_path}/away/url: No such file or directory")
    for wrong in (f"{ONE}url_env = 'NOT_SET'", f"{ONE}url = 'http://h/'\nbearer = {{file = 'foreign'}}", f"{ONE}url = 'nowhere'"):
        with pytest.raises(InputError):
            load_targets(write(tmp_path, wrong), absent=collected.append)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 100_000, b'a = """' + b"x" * 2_000_000])
def test_malformed_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "alerts.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"alerts\.toml"):
        load_targets(path)


def test_missing_file_folder_or_fifo_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "fifo"):
        with pytest.raises(InputError):
            load_targets(path)


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb", b"\xff", b"\x1b[2J"])
def test_secret_must_be_one_line_of_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(SecretUnavailableError, match="secret"):
        Secret(file=tmp_path / "secret").read()

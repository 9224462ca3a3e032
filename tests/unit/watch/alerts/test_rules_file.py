"""Rules and receivers of ullage.toml; what is wrong is refused with the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.rows import each

from ullage.ground.errors import SpecError
from ullage.operate.watch.alerts.rule import Severity
from ullage.operate.watch.alerts.rules_file import DEFAULTS, Receiver, Settings, load_settings
from ullage.verbs.check.gate.config import load_configuration


def load(directory: Path, text: str) -> Settings:
    (directory / "ullage.toml").write_text(text, encoding="utf-8")
    return load_settings(directory)


def rule(settings: Settings, name: str) -> Any:
    return next(rule for rule in settings.rules if rule.name == name)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_settings(Path(tmp_path.anchor)) == Settings(DEFAULTS, (), None)


def test_without_a_section_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(tmp_path, '[scenario.a]\ncommand = "a"\n')
    assert settings.rules == DEFAULTS


def test_scenarios_and_rules_may_be_in_one_file(tmp_path: Path) -> None:
    load(tmp_path, '[scenario.a]\ncommand = "a"\n[watch.alert.growth]\nenabled = false\n')
    assert list(load_configuration(tmp_path).scenarios) == ["a"]


def test_rules_may_be_in_pyproject(tmp_path: Path) -> None:
    text = "[tool.ullage.watch.alert.growth]\nenabled = false\n"
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    assert len(load_settings(tmp_path).rules) == len(DEFAULTS) - 1


def test_a_rule_of_the_file_alone_can_be_switched_off(tmp_path: Path) -> None:
    text = '[watch.alert.hot]\nkind = "temperature"\nabove = 80\nenabled = false\n'
    assert load(tmp_path, text).rules == DEFAULTS


def test_a_default_rule_is_changed_by_its_name(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        [watch.alert.forecast]
        below = "30min"
        for = 5
        severity = "warning"
        [watch.alert.allocated]
        above = "80%"
        clear = 0.7
        clear_for = "2h"
        [watch.alert.growth]
        above = "1MiB"
        [watch.alert.idle-holder]
        enabled = false
        """,
    )
    assert len(settings.rules) == len(DEFAULTS) - 1
    forecast, allocated = rule(settings, "forecast"), rule(settings, "allocated")
    assert (forecast.threshold, forecast.clear, forecast.for_s) == (1800, 3600, 5)
    assert forecast.severity is Severity.WARNING
    assert (allocated.threshold, allocated.clear) == (0.8, 0.7)
    assert allocated.clear_for_s == 7200
    growth = rule(settings, "growth")
    assert (growth.threshold, growth.clear) == (2**20, 0)


def test_another_rule_of_a_kind(tmp_path: Path) -> None:
    settings = load(tmp_path, '[watch.alert.hot]\nkind = "temperature"\nabove = -15\n')
    assert len(settings.rules) == len(DEFAULTS) + 1
    hot = settings.rules[-1]
    assert (hot.name, hot.kind.name, hot.threshold, hot.clear) == ("hot", "temperature", -15, -20)


def test_receivers(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        [watch.notify.slack]
        url_env = "SLACK_URL"
        form = "slack"
        severity = "critical"
        [watch.notify.mail]
        command = ["mail", "-s", "GPU", "ops@example.org"]
        [watch.notify.hook]
        url = "http://127.0.0.1:9/x"
        """,
    )
    assert settings.receivers == (
        Receiver("slack", Severity.CRITICAL, url_env="SLACK_URL", form="slack"),
        Receiver("mail", command=("mail", "-s", "GPU", "ops@example.org")),
        Receiver("hook", url="http://127.0.0.1:9/x"),
    )


@each(
    ("text", "line", "message"),
    [
        ("[watch]\nallert = 1\n", 2, "watch has no key 'allert'; did you mean 'alert'?"),
        ("[watch]\nalert = 3\n", 2, "watch.alert is 3; expected a table"),
        ("[watch.alert]\ngrowth = 3\n", 2, "expected a table: [watch.alert.growth]"),
        ("[watch.alert.grwth]\nabove = 1\n", 1, "did you mean 'growth'?"),
        ("[watch.alert.x]\n", 1, "kind is missing"),
        ('[watch.alert.x]\nkind = "heat"\n', 2, "is 'heat'; expected one of allocated, "),
        ('[watch.alert.growth]\nkind = "forecast"\n', 2, "give the new rule another name"),
        ("[watch.alert.growth]\nbelow = 5\n", 2, "alerts above; write above = ..."),
        ("[watch.alert.forecast]\nabove = 5\n", 2, "alerts below; write below = ..."),
        ('[watch.alert.forecast]\nbelow = "5 parsecs"\n', 2, 'such as "10min"'),
        ('[watch.alert.allocated]\nabove = "95"\n', 2, 'such as "95%" or 0.95'),
        ("[watch.alert.allocated]\nabove = 95\n", 2, "expected a share"),
        ("[watch.alert.allocated]\nabove = -0.5\n", 2, "expected a share"),
        ("[watch.alert.allocated]\nabove = true\n", 2, "is true; expected a text or a number"),
        ('[watch.alert.growth]\nabove = "5G"\n', 2, "can be read in two ways"),
        ("[watch.alert.allocated]\nabove = 0.8\nclear = 0.9\n", 3, "at or below the threshold"),
        ("[watch.alert.forecast]\nclear = 5\n", 2, "at or above the threshold"),
        ('[watch.alert.growth]\nfor = "40d"\n', 2, "up to 30 days"),
        ("[watch.alert.reserved]\nwindow = 0\n", 2, "expected 1 s or more"),
        ("[watch.alert.growth]\nwindow = 5\n", 2, "has no key 'window'"),
        ("[watch.alert.allocated]\nleast = 5\n", 2, "has no key 'least'"),
        ('[watch.alert.growth]\nseverity = "bad"\n', 2, "one of info, warning, critical"),
        ('[watch.alert.growth]\nenabled = "no"\n', 2, "expected true or false"),
        ("[watch.notify.x]\n", 1, "write where events go"),
        ('[watch.notify.x]\nurl = "http://a"\ncommand = ["b"]\n', 3, "keep one of them"),
        ('[watch.notify.x]\ncommand = "mail me"\n', 2, "is not a list of words"),
        ("[watch.notify.x]\ncommand = []\n", 2, "is not a list of words"),
        ('[watch.notify.x]\nurl = "ftp://a"\n', 2, "is not a web address"),
        ('[watch.notify.x]\nurl = "https://"\n', 2, "is not a web address"),
        ('[watch.notify.x]\nurl = "http://a:b"\n', 2, "is not a web address"),
        ('[watch.notify.x]\ncommand = ["a"]\nform = "slack"\n', 3, "is for a web address"),
        ('[watch.notify.x]\nurl = "http://a"\nform = "xml"\n', 3, "expected json or slack"),
        (
            '[watch.notify.x]\ncommand = ["a"]\nseverity = "low"\n',
            3,
            "one of info, warning, critical",
        ),
        ('[watch.notify.x]\ncommand = ["a"]\ncomand = "b"\n', 3, "did you mean 'command'?"),
        ("[watch.notify.\"x y\"]\ncommand = ['a']\n", 1, "is not a name"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_remedy(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    with pytest.raises(SpecError) as raised:
        load(tmp_path, f"# rules\n{text}")
    assert str(raised.value).startswith(f"ullage.toml:{line + 1}: ")
    assert message in str(raised.value)


def test_an_address_is_in_no_message(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        load(tmp_path, '[watch.notify.x]\nurl = "hooks.slack.com/services/secret"\n')
    assert "secret" not in str(raised.value)

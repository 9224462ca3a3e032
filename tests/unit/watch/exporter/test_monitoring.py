"""What docs/monitoring has names metrics that are exported, and rules that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import alert_rules
from tests.rows import each

from ullage.operate.watch.alerts.rules_file import DEFAULTS
from ullage.operate.watch.exporter.exposition import METRICS

MONITORING = Path(__file__).parents[4] / "docs" / "monitoring"
NAME = re.compile(r"\b(?:DCGM|ullage)_\w+")
EXPORTED = {metric.name for metric in METRICS}
# They compare what no metric has; UllageAlert passes them on.
WITHOUT_EXPRESSION = {"power", "straggler-time", "straggler-memory"}


def read_rules() -> list[str]:
    """The text of each rule."""
    text = (MONITORING / "alert-rules.yml").read_text(encoding="utf-8")
    return re.split(r"^ +- alert: ", text, flags=re.MULTILINE)[1:]


def read_panels() -> list[Any]:
    """The panels of the dashboard."""
    text = (MONITORING / "grafana" / "dashboard.json").read_text(encoding="utf-8")
    return list(json.loads(text)["panels"])


@each("rule", read_rules(), name=lambda rule: rule.split()[0])
def test_rules_name_metrics_that_are_exported(rule: str) -> None:
    expression = re.sub(r"^ *#.*", "", rule, flags=re.MULTILINE).partition("annotations:")[0]
    names = set(NAME.findall(expression))
    assert names <= EXPORTED
    assert names or "up{" in expression


def test_the_rules_are_those_of_today() -> None:
    text = (MONITORING / "alert-rules.yml").read_text(encoding="utf-8")
    assert text == alert_rules.render_prometheus(), "python -m benchmarks.alert_rules"


def test_every_default_rule_has_an_expression_or_is_passed_on() -> None:
    known = {rule.name for rule in DEFAULTS}
    assert alert_rules.EXPRESSIONS.keys() == known - WITHOUT_EXPRESSION
    assert any("expr: ullage_alert == 1" in text for text in read_rules())


@each("panel", read_panels(), name=lambda panel: panel["title"])
def test_panels_name_metrics_that_are_exported(panel: Any) -> None:
    for target in panel["targets"]:
        names = set(NAME.findall(target["expr"]))
        assert names and names <= EXPORTED


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for panel in read_panels()
        for box in [panel["gridPos"]]
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def test_grafanas_own_model_of_a_dashboard_keeps_every_field() -> None:
    """But for the text that Grafana writes beside a variable's query."""
    dashboards = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    document = json.loads((MONITORING / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    model = dashboards.Dashboard.from_json(document)
    kept = set(_leaves(json.loads(encoder.JSONEncoder().encode(model))))
    lost = set(_leaves(document)) - kept
    assert {path[-1] for path, _ in lost} <= {"definition"}
    assert len(kept) > 300


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, str]]:
    """Where each value of a document is, and the value."""
    members = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list)
        else ()
    )  # fmt: skip
    if not isinstance(value, dict | list):
        yield path, repr(value)
    for key, member in members:
        yield from _leaves(member, (*path, key))

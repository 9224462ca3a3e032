"""Prometheus's own promtool on the exporter's page and on docs/monitoring."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ullage.operate.watch.exporter.exposition import Exposition
from ullage.operate.watch.sample import Sample

MONITORING = Path(__file__).parents[4] / "docs" / "monitoring"
# dcgm-exporter's label, whose name promtool would write otherwise.
FOREIGN = "modelName"
COMPLAINT = "label names should be written in 'snake_case' not 'camelCase'"


@pytest.fixture(scope="module")
def promtool() -> str:
    """The program; skips where there is none."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("needs promtool on PATH (Debian: apt-get install prometheus)")
    return path


def run(*command: str, page: str = "", directory: Path = MONITORING) -> tuple[int, str]:
    """The exit code, and what was printed."""
    done = subprocess.run(
        command, input=page, cwd=directory, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("sample_name", ["full_sample", "unknown_sample"])
def test_the_page_passes_but_for_a_label_of_dcgm_exporter(
    promtool: str, sample_name: str, request: pytest.FixtureRequest
) -> None:
    sample: Sample = request.getfixturevalue(sample_name)
    exposition = Exposition(with_names=True)
    exposition.publish(sample)
    page = exposition.page("text/plain")
    assert page is not None
    text = page.body.decode()
    code, output = run(promtool, "check", "metrics", page=text)
    assert code in (0, 3)
    assert all(line.endswith(COMPLAINT) for line in output.splitlines())
    assert run(promtool, "check", "metrics", page=text.replace(FOREIGN, "model_name")) == (0, "")
    assert run(promtool, "check", "metrics", page=f"{text}x{{\n")[0] == 1  # it does look


def test_rules_and_configuration_are_right(promtool: str) -> None:
    code, output = run(promtool, "check", "rules", "alert-rules.yml")
    num_rules = (MONITORING / "alert-rules.yml").read_text().count("- alert: ")
    assert code == 0 and f"{num_rules} rules found" in output
    assert run(promtool, "check", "config", "prometheus.yml")[0] == 0


def test_each_rule_fires_on_its_fault_and_keeps_still_on_a_healthy_job(promtool: str) -> None:
    tests = (MONITORING / "alert-rules-test.yml").read_text()
    names = re.findall(r"- alert: (\w+)", (MONITORING / "alert-rules.yml").read_text())
    for name in names:
        assert f"name: {name} fires\n" in tests
        assert re.search(rf"alertname: {name}, exp_alerts: \[\]", tests)
    code, output = run(promtool, "test", "rules", "alert-rules-test.yml")
    assert code == 0, output


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("_limit_bytes > 0.95", "_limit_bytes > 0.995"),
        ("_SLOWDOWN_TEMP > -5", "_SLOWDOWN_TEMP > -50"),
    ],
    ids=["a rule that does not fire", "a rule that fires on a healthy job"],
)
def test_another_threshold_is_noticed(
    promtool: str, tmp_path: Path, before: str, after: str
) -> None:
    for name in ("alert-rules.yml", "alert-rules-test.yml"):
        text = (MONITORING / name).read_text()
        (tmp_path / name).write_text(text.replace(before, after))
    assert (tmp_path / "alert-rules.yml").read_text().count(after) == 1
    assert run(promtool, "test", "rules", "alert-rules-test.yml", directory=tmp_path)[0] == 1

"""What `ullage check` has to find and to let pass; `python -m benchmarks.gate` writes the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.gate.changes import HARMLESS, REGRESSIONS, Harmless, Planted
from benchmarks.gate.trial import Project

pytestmark = [pytest.mark.phantom, pytest.mark.nightly]


@pytest.fixture(scope="module")
def project(thin_python: Path) -> Iterator[Project]:
    """A project, locked."""
    with Project(thin_python) as locked:
        yield locked


def test_there_are_twenty_of_each() -> None:
    assert len({one.name for one in REGRESSIONS}) == 20
    assert len({one.name for one in HARMLESS}) == 20


@pytest.mark.parametrize("change", REGRESSIONS, ids=lambda change: change.name)
def test_a_regression_is_found_and_its_owner_named(change: Planted, project: Project) -> None:
    trial = project.plant(change)
    assert trial.changed_bytes >= trial.needed_bytes, "it does not have to be found"
    assert trial.state == "exceeded"
    assert trial.names(change), (trial.category, trial.module)
    assert trial.reason


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.name)
def test_a_harmless_change_passes(change: Harmless, project: Project) -> None:
    assert project.try_harmless(change).state == "passed"

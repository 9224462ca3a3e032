"""`ullage run -o FILE.html`: the page of a run holds its snapshots and what the terminal says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]


def run_with_page(run_program: RunProgram, path: Path, *program: str) -> tuple[Any, str]:
    """The outcome of a run, and its page."""
    outcome = run_program(*program, options=("-o", str(path)))
    assert path.exists(), outcome.stderr
    return outcome, path.read_text(encoding="utf-8")


def document_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_the_page_holds_the_run_document_and_the_report(
    run_program: RunProgram, tmp_path: Path
) -> None:
    outcome, page = run_with_page(run_program, tmp_path / "run.html", "linear.py")
    assert document_of(page) == outcome.document
    assert page.count('class="run"') == len(outcome.document["devices"]) == 1
    assert "Memory when the most was allocated" in page
    assert "Basis: allocator" in page
    assert f"Wrote {tmp_path / 'run.html'}" in outcome.stderr


@pytest.mark.slow
def test_every_process_is_in_the_page(run_program: RunProgram, tmp_path: Path) -> None:
    outcome, page = run_with_page(run_program, tmp_path / "run.html", "child_process.py")
    assert len(outcome.document["processes"]) > 1
    assert page.count('class="run"') == len(outcome.document["devices"])


def test_the_page_of_what_does_not_fit_says_so(run_program: RunProgram, tmp_path: Path) -> None:
    outcome, page = run_with_page(run_program, tmp_path / "run.html", "out_of_memory.py")
    assert outcome.exit_code == 1
    assert document_of(page)["verdict"] == "out_of_memory"
    assert re.search(r'<strong id="verdict">does not fit on [^<]*: no room', page)


def test_without_a_gpu_there_is_nothing_to_draw(run_program: RunProgram, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    outcome = run_program("no_gpu_use.py", options=("-o", str(path)))
    assert outcome.exit_code == 2 and not path.exists()
    assert "no snapshot of the run was kept: the program used no GPU" in outcome.stderr

"""The catalogue of techniques: each has a file, an entry and its rows in the documentation."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.rows import each

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Technique

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "src" / "ullage" / "act" / "techniques"
PAGE = next((ROOT / "docs").rglob("techniques.md"))
# What is beside the techniques in their folder.
OTHERS = {"__init__", "catalog", "ladder_file", "made_for", "plan", "technique"}


def test_every_file_is_one_technique_of_the_catalogue() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - OTHERS == set(TECHNIQUES)


@each("name", TECHNIQUES)
def test_a_technique_imports_no_other(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not modules & {f"ullage.act.techniques.{other}" for other in TECHNIQUES}


@each("technique", TECHNIQUES.values(), name=lambda technique: technique.name)
def test_the_documentation_describes_a_technique(technique: Technique) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"| [{technique.name}]({technique.reference}) | {technique.does}" in page
    assert f"| {technique.name} | {technique.precondition} | {technique.proof} |" in page

"""Statements of a program's files, which a snapshot names and nobody has checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ullage.explain.owners.statements import source_of, statement_at

TEXT = "def f(x):\n    if x:\n        return g(\n            x)\n    y = 1; z = 2\n"


@pytest.mark.parametrize(
    ("line", "statement"),
    [(3, "return g(\n            x)"), (4, "return g(\n            x)"), (1, "")],
)
def test_the_smallest_statement_is_given(tmp_path: Path, line: int, statement: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(TEXT)
    assert statement_at(str(path), line).strip() == statement


def test_what_is_no_file_of_python_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"#" * (1 << 20) + b"\n")
    (tmp_path / "latin.py").write_bytes(b"# \xff")
    (tmp_path / "note.txt").write_text("x = 1")
    names = [
        "pipe.py",
        "large.py",
        "latin.py",
        "note.txt",
        "gone.py",
        "nul\0.py",
        "x" * 300 + ".py",
    ]
    assert [source_of(str(tmp_path / name)) for name in names] == [""] * len(names)


def test_a_file_that_is_no_python_has_no_statements(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n" + "(" * 5000)
    assert statement_at(str(path), 1) == ""

"""The ceiling of the tree: lines count wherever they go, and of src and C the sum only falls."""

from __future__ import annotations

import base64
import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from benchmarks.ceiling import COLUMNS, hold, list_files, measure, measure_tree
from tests.rows import each

ROWS = "".join(f"    ('gpu-{number}', {number}),\n" for number in range(40))
TABLE = f"TABLE = (\n{ROWS})\n"
LINES = 42
JSON = json.dumps([[f"gpu-{number}", number] for number in range(40)], separators=(",", ":"))
BASE64 = base64.b64encode(TABLE.encode()).decode()
HEAD = """\
# Why.
[recordings]
"ceiling.toml" = "this file"
"tests/golden/*" = "as measured"
"src/*" = "a cheat"

"""
PLAN = "src/ullage/plan/table.py"


def put(root: Path, name: str, content: str | bytes) -> Path:
    """Writes a file of the tree."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def git(root: Path, *arguments: str) -> None:
    """Runs git in the tree."""
    subprocess.run(["git", "-C", str(root), *arguments], check=True)


def commit(root: Path) -> None:
    """Commits all that is in the tree."""
    git(root, "add", ".")
    who = ("-c", "user.name=name", "-c", "user.email=address")
    git(root, *who, "commit", "--quiet", "--no-verify", "--message", "All")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with a table in a package, and its ceiling."""
    put(tmp_path, PLAN, TABLE)
    put(tmp_path, "src/ullage/native/queue.c", "int f(void) {\n  return 1;\n}\n")
    put(tmp_path, "tests/test_plan.py", "def test_plan():\n    assert True\n")
    put(tmp_path, "ceiling.toml", HEAD)
    git(tmp_path, "init", "--quiet")
    assert hold(tmp_path, write=True) == 0
    commit(tmp_path)
    return tmp_path


def ceiling(root: Path) -> dict[str, Any]:
    """What ceiling.toml has."""
    return tomllib.loads((root / "ceiling.toml").read_text(encoding="utf-8"))


@each(
    ("name", "content", "kind", "row", "least"),
    [
        ("src/ullage/plan/more.py", TABLE, "lines", "src/plan", LINES),
        ("src/ullage/plan/table.toml", ROWS, "lines", "src/plan", 40),
        ("src/ullage/plan/table.json", JSON, "lines", "src/plan", len(JSON) / COLUMNS),
        ("src/ullage/plan/table.txt", BASE64, "lines", "src/plan", len(BASE64) / COLUMNS),
        ("src/ullage/plan/base.py", f"T = '{BASE64}'", "lines", "src/plan", len(BASE64) / COLUMNS),
        (
            "src/ullage/plan/line.py",
            f"T = {JSON}  # noqa",
            "lines",
            "src/plan",
            len(JSON) / COLUMNS,
        ),
        ("src/ullage/plan/string.py", f"T = '''\n{ROWS}'''\n", "lines", "src/plan", 42),
        (
            "src/ullage/plan/marked.py",
            "T = '''\n" + "# 1\n\n" * 20 + "'''",
            "lines",
            "src/plan",
            42,
        ),
        ("src/ullage/plan/loose.py", f"a = 1\n'''\n{ROWS}'''\n", "lines", "src/plan", 43),
        ("src/ullage/plan/doc.py", f"'''A table.\n{ROWS}'''\n", "docstrings", "src/plan", 42),
        ("src/ullage/plan/table.npz", b"\xff" * 900, "bytes", "src/plan", 900),
        ("src/ullage/plan/table.inc", ROWS, "lines", "C", 40),
        ("src/ullage/other/table.py", TABLE, "lines", "src/other", LINES),
        ("src/ullage/table.py", TABLE, "lines", "src/*.py", LINES),
        ("tests/table.json", ROWS, "lines", "tests", 40),
        ("tests/golden/table.py", TABLE, "lines", "tests", LINES),
        ("tests/golden.json", ROWS, "lines", "tests", 40),
        ("docs/table.md", ROWS, "lines", "docs", 40),
        ("benchmarks/table.py", TABLE, "lines", "benchmarks", LINES),
        ("examples/table.py", TABLE, "lines", "examples", LINES),
        ("tools/table.py", TABLE, "lines", "rest", LINES),
        (".table.toml", ROWS, "lines", "rest", 40),
    ],
    name=lambda name, *_: name,
)
def test_a_table_counts_wherever_it_is(
    tmp_path: Path, name: str, content: str | bytes, kind: str, row: str, least: float
) -> None:
    put(tmp_path, name, content)
    figures = measure_tree(tmp_path, [name], tomllib.loads(HEAD)["recordings"])
    assert figures[kind][row] >= least


def test_what_is_no_line_of_code_does_not_count(tmp_path: Path) -> None:
    text = '"""Doc."""\n\n# Why.\na = 1  # why\n\n\ndef f():\n    """One\n\n    two."""\n'
    assert measure(put(tmp_path, "a.py", text)) == {"lines": 2, "docstrings": 4}
    text = '/* Why,\n and why. */\n\n// "why\nint a;  // why\n'
    text += 'char *b = "/* // */";\nint c; /* d\n*/ int d;'
    assert measure(put(tmp_path, "a.c", text)) == {"lines": 4}
    figures = measure_tree(tmp_path, ["tests/golden/a.json", "gone.py"], ["tests/golden/*"])
    assert not any(figures.values())


def test_files_count_before_they_are_added_and_unless_git_ignores_them(tree: Path) -> None:
    put(tree, ".gitignore", "*.log\n")
    put(tree, "tests/new.py", TABLE)
    put(tree, "tests/new.log", TABLE)
    assert {"tests/new.py", ".gitignore"} < {*list_files(tree)}
    assert "tests/new.log" not in list_files(tree)


def test_the_sum_of_src_and_c_rises_for_no_reason(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tree, "src/ullage/gate/new.py", "a = 1\n")
    assert hold(tree) == 1
    assert hold(tree, write=True, why="it is new") == 1
    assert ceiling(tree)["lines"] == {"C": 3, "src/plan": LINES, "tests": 2}
    printed = capsys.readouterr().out
    assert "src/gate (lines)                         0           1          +1" in printed
    assert "lines of src and C: 1 more than at the last commit" in printed


@pytest.mark.parametrize("name", ["src/ullage/gate/table.py", "src/ullage/gate/table.inc"])
def test_a_package_rises_by_what_another_loses(tree: Path, name: str) -> None:
    put(tree, name, ROWS if name.endswith("inc") else TABLE)
    (tree / PLAN).unlink()
    assert hold(tree) == 1
    assert hold(tree, write=True) == 0 and hold(tree) == 0
    assert "src/plan" not in ceiling(tree)["lines"] and "reason" not in ceiling(tree)


def test_code_does_not_become_a_docstring(tree: Path) -> None:
    put(tree, PLAN, f"'''A table.\n{ROWS}'''\n")
    assert hold(tree) == 1
    assert hold(tree, write=True, why="it reads well") == 1


@pytest.mark.parametrize(
    ("name", "content", "rises"),
    [
        ("tests/table.py", TABLE, "tests +42 lines"),
        ("docs/table.md", ROWS, "docs +40 lines"),
        ("src/ullage/plan/table.npz", b"\xff" * 900, "src/plan +900 bytes"),
    ],
)
def test_what_moves_to_another_tree_needs_a_reason(
    tree: Path, name: str, content: str | bytes, rises: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tree, name, content)
    (tree / PLAN).unlink()
    assert hold(tree) == 1 and hold(tree, write=True) == 1
    assert f"{rises}: take them out, or say what for" in capsys.readouterr().out
    assert hold(tree, write=True, why='a "right" value') == 0 and hold(tree) == 0
    (reason,) = ceiling(tree)["reason"]
    assert reason["rises"] == rises and reason["why"] == 'a "right" value'
    assert (tree / "ceiling.toml").read_text().startswith(HEAD)


def test_below_the_ceiling_the_ceiling_is_lowered(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / PLAN).unlink()
    assert hold(tree) == 0
    assert "`python -m benchmarks.ceiling --write` lowers it" in capsys.readouterr().out
    assert hold(tree, write=True) == 0
    # Within a change, what it has taken out may come back; afterwards it may not.
    put(tree, PLAN, TABLE)
    assert hold(tree) == 1 and hold(tree, write=True) == 0
    (tree / PLAN).unlink()
    assert hold(tree, write=True) == 0
    commit(tree)
    put(tree, PLAN, TABLE)
    assert hold(tree) == 1 and hold(tree, write=True, why="it was here") == 1


def test_a_change_has_one_reason(tree: Path) -> None:
    for text, why in (("a = 1\n", "one"), ("a = 1\nb = 2\n", None), ("a = 1\n", "two")):
        put(tree, "tests/new.py", text)
        assert hold(tree, write=True, why=why) == 0 and hold(tree) == 0
    commit(tree)
    put(tree, "tests/new.py", "a = 1\nb = 2\nc = 3\n")
    assert hold(tree, write=True) == 1
    assert hold(tree, write=True, why="three") == 0
    reasons = [(reason["rises"], reason["why"]) for reason in ceiling(tree)["reason"]]
    assert reasons == [("tests +1 lines", "two"), ("tests +2 lines", "three")]


@each(("row", "figure"), [("src/plan", LINES), ("tests", 2)])
def test_a_ceiling_raised_by_hand_is_refused(tree: Path, row: str, figure: int) -> None:
    text = (tree / "ceiling.toml").read_text()
    put(tree, "ceiling.toml", text.replace(f'"{row}" = {figure}', f'"{row}" = {figure + 1}'))
    assert hold(tree) == 1
    assert hold(tree, write=True) == 0 and hold(tree) == 0

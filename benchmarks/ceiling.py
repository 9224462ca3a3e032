"""Holds the size of the tree: no package, and no other tree, gets above its row of ceiling.toml.

    python -m benchmarks.ceiling                      # exits with 1 above the ceiling
    python -m benchmarks.ceiling --write              # makes it what the tree has
    python -m benchmarks.ceiling --write --why "..."  # and raises other trees than src for a reason

Lines count wherever they go. Of Python these are the lines with code, and every line of a string
that spans several; docstrings have figures of their own. Of C they are the lines with code; of any
other text, all that are not blank. A line beyond COLUMNS counts as so many lines as it would fill.
What is not text counts in bytes. Of src and C the sum of lines only falls, as does that of
docstrings: a package rises by what others lose.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = 100  # of the formatter
KINDS = ("lines", "docstrings", "bytes")
TREES = ("tests", "benchmarks", "examples", "docs")
C_SUFFIXES = {".c", ".cu", ".h", ".inc"}
# No folder of recordings hides what is executed.
CODE_SUFFIXES = {".py", ".js", ".sh", *C_SUFFIXES}
WRITTEN = "# What follows is written by `python -m benchmarks.ceiling --write`.\n"
_C_TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)

Figures = dict[str, dict[str, int]]  # the row, such as src/plan, by kind


def measure(path: Path) -> dict[str, int]:
    """The figures of one file, by kind."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return {"bytes": path.stat().st_size}
    if path.suffix == ".py":
        return _measure_python(text)
    if path.suffix in C_SUFFIXES:
        text = _C_TOKEN.sub(_without_comment, text)
    return {"lines": sum(_weight(line) for line in text.split("\n") if line.strip())}


def _measure_python(text: str) -> dict[str, int]:
    lines = dict(enumerate(text.split("\n"), start=1))
    code = {number for number, line in lines.items() if line.strip() and line.lstrip()[0] != "#"}
    docstrings: set[int] = set()
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= _span(node.body[0])
        elif isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno != node.lineno:
            # Lines of a string may be blank, or look like a comment.
            code |= _span(node)
    return {
        "lines": sum(_weight(lines[number]) for number in code - docstrings),
        "docstrings": sum(_weight(lines[number]) for number in docstrings),
    }


def _span(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _weight(line: str) -> int:
    """How many lines of the formatter's width a line would fill."""
    return max(1, -(-len(line.rstrip()) // COLUMNS))


def _without_comment(token: re.Match[str]) -> str:
    return token[0] if token[0][0] in "\"'" else "\n" * token[0].count("\n")


def row_of(name: str) -> str:
    """The row of the ceiling that a file belongs to."""
    path = Path(name)
    if path.parts[0] == "src":
        below = path.parts[2:]
        if path.suffix in C_SUFFIXES:
            return "C"
        return f"src/{below[0]}" if len(below) > 1 else "src/*.py"
    return path.parts[0] if path.parts[0] in TREES else "rest"


def measure_tree(root: Path, names: Iterable[str], recordings: Iterable[str]) -> Figures:
    """The figures of some files; those of `recordings` are left out where they are data."""
    left_out = re.compile("|".join(map(fnmatch.translate, recordings)) or r"(?!)")
    sums: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for name in names:
        path = root / name
        is_data = not name.startswith("src/") and path.suffix not in CODE_SUFFIXES
        if not path.is_file() or (is_data and left_out.match(name)):
            continue
        for kind, value in measure(path).items():
            sums[kind][row_of(name)] += value
    return {kind: {row: rows[row] for row in sorted(rows)} for kind, rows in sums.items()}


def list_files(root: Path) -> list[str]:
    """The files of a checkout that git does not ignore, those that nobody has added yet too."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others"]
    done = subprocess.run([*command, "--exclude-standard"], check=True, capture_output=True)
    return sorted(set(done.stdout.decode().split("\0")) - {""})


def committed_ceiling(root: Path) -> dict[str, Any] | None:
    """The ceiling of the last commit: what a change is held against, however often it writes."""
    command = ["git", "-C", str(root), "show", "HEAD:ceiling.toml"]
    done = subprocess.run(command, check=False, capture_output=True)
    return None if done.returncode else tomllib.loads(done.stdout.decode())


def differences(ceiling: Figures, now: Figures) -> Iterator[tuple[str, str, int, int]]:
    """Each row that differs: its kind, its name, its ceiling and what it has."""
    for kind in KINDS:
        limits, values = ceiling.get(kind, {}), now.get(kind, {})
        for row in sorted(limits.keys() | values.keys()):
            if (limit := limits.get(row, 0)) != (value := values.get(row, 0)):
                yield kind, row, limit, value


def only_falls(kind: str, row: str) -> bool:
    """Whether a row is a part of the sums that no reason raises."""
    return kind != "bytes" and (row == "C" or row.startswith("src/"))


def describe_rises(committed: Figures, figures: Figures) -> str:
    """What has risen since the last commit and needs a reason, such as "tests +20 lines"."""
    return ", ".join(
        f"{row} +{value - limit:,} {kind}"
        for kind, row, limit, value in differences(committed, figures)
        if value > limit and not only_falls(kind, row)
    )


def find_refusal(committed: Figures, figures: Figures, why: str | None) -> str | None:
    """Why figures cannot follow those of the last commit, and what to do; None where they can."""
    falls: Counter[str] = Counter()
    for kind, row, limit, value in differences(committed, figures):
        falls[kind] += limit - value if only_falls(kind, row) else 0
    for kind, fall in falls.items():
        if fall < 0:
            return (
                f"{kind} of src and C: {-fall:,} more than at the last commit, and no reason "
                "raises their sum; take as many out of src or C in the same commit"
            )
    rises = describe_rises(committed, figures)
    if rises and not why:
        return f'{rises}: take them out, or say what for with --write --why "..."'
    return None


def render(head: str, figures: Figures, reasons: Iterable[dict[str, Any]]) -> str:
    """The text of ceiling.toml."""
    parts = [head, WRITTEN]
    for kind, rows in figures.items():
        parts += [f"\n[{kind}]\n", *(f'"{row}" = {value}\n' for row, value in rows.items())]
    for reason in reasons:
        # A string of JSON is one of TOML.
        fields = (f"{key} = {json.dumps(reason[key], ensure_ascii=False)}\n" for key in reason)
        parts += ["\n[[reason]]\n", *fields]
    return "".join(parts)


def hold(root: Path, *, write: bool = False, why: str | None = None) -> int:
    """Compares the tree with ceiling.toml, or writes it; the exit code."""
    file = root / "ceiling.toml"
    text = file.read_text(encoding="utf-8")
    ceiling, committed = tomllib.loads(text), committed_ceiling(root)
    now = measure_tree(root, list_files(root), ceiling["recordings"])
    rows = list(differences(ceiling, now))
    if rows and KINDS[0] in ceiling:
        print(f"{'':30}{'ceiling':>12}{'now':>12}{'difference':>12}")
        for kind, row, limit, value in rows:
            print(f"{f'{row} ({kind})':30}{limit:12,}{value:12,}{value - limit:+12,}")
    # A change has one reason; the last commit's file has those of the changes before.
    earlier = committed.get("reason", []) if committed else []
    noted = ceiling.get("reason", [])[len(earlier) :]
    why = why or (noted[-1]["why"] if noted else None)
    # Before its first commit the ceiling is what the tree has, whatever that is.
    for figures in [now] if write else [ceiling, now]:
        if committed and (refusal := find_refusal(committed, figures, why)):
            print(refusal)
            return 1
    if write:
        today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
        rises = describe_rises(committed, now) if committed else ""
        reasons = [*earlier, {"date": today, "rises": rises, "why": why}] if rises else earlier
        file.write_text(render(text.partition(WRITTEN)[0], now, reasons), encoding="utf-8")
        print("Wrote ceiling.toml")
        return 0
    if any(value > limit for _, _, limit, value in rows):
        print("above the ceiling: take it out, or `python -m benchmarks.ceiling --write`")
        return 1
    if rows:
        print("below the ceiling: `python -m benchmarks.ceiling --write` lowers it")
    return 0


def main() -> int:
    """Hold the tree to its ceiling, or write what it has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make the tree's figures the ceiling")
    parser.add_argument("--why", help="the reason for which tests, benchmarks or docs rise")
    options = parser.parse_args()
    if options.why and not options.write:
        parser.error("--why is a reason to write: give --write too")
    if not (ROOT / ".git").exists():
        print("not a git checkout: the files that the ceiling holds cannot be listed")
        return 0
    return hold(ROOT, write=options.write, why=options.why)


if __name__ == "__main__":
    sys.exit(main())

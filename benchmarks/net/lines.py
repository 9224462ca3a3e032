"""The lines of src that a tier of tests executes, in every process that it starts.

`python -m benchmarks.net --lines all` leaves them in build/net, where mutants are drawn from them.
`--lines test` also writes docs/results/net-lines.csv: of each module of more than MIN_CODE_LINES
the lines within functions, and how many of these `make test` executes. One at least is the rule.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.ceiling import measure
from benchmarks.net.trial import Clone

MIN_CODE_LINES: Final = 50
_START: Final = Path(__file__).with_name("start_coverage.py")


class ModuleLines(NamedTuple):
    """Of a module, by its path within src/ullage: its lines of code, its lines within functions,
    and how many of these are executed.
    """

    module: str
    num_code: int
    num_inner: int
    num_executed: int


def read_sources(package: Path) -> dict[str, str]:
    """The text of each module, by its path within src/ullage."""
    return {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
    }


def measure_lines(clone: Clone, tier: str) -> dict[str, list[int]]:
    """Runs a tier, and returns the lines of each module that were executed.

    Tests about what a process loads, or writes, fail beside coverage; they execute their lines.
    """
    package, data = clone.root / "src" / "ullage", clone.root.with_name("coverage-data")
    place = clone.root.with_name("coverage")
    if not place.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--target", str(place), "coverage"], check=True,
        )  # fmt: skip
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    given = {"PACKAGE": str(package), "COVERAGE": str(place), "DATA": str(data)}
    clone.restore()
    clone.build(tier)
    _measure_processes(package, f"__import__('runpy').run_path({str(_START)!r}, {given!r})")
    outcome = clone.run(tier)
    clone.restore()
    print(f"{outcome.seconds:.0f} s; the first test that failed: {outcome.case or 'none'}")
    return _collect(data, place, package)


def _measure_processes(package: Path, start: str) -> None:
    """Has a process start coverage when it imports ullage; and the programs that import nothing of
    it, too, on the line of their first import, so that no line moves.
    """
    with (package / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{start}\n")
    for path in (package / "ground" / "programs").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("\nimport ", f"\n{start}; import ", 1), encoding="utf-8")


def _collect(data: Path, place: Path, package: Path) -> dict[str, list[int]]:
    sys.path.insert(0, str(place))
    from coverage import CoverageData

    executed: defaultdict[str, set[int]] = defaultdict(set)
    for path in data.iterdir():
        found = CoverageData(str(path))
        found.read()
        for file in found.measured_files():
            executed[Path(file).relative_to(package).as_posix()].update(found.lines(file) or ())
    return {file: sorted(lines) for file, lines in sorted(executed.items())}


def count_lines(package: Path, executed: Mapping[str, list[int]]) -> list[ModuleLines]:
    """The modules of more than MIN_CODE_LINES that have functions."""
    rows = []
    for file, text in read_sources(package).items():
        inner = set(inner_lines(text))
        num_code = measure(package / file)["lines"]
        if num_code > MIN_CODE_LINES and inner:
            num_executed = len(inner.intersection(executed.get(file, ())))
            rows.append(ModuleLines(file, num_code, len(inner), num_executed))
    return rows


def inner_lines(text: str) -> Iterator[int]:
    """The lines within functions, without those of a docstring or of an ellipsis."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                is_constant = isinstance(statement, ast.Expr) and isinstance(
                    statement.value, ast.Constant
                )
                if not is_constant:
                    yield from range(statement.lineno, (statement.end_lineno or 0) + 1)

"""The C sources of the phantom depend on each other in one direction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "src" / "ullage" / "players" / "phantom" / "csrc"
_NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL)
_DEFINITION = re.compile(
    r"^(?!static\b|#|typedef\b|extern\b)(?:API\s+)?[A-Za-z_][\w \t*]*?[ *](\w+)\s*\([^;{}]*\)\s*\{",
    re.MULTILINE,
)
_STATIC = re.compile(r"^static[^;{=]*?(\w+)\s*\(", re.MULTILINE)
_CALL = re.compile(r"(?<![\w.>])(\w+)\s*\(")


@cache
def code() -> Mapping[str, str]:
    """Each C file by its stem, without comments and strings."""
    return {path.stem: _NO_CODE.sub("", path.read_text("utf-8")) for path in SOURCES.rglob("*.c")}


def uses(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """For each file the files that define what it calls."""
    homes = {name: file for file, text in texts.items() for name in _DEFINITION.findall(text)}
    return {
        file: {
            homes[name]
            for name in set(_CALL.findall(text)) - set(_STATIC.findall(text))
            if homes.get(name, file) != file
        }
        for file, text in texts.items()
    }


def test_no_circle_between_files() -> None:
    try:
        order = [*TopologicalSorter(uses(code())).static_order()]
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")
    assert order.index("levels") < order.index("basis") and len(order) > 40


def test_a_circle_would_be_found() -> None:
    texts = {"a": "int f(void) {\n  return g();\n}\n", "b": "int g(void) {\n  return f();\n}\n"}
    with pytest.raises(CycleError):
        [*TopologicalSorter(uses(texts)).static_order()]


def test_answers_use_the_machine_and_not_the_other_way_round() -> None:
    answers = {path.stem for path in (SOURCES / "answers").glob("*.c")}
    machine = {path.stem for path in (SOURCES / "machine").glob("*.c")}
    found = uses(code())
    assert not {file: found[file] & answers for file in machine if found[file] & answers}

"""The formats of CI systems: Markdown, JUnit's XML, and the commands of GitHub's log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from ullage.answers.block_kinds import Blocks, Cell, Headline, Lines, Row, Table, Title, Tone, Word
from ullage.ground.printable import printable, printable_lines


@dataclass(frozen=True, slots=True)
class TestCase:
    """A case of a suite.

    Attributes:
        seconds: how long it took.
        fault: "failure", "error", or "" where it passed.
        message, text: why it did not pass, in a line and in full.
    """

    name: str
    seconds: float
    fault: str = ""
    message: str = ""
    text: str = ""


def junit(suite: str, cases: Sequence[TestCase], properties: Iterable[tuple[str, int]]) -> str:
    """JUnit's XML.

    Source: junit-10.xsd of Jenkins' xUnit plugin, in which only a suite has properties.
    """
    failures, errors = (sum(case.fault == kind for case in cases) for kind in ("failure", "error"))
    counts = f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    seconds = sum(case.seconds for case in cases)
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>"]
    lines.append(f'  <testsuite name={_attribute(suite)} {counts} time="{seconds:.3f}">')
    lines.append("    <properties>")
    lines += [f'      <property name={_attribute(n)} value="{value}"/>' for n, value in properties]
    lines.append("    </properties>")
    for case in cases:
        name = f"classname={_attribute(suite.replace(' ', '.'))} name={_attribute(case.name)}"
        lines.append(f'    <testcase {name} time="{case.seconds:.3f}">')
        if case.fault:
            lines.append(f"      <{case.fault} message={_attribute(case.message)}>")
            lines += [escape(printable_lines(case.text)), f"      </{case.fault}>"]
        lines.append("    </testcase>")
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


def github_error(title: str, text: str, file: str, line: int) -> str:
    """A line for stdout, which GitHub shows beside the code."""
    where = f"file={_escape(file, is_property=True)},line={line}"
    return f"::error {where},title={_escape(title, is_property=True)}::{_escape(text)}"


def _escape(text: str, *, is_property: bool = False) -> str:
    text = printable_lines(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text


def markdown(blocks: Blocks) -> str:
    """Blocks as Markdown, such as a summary on GitHub; headlines, titles, tables and lines."""
    return "\n".join(line for block in blocks for line in _markdown(block)) + "\n"


def _markdown(block: object) -> Iterator[str]:
    match block:
        case Headline():
            yield from (f"### {_safe(block.plain)}", "")
        case Title(text):
            yield from ("", f"#### {_safe(text)}", "")
        case Lines(lines):
            text = printable_lines("\n".join(lines)).replace("```", "'''")
            yield from ("```", text.rstrip(), "```")
        case Table(columns, rows, head):
            yield _cells(head)
            yield f"|{'|'.join('--:' if column.is_right else '---' for column in columns)}|"
            yield from (_cells(row.cells if isinstance(row, Row) else row) for row in rows)


def _cells(cells: Sequence[Cell]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(cell: Cell) -> str:
    match cell:
        case Word(text, tone):
            return f"**{_safe(text)}**" if tone is not Tone.PLAIN else _safe(text)
        case str():
            return _safe(cell)
    return ""


def _safe(text: str) -> str:
    return printable(text.replace("\n", " ")).replace("|", "\\|")

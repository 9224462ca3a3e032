"""A check in the formats of CI systems: JUnit's XML, GitHub's annotations and its step summary.

junit_report(view)                  XML for GitLab, Jenkins and others
github_annotations(view, root)      lines for stdout
github_summary(view, pages)         Markdown for $GITHUB_STEP_SUMMARY
github_link(page, os.environ)       the target of the summary's link to a page
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from ullage.answers.text import render
from ullage.explain.compare.changes import signed
from ullage.gate.compare import Comparison
from ullage.gate.reasons import name_place
from ullage.gate.verdicts import Judged, State
from ullage.printable import printable, printable_lines
from ullage.report.text.check import (
    case_line,
    check_blocks,
    check_line,
    label_category,
    label_module,
    state_text,
)
from ullage.report.views import CheckView
from ullage.units import format_bytes

# GitHub shows at most ten errors of a step, and refuses a summary above 1 MiB.
_MAX_ANNOTATIONS = 10
_MAX_SUMMARY_BYTES = 1_000_000
_MAX_DETAILED = 50
_WHERE = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+)")
_LAST_WHERE = re.compile(r"\bat (?P<file>[^ :]+):(?P<line>\d+) in ")


def junit_report(view: CheckView) -> str:
    """Renders the check as JUnit's XML, with a test case for each case of a scenario.

    Source: junit-10.xsd of Jenkins' xUnit plugin, in which only a suite has properties.
    """
    failing = [judged for judged in view.judged if judged.state.exit_code == 1]
    errors = [judged for judged in view.judged if judged.state is State.FAILED]
    counts = f'tests="{len(view.judged)}" failures="{len(failing)}" errors="{len(errors)}"'
    seconds = sum(judged.wall_s for judged in view.judged)
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>"]
    lines.append(f'  <testsuite name="ullage check" {counts} time="{seconds:.3f}">')
    lines += _properties(view)
    for judged in view.judged:
        lines += _test_case(view, judged)
    return "\n".join([*lines, "  </testsuite>", "</testsuites>", ""])


def _properties(view: CheckView) -> Iterator[str]:
    yield "    <properties>"
    for comparison in (comparison for judged in view.judged for comparison in judged.comparisons):
        for level, size in comparison.entry.peaks._asdict().items():
            name = _attribute(f"{comparison.name} peak_{level}")
            yield f'      <property name={name} value="{size}"/>'
    yield "    </properties>"


def _test_case(view: CheckView, judged: Judged) -> Iterator[str]:
    attributes = (
        f'classname="ullage.check" name={_attribute(judged.name)} time="{judged.wall_s:.3f}"'
    )
    yield f"    <testcase {attributes}>"
    if judged.state.exit_code:
        tag = "error" if judged.state is State.FAILED else "failure"
        alone = CheckView(view.path, (judged,), view.diffs)
        yield f"      <{tag} message={_attribute(case_line(judged))}>"
        yield escape(printable_lines(render(check_blocks(alone))))
        yield f"      </{tag}>"
    yield "    </testcase>"


def _attribute(text: str) -> str:
    return quoteattr(printable(text))


def github_annotations(view: CheckView, root: Path) -> Iterator[str]:
    """Yields a line for each case that did not pass; GitHub shows it beside the code.

    root: the root of the checkout, to which GitHub's paths are relative.
    """
    failing = [judged for judged in view.judged if judged.state.exit_code]
    for judged in failing[:_MAX_ANNOTATIONS]:
        file, line = _place_of(view, judged, root)
        body = [case_line(judged), *_largest(judged)]
        for comparison in judged.comparisons:
            if not comparison.is_kept:
                body += view.reasons(judged, comparison)
        where = f"file={_escape(file, is_property=True)},line={line}"
        title = _escape(f"ullage check: {judged.name}: {judged.state.value}", is_property=True)
        yield f"::error {where},title={title}::{_escape(chr(10).join(body))}"
    if len(failing) > _MAX_ANNOTATIONS:
        # GitHub would not show an eleventh error, but it counts warnings separately.
        yield f"::warning ::ullage check: {len(failing) - _MAX_ANNOTATIONS} more do not pass"


def _escape(text: str, *, is_property: bool = False) -> str:
    text = printable_lines(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text


def _place_of(view: CheckView, judged: Judged, root: Path) -> tuple[str, int]:
    """The file and line with the largest growth, or of the failure; else those of the scenario."""
    places = [_LAST_WHERE.search(f"at {judged.reason}") or _LAST_WHERE.search(judged.reason)]
    for comparison in judged.comparisons:
        lines = judged.measured[comparison.name].lines
        grown = [row for row in comparison.changes.places if row.changed_bytes > 0]
        places += [_WHERE.match(name_place(row, lines)) for row in grown]
    for match in filter(None, places):
        for directory in (judged.scenario.directory, judged.scenario.directory.parent):
            path = directory / match["file"]
            if path.is_file():
                return _relative(path, root), int(match["line"])
    return _relative(view.path, root), judged.scenario.line


def _relative(path: Path, root: Path) -> str:
    return os.path.relpath(path.resolve(), root.resolve())


def _largest(judged: Judged) -> Iterator[str]:
    for comparison in judged.comparisons:
        changes, lines = comparison.changes, judged.measured[comparison.name].lines
        for title, rows in (
            ("category", [(label_category(row.name), row) for row in changes.categories]),
            ("module", [(label_module(row.name), row) for row in changes.modules]),
            ("place", [(name_place(row, lines), row) for row in changes.places]),
        ):
            grown = next((pair for pair in rows if pair[1].changed_bytes > 0), None)
            if grown is not None:
                yield f"{title} {grown[0]}: {signed(grown[1].changed_bytes)}"


def github_link(page: Path, environment: Mapping[str, str]) -> str:
    """The link from a summary to a page: the artifacts of GitHub's run, because a summary cannot
    link to files; the file itself outside of a run.
    """
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (environment.get(name, "") for name in names)
    if not (server and repository and run):
        return str(page)
    return f"{server}/{repository}/actions/runs/{run}#artifacts"


def github_summary(view: CheckView, pages: Mapping[str, str]) -> str:
    """Renders the check as Markdown: a table, and the changes in each case that did not pass.

    pages: the link to the page of each entry, by the entry's name.
    """
    lines = [f"### ullage check: {check_line(view)}", ""]
    lines += [
        "| scenario | allocated | change | reserved | device | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for judged in view.judged:
        lines += [_row(judged, comparison, pages) for comparison in judged.comparisons]
        if not judged.comparisons:
            lines.append(f"| {_cell(judged.name)} | | | | | {_mark(judged)} |")
    for judged in [one for one in view.judged if one.state.exit_code][:_MAX_DETAILED]:
        alone = CheckView(view.path, (judged,), view.diffs)
        text = printable_lines(render(check_blocks(alone))).replace("```", "'''")
        lines += ["", f"#### {_cell(judged.name)}: {_cell(case_line(judged))}", ""]
        lines += ["```", text.rstrip(), "```"]
    text = "\n".join(lines) + "\n"
    return text.encode()[:_MAX_SUMMARY_BYTES].decode(errors="ignore")


def _row(judged: Judged, comparison: Comparison, pages: Mapping[str, str]) -> str:
    peaks, locked = comparison.entry.peaks, comparison.locked
    changed = ""
    if locked is not None:
        changed = signed(peaks.allocated_bytes - locked.peaks.allocated_bytes)
    levels = (peaks.allocated_bytes, peaks.reserved_bytes, peaks.used_bytes)
    allocated, *others = (format_bytes(level, 2) for level in levels)
    name = _cell(comparison.name)
    page = pages.get(comparison.name)
    if page is not None:
        name += f" ([page]({page}))"
    return f"| {name} | {allocated} | {changed} | {' | '.join(others)} | {_mark(judged)} |"


def _mark(judged: Judged) -> str:
    return f"**{state_text(judged)}**" if judged.state.exit_code else state_text(judged)


def _cell(text: str) -> str:
    return printable(text.replace("\n", " ")).replace("|", "\\|")

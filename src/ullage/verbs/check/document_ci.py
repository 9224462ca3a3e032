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

from ullage.answers import block_kinds as b
from ullage.answers.ci import TestCase, github_error, junit, markdown
from ullage.answers.text import render
from ullage.explain.compare.changes import signed
from ullage.ground.units import format_bytes
from ullage.verbs.check.gate.compare import Comparison
from ullage.verbs.check.gate.reasons import name_place
from ullage.verbs.check.gate.verdicts import Judged, State
from ullage.verbs.check.text import case_line, check_blocks, check_line, list_changes, state_text
from ullage.verbs.views.views import CheckView

# GitHub shows at most ten errors of a step, and refuses a summary above 1 MiB.
_MAX_ANNOTATIONS = 10
_MAX_SUMMARY_BYTES = 1_000_000
_MAX_DETAILED = 50
_WHERE = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+)")
_LAST_WHERE = re.compile(r"\bat (?P<file>[^ :]+):(?P<line>\d+) in ")


def junit_report(view: CheckView) -> str:
    """The check as JUnit's XML, with a test case for each case of a scenario."""
    properties = [
        (f"{comparison.name} peak_{level}", size)
        for judged in view.judged
        for comparison in judged.comparisons
        for level, size in comparison.entry.peaks._asdict().items()
    ]
    return junit("ullage check", [_test_case(view, judged) for judged in view.judged], properties)


def _test_case(view: CheckView, judged: Judged) -> TestCase:
    if not judged.state.exit_code:
        return TestCase(judged.name, judged.wall_s)
    fault = "error" if judged.state is State.FAILED else "failure"
    text = render(check_blocks(CheckView(view.path, (judged,), view.diffs)))
    return TestCase(judged.name, judged.wall_s, fault, case_line(judged), text)


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
        title = f"ullage check: {judged.name}: {judged.state.value}"
        yield github_error(title, "\n".join(body), file, line)
    if len(failing) > _MAX_ANNOTATIONS:
        # GitHub would not show an eleventh error, but it counts warnings separately.
        yield f"::warning ::ullage check: {len(failing) - _MAX_ANNOTATIONS} more do not pass"


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
        for title, rows in list_changes(judged, comparison):
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
    text = markdown(_summary_blocks(view, pages))
    return text.encode()[:_MAX_SUMMARY_BYTES].decode(errors="ignore")


def _summary_blocks(view: CheckView, pages: Mapping[str, str]) -> Iterator[b.Block]:
    yield b.Headline.of(f"ullage check: {check_line(view)}", b.Tone.PLAIN)
    rows: b.Rows = []
    for judged in view.judged:
        rows += [_row(judged, comparison, pages) for comparison in judged.comparisons]
        if not judged.comparisons:
            rows.append([judged.name, "", "", "", "", _mark(judged)])
    head = ("scenario", "allocated", "change", "reserved", "device", "")
    yield b.Table((b.LEFT, *[b.RIGHT] * 4, b.LEFT), rows, head)
    for judged in [each for each in view.judged if each.state.exit_code][:_MAX_DETAILED]:
        alone = CheckView(view.path, (judged,), view.diffs)
        yield b.Title(f"{judged.name}: {case_line(judged)}")
        yield b.Lines(tuple(render(check_blocks(alone)).splitlines()))


def _row(judged: Judged, comparison: Comparison, pages: Mapping[str, str]) -> list[b.Cell]:
    peaks, locked = comparison.entry.peaks, comparison.locked
    changed = "" if locked is None else signed(peaks.allocated_bytes - locked.peaks.allocated_bytes)
    allocated, *others = (
        format_bytes(level, 2)
        for level in (peaks.allocated_bytes, peaks.reserved_bytes, peaks.used_bytes)
    )
    page = pages.get(comparison.name)
    name = comparison.name + ("" if page is None else f" ([page]({page}))")
    return [name, allocated, changed, *others, _mark(judged)]


def _mark(judged: Judged) -> b.Cell:
    tone = b.Tone.BAD if judged.state.exit_code else b.Tone.PLAIN
    return b.Word(state_text(judged), tone)

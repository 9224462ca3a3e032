"""Where a verb's results go: text or one JSON document to stdout, progress and remarks to stderr,
files by name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ullage.cli.main import WRONG_USE, drop_stdout, say
from ullage.errors import SnapshotError, SpecError
from ullage.protocol.options.option import HelpSection
from ullage.units import format_bytes

# What help does not need is imported where it is used: blocks, and what writes files.
if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.api.run import Run
    from ullage.techniques.plan import Plan

OUTPUT = HelpSection("Output")
QUIET = "Print only the verdict, without progress."
# What ullage exits with where a result could not be written, whatever the result is.
UNWRITABLE = WRONG_USE
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Covers what an earlier, longer line left.
_PROGRESS_WIDTH = 32


@dataclass(frozen=True, slots=True)
class Output:
    """Where an answer goes: options of every command, and of no Python function.

    Attributes:
        output: a file for the document.
        html: a file for the page.
        as_json, full, quiet: what is printed: the document, all of the report, its first line.
        force: whether files are overwritten.
    """

    output: Path | None = OUTPUT("Also write the document (JSON).", "FILE", "-o", "--output")
    html: Path | None = OUTPUT("Also write an HTML page.", "FILE")
    as_json: bool = OUTPUT.switch("Print the document (JSON) instead of the report.", "--json")
    full: bool = OUTPUT.switch("Print the full report instead of the short one.")
    force: bool = OUTPUT.switch("Overwrite existing files.")
    quiet: bool = OUTPUT.switch("Print only the first line.")

    @contextmanager
    def progress(self, *, has_lines: bool = False) -> Iterator[Callable[[str], None] | None]:
        """What to call with a line of progress; None where nobody watches.

        has_lines: what takes minutes writes its lines to a file too.
        """
        if self.quiet or not sys.stderr.isatty():
            yield _write_progress if has_lines and not self.quiet else None
            return
        try:
            yield _show_progress
        finally:
            _echo_aside("\x1b[K")

    def show(self, blocks: Blocks) -> None:
        """Shows blocks: all of them, or only the headline with --quiet."""
        if self.quiet:
            from ullage.answers.block_kinds import headlines

            for line in headlines(blocks):
                say(line)
        else:
            from ullage.answers.text import print_blocks

            print_blocks(blocks, full=self.full)

    def check(self, *others: tuple[str, Path | None]) -> None:
        """As `check_files`, of what the answer is written to and of other options' files."""
        check_files(("--output", self.output), ("--html", self.html), *others, force=self.force)

    def give(
        self, answer: Any, blocks: Blocks, files: Sequence[object] = (),
        problems: Sequence[str] = (), *, exit_code: int | None = None,
    ) -> int:  # fmt: skip
        """Writes an answer's page and document, and shows its report; what to exit with: by default
        its own code, or 0.
        """
        if exit_code is None:
            exit_code = getattr(answer, "exit_code", 0)
        if self.html is not None:
            files = [*files, _write(answer.html, self.html, force=self.force)]
        show, document = partial(self.show, blocks), lambda: answer.document
        return exit_code if write_result(self, document, show, files, problems) else UNWRITABLE


def show_failure(text: str) -> None:
    """Shows what a program that failed has written last, without its colours."""
    say(_COLOUR.sub("", text), is_aside=True)


def save_plan(plan: Plan | None, path: Path | None, *, force: bool) -> list[object]:
    """Writes a plan where there is one and a file was named for it; returns what was written."""
    if plan is None or path is None:
        return []
    plan.save(path, force=force)
    return [path]


def _show_progress(line: str) -> None:
    """Shows "step 3 allocated 8641234567" at the right edge and puts the cursor back, so that the
    program's own lines are left alone.
    """
    import shutil

    step, is_step, size = line.partition(" allocated ")
    text = f"{step}, {format_bytes(int(size))} allocated" if is_step else line
    width = shutil.get_terminal_size().columns
    cell = f"{text:>{_PROGRESS_WIDTH}}"[-width:]
    column = width - len(cell) + 1
    _echo_aside(f"\x1b7\x1b[{column}G\x1b[2m{cell}\x1b[0m\x1b8")


def _write_progress(line: str) -> None:
    _echo_aside(f"ullage: {line}\n")


def _echo_aside(text: str) -> None:
    """To stderr; a terminal that is gone is not a reason to end the run."""
    with suppress(OSError):
        click.echo(text, nl=False, err=True)


def check_files(*options: tuple[str, Path | None], force: bool) -> None:
    """Raises SpecError where a file that an option names cannot be written, or two name the same:
    before the work, not after it.
    """
    taken: dict[Path, str] = {}
    for option, path in options:
        if path is None:
            continue
        from ullage.files import check_writable

        check_writable(path, force=force)
        if path.absolute() in taken:
            other = taken[path.absolute()]
            raise SpecError(f"{other} and {option} both name {str(path)!r}; give two names")
        taken[path.absolute()] = option


def check_plot_option(plot: Path | None) -> None:
    """Raises SpecError where what --plot names cannot be drawn: before the work, not after it."""
    if plot is not None:
        from ullage.answers.plot import check_plot

        check_plot(plot)


def write_run(run: Run, output: Output, snapshot: Path | None, timeline: Path | None) -> int:
    """Writes the result of a run; the last lines name the files.

    Args:
        snapshot: the file that the user named for the snapshot; None: none.
        timeline: where the timeline of the last step goes; None: there is none.

    Returns:
        What to exit with.
    """
    # Loaded by now: the run has imported it while the program was running.
    from ullage.report.text.run import run_blocks

    def show() -> None:
        if not output.quiet:
            click.echo()  # the program's own output ends here
        findings = () if output.full or output.quiet else run.findings
        output.show(run_blocks(run.report, findings))

    files: list[object] = [process.snapshot for process in run.report.processes]
    problems = list(run.report.program.not_kept)
    if snapshot is not None and files and files[0] not in {None, str(snapshot)}:
        problems.append(_moved(snapshot, files[0]))
    for path, name in ((output.html, "html"), (timeline, "timeline")):
        if path is None:
            continue
        try:
            files.append(_write(getattr(run, name), path, force=output.force))
        except (OSError, SnapshotError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            problems.append(f"{str(path)!r} could not be written: {why}")
    is_written = write_result(output, lambda: run.document, show, files, problems)
    return run.exit_code if is_written else UNWRITABLE


def write_result(
    output: Output,
    make_document: Callable[[], Mapping[str, Any]],
    show: Callable[[], None],
    files: Sequence[object],
    problems: Sequence[str] = (),
) -> bool:
    """Writes the document, shows the result, and names the files; False: something is not written.

    make_document: makes the document, which is made only where somebody wants it.

    A reader that has ended (`ullage run ... | head`) needs no more; any other failure is reported.
    """
    has_document = output.as_json or output.output is not None
    text = json.dumps(make_document(), indent=2) if has_document else ""
    names, problems = list(files), list(problems)
    if output.output is not None:
        try:
            written = _write(text + "\n", output.output, force=output.force)
        except OSError as error:
            problems.append(
                f"{str(output.output)!r} could not be written: {error.strerror or error}"
            )
        else:
            names.append(written)
            if written != output.output:
                problems.append(_moved(output.output, written))
    try:
        if output.as_json:
            click.echo(text)
        else:
            show()
        for path in names:
            if path is not None:
                say(f"Wrote {path}", is_aside=output.as_json or output.quiet)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        drop_stdout()
        problems.append(f"the result could not be printed: {error.strerror or error}")
    for problem in problems:
        with suppress(OSError):
            say(f"ullage: {problem}", is_aside=True)
    return not problems


def _write(text: str, path: Path, *, force: bool) -> Path:
    from ullage.files import write_text

    return write_text(text, path, force=force)


def _moved(path: Path, written: object) -> str:
    return f"{str(path)!r} was made by another while this ran; what was to go there is in {written}"

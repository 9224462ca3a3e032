"""Where a verb's results go: text or one JSON document to stdout, progress and remarks to stderr,
files by name.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ullage.ground.errors import SnapshotError, SpecError
from ullage.ground.protocol.option import HelpSection
from ullage.ground.units import format_bytes
from ullage.verbs.command_line.streams import WRONG_USE, drop_stdout, say

# What help does not need is imported where it is used: blocks, and what writes files.
if TYPE_CHECKING:
    from ullage.answers.verb_answer import VerbAnswer
    from ullage.verbs.run.function import Run

OUTPUT = HelpSection("Output")
PLOTS: Final = (".svg", ".png", ".pdf")
TIMELINE: Final = ".perfetto.json"
# What of an answer goes into a file of this ending; the document into .json, or one without any.
_PARTS: Final = {
    ".html": "page", **dict.fromkeys(PLOTS, "plot"), TIMELINE: "timeline", ".pickle": "log",
    ".ullage": "log", ".folded": "flame graph", ".csv": "table of blocks",
}  # fmt: skip
# What ullage exits with where a result could not be written, whatever the result is.
UNWRITABLE = WRONG_USE
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Covers what an earlier, longer line left.
_PROGRESS_WIDTH = 32


@dataclass(frozen=True, slots=True)
class Output:
    """The outputs of an answer: options of every command, and of no Python function.

    Attributes:
        output: files; the ending of each says what of the answer it is for.
        force: True: files that exist are overwritten.
        as_json, full: what is printed: the document, all of the report.
    """

    output: Sequence[Path] = OUTPUT(
        "Also write .html, a page, or .json, the document; repeatable.", "FILE", "-o", "--output",
        default=(),
    )  # fmt: skip
    force: bool = OUTPUT.switch("Overwrite existing files.")
    as_json: bool = OUTPUT.switch("Print the document (JSON) instead of the report.", "--json")
    full: bool = OUTPUT.switch("Print the full report instead of the short one.")

    @contextmanager
    def progress(self, *, has_lines: bool = False) -> Iterator[Callable[[str], None] | None]:
        """The function to call with a line of progress; None where nobody watches.

        has_lines: what takes minutes writes its lines to a file too.
        """
        if not sys.stderr.isatty():
            yield _write_progress if has_lines else None
            return
        try:
            yield _show_progress
        finally:
            _echo_aside("\x1b[K")

    def check(self, *endings: str, others: Sequence[tuple[str, Path | None]] = ()) -> None:
        """Refuses files that the answer has nothing for, or that cannot be written: before the
        work, not after it.

        Args:
            endings: those that the answer has something for, besides any for the document.
            others: files of other options, each with its flag.

        Raises:
            SpecError: with the file.
        """
        for path in self.output:
            ending = ending_of(path)
            known = (".json", *endings)
            if ending and ending not in known:
                part = _PARTS.get(ending)
                why = (
                    f"would hold a {part}, which this answer does not have"
                    if part
                    else (f"ends in {ending}, which says nothing of what is to be written")
                )
                raise SpecError(f"{str(path)!r} {why}; end it in one of {', '.join(known)}")
            if ending in PLOTS:
                from ullage.answers.plot import check_plot

                check_plot(path)
        check_files(*[("--output", path) for path in self.output], *others, force=self.force)

    def give(
        self, answer: VerbAnswer, files: Sequence[object] = (), problems: Sequence[str] = ()
    ) -> int:  # fmt: skip
        """Writes an answer's files, and shows its report; what to exit with."""
        from ullage.answers.text import print_blocks

        def show() -> None:
            print_blocks(answer.blocks(full=self.full), full=self.full)

        is_written = write_result(self, answer, show, files, problems)
        return answer.exit_code if is_written else UNWRITABLE


def ending_of(path: Path) -> str:
    """The end of a file's name by which `-o` says what it is for."""
    name = path.name.lower()
    return TIMELINE if name.endswith(TIMELINE) else Path(name).suffix


def show_failure(text: str) -> None:
    """Shows what a program that failed has written last, without its colours."""
    say(_COLOUR.sub("", text), is_aside=True)


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
    from ullage.ground.files import check_writable

    taken: dict[Path, str] = {}
    for option, path in options:
        if path is None:
            continue
        check_writable(path, force=force)
        if path.absolute() in taken:
            other = taken[path.absolute()]
            raise SpecError(f"{other} and {option} both name {str(path)!r}; give two names")
        taken[path.absolute()] = option


def write_run(run: Run, output: Output, snapshot: Path | None) -> int:
    """Writes the result of a run; the last lines name the files.

    Args:
        snapshot: the file that the user named for the snapshot; None: none.

    Returns:
        What to exit with.
    """
    # Loaded by now: the run has imported it while the program was running.
    from ullage.answers.text import print_blocks

    def show() -> None:
        click.echo()  # the program's own output ends here
        print_blocks(run.blocks(full=output.full), full=output.full)

    files = [process.snapshot for process in run.report.processes]
    problems = list(run.report.program.not_kept)
    if snapshot is not None and files and files[0] not in {None, str(snapshot)}:
        problems.append(_moved(snapshot, files[0]))
    return run.exit_code if write_result(output, run, show, files, problems) else UNWRITABLE


def write_result(
    output: Output, answer: Any, show: Callable[[], None], files: Sequence[object],
    problems: Sequence[str] = (),
) -> bool:  # fmt: skip
    """Writes an answer's files, shows it, and names the files; False: something is not written.

    A reader that has ended (`ullage run ... | head`) needs no more; any other failure is reported.
    """
    names, problems = list(files), list(problems)
    # Once, though a file and standard output may both take it.
    text = cache(lambda: json.dumps(answer.document, indent=2))
    for path in output.output:
        try:
            written = _write(answer, text, path, force=output.force)
        except (OSError, SnapshotError, SpecError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or error
            problems.append(f"{str(path)!r} could not be written: {why}")
        else:
            names.append(written)
            if written != path:
                problems.append(_moved(path, written))
    try:
        if output.as_json:
            click.echo(text())
        else:
            show()
        for name in names:
            if name is not None:
                say(f"Wrote {name}", is_aside=output.as_json)
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


def _write(answer: Any, text: Callable[[], str], path: Path, *, force: bool) -> Path:
    """Writes the part of an answer that goes into a file of this ending."""
    from ullage.ground.files import write_text

    part = _PARTS.get(ending_of(path), "document")
    if part == "page":
        return write_text(answer.html, path, force=force)
    if part == "plot":
        return Path(answer.plot(path, force=force))
    if part != "document":
        return Path(answer.export(path, force=force))
    return write_text(text() + "\n", path, force=force)


def _moved(path: Path, written: object) -> str:
    return f"{str(path)!r} was made by another while this ran; what was to go there is in {written}"

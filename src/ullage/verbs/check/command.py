"""`ullage check`: checks scenarios against their budgets and the lock file."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.ground.errors import SpecError
from ullage.ground.files import make_directory, write_text
from ullage.ground.protocol.option import OPTIONS, File
from ullage.verbs.check.options import CheckOptions
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.output import OUTPUT, UNWRITABLE, Output, write_result
from ullage.verbs.command_line.streams import say

if TYPE_CHECKING:
    from ullage.verbs.check.function import Check


@dataclass(frozen=True, slots=True)
class CheckOutput(Output):
    """Where the answer of a check goes; and whether the lock is written in its place."""

    write: bool = OPTIONS.switch(
        "Write the memory that scenarios need into the lock file instead; of those that are named "
        "anew."
    )
    pages: Path | None = OUTPUT("Write a page for each change into this directory.", "DIR")


@command(says={"output": "Also write .json, the document, or .xml, for JUnit; repeatable."})
def check_command(options: CheckOptions, output: CheckOutput) -> int:
    """Run scenarios on simulated GPUs: does one need more memory than its budget or lock allows?

    \b
    ullage check
    ullage check train --pages pages
    ullage check -o memory.xml
    ullage check --write
    ullage check --write train

    Scenarios and their budgets are in ullage.toml. With --write what they need is written into
    ullage.lock: what is missing there, and the entries of those that are named. In GitHub Actions
    the report is followed by annotations and a summary.

    Exits with 0 if no limit is exceeded, 1 if one is, or with --write if a scenario runs out of
    memory, 2 if the configuration is wrong, 3 if a program failed.
    """
    options = replace(options, config=name_configuration(options.config))
    output.check(".xml")
    if output.write:
        return _write_lock(options, output)
    from ullage.verbs.check.function import check

    directory = output.pages
    if directory is not None and directory.exists() and not directory.is_dir():
        raise SpecError(f"--pages {str(directory)!r} is a file; give a directory")
    with output.progress() as on_progress:
        result = check.act(replace(options, pages=directory is not None, on_progress=on_progress))
    pages = {} if directory is None else _write_pages(result, directory)
    files: list[object] = [*pages.values()]
    documents = [path for path in output.output if path.suffix != ".xml"]
    for path in output.output:
        if path not in documents:
            from ullage.verbs.check.document_ci import junit_report

            files.append(write_text(junit_report(result.view), path, force=output.force))
    is_written = write_result(
        replace(output, output=documents), result, lambda: _show(result, pages), files
    )
    return result.exit_code if is_written else UNWRITABLE


def _write_lock(options: CheckOptions, output: CheckOutput) -> int:
    from ullage.verbs.check.lock_function import lock

    if output.pages is not None:
        raise SpecError("--pages does not go with --write; leave it out")
    with output.progress() as on_progress:
        locked = lock.act(replace(options, on_progress=on_progress))
    return output.give(locked, [locked.report.path])


def name_configuration(config: File | None) -> File | None:
    """The configuration that was named, or else the one that is found, which is said."""
    from ullage.ground.config.project_file import find_configuration

    if config is None:
        config = find_configuration(Path.cwd())
        if config is not None:
            say(f"ullage: configuration: {config}", is_aside=True)
    return config


def _show(result: Check, pages: dict[str, Path]) -> None:
    from ullage.answers.text import print_blocks
    from ullage.verbs.check.document_ci import github_annotations, github_link, github_summary

    if os.environ.get("GITHUB_ACTIONS") != "true":
        print_blocks(result.blocks())
        return
    token = f"ullage-{secrets.token_hex(16)}"
    click.echo(f"::stop-commands::{token}")  # whatever a line of the report begins with
    print_blocks(result.blocks())
    click.echo(f"::{token}::")
    for line in github_annotations(result.view, Path(os.environ.get("GITHUB_WORKSPACE", "."))):
        say(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        links = {name: github_link(path, os.environ) for name, path in pages.items()}
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(github_summary(result.view, links))


def _write_pages(result: Check, directory: Path) -> dict[str, Path]:
    """A page of each entry that changed; pages of an earlier check are overwritten."""
    make_directory(directory)
    return {
        name: write_text(page, directory / f"{_file_name(name)}.html", force=True)
        for name, page in result.pages.items()
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", name)

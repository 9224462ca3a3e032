"""Runs the blocks of a page in directories of their own.

for result in play(page, python, nightly=False):
    result.block.name, result.failures, result.printed
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.documents.blocks import ROOT, Block, Command, Page
from benchmarks.documents.environment import join_environments, search_path
from benchmarks.documents.outputs import is_same
from benchmarks.documents.recipes import NEVER_RUN, PREPARE, SHARED

COLUMNS = 80
TIMEOUT_S = 1800
_EXITS = re.compile(r"# exits with (\d+)$")
_YES_OR_NO = {0, 1}
_PHANTOM = re.compile(
    r"ullage (run|fit|segments|check|lock)\b|ullage\.(run|sweep|check|fit|measure)\(|thin/bin"
)
_LEFT_OUT = ("ULLAGE_", "PYTORCH_", "PYTEST_", "XDG_", "GITHUB_", "CI_", "LD_PRELOAD", "PYTHON")


@dataclass(frozen=True, slots=True)
class Result:
    """What the commands of a block printed, and what is wrong with it."""

    block: Block
    printed: tuple[tuple[str, ...], ...]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory to run in, and where commands are looked for."""

    directory: Path
    path: tuple[Path, ...]

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command as on a plain terminal, under nobody's settings."""
        kept = {key: text for key, text in os.environ.items() if not key.startswith(_LEFT_OUT)}
        kept |= {
            "PATH": os.pathsep.join([*map(str, self.path), os.environ["PATH"]]),
            "HOME": str(self.directory),
            "NO_COLOR": "1",
            "COLUMNS": str(COLUMNS),
        }
        return subprocess.run(
            command, cwd=self.directory, env=kept, text=True, check=False, capture_output=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip


def needs_phantom(page: Page) -> bool:
    """Whether something of the page runs a program on the phantom."""
    return any(is_played(block) and _PHANTOM.search(block.text) for block in page.blocks)


def is_never_run(block: Block, command: Command) -> bool:
    """Whether a command is one of those that recipes.py excludes."""
    return block.kind == "console" and command.typed.startswith(tuple(NEVER_RUN))


def is_played(block: Block) -> bool:
    """Whether something of a block is run, now or by night."""
    return block.is_run and not all(is_never_run(block, one) for one in block.commands)


def play(
    page: Page, python: Path | None, *, nightly: bool = False, installed: Path | None = None
) -> Iterator[Result]:
    """Runs a page's blocks in their order.

    Args:
        python: the interpreter of an environment with torch; None where the page needs none.
        nightly: run those that take long, too.
        installed: the interpreter of an environment that has ullage; None: this one's, whose
            ullage is that of the clone.
    """
    played = [block for block in page.blocks if is_played(block)]
    chosen = [block for block in played if nightly or not block.is_nightly]
    with tempfile.TemporaryDirectory(prefix="ullage-documents-") as above:
        path: tuple[Path, ...] = ((installed or Path(sys.executable)).parent,)
        if python is not None:
            thin = Path(above, "thin")
            join_environments(thin, python, installed)
            path = search_path(thin, python, installed)
        for block in chosen:
            place = _Place(Path(above, block.place or "project"), path)
            if not place.directory.exists():
                _prepare(page, block.place, place)
            yield _run_block(block, place)


def _prepare(page: Page, name: str, place: _Place) -> None:
    place.directory.mkdir()
    for shared in SHARED:
        shutil.copytree(ROOT / shared, place.directory / shared)
    (place.directory / "thin").symlink_to("../thin")
    for block in page.blocks:
        if block.file is not None and block.place in ("", name):
            (place.directory / block.file).write_text(block.text, encoding="utf-8")
    done = place.run(["bash", "-e", "-c", PREPARE.get((page.name, name), "")])
    if done.returncode:
        raise RuntimeError(f"{page.name}: its directory could not be prepared:\n{done.stderr}")


def _run_block(block: Block, place: _Place) -> Result:
    printed: list[tuple[str, ...]] = []
    failures: list[str] = []
    for command in block.commands:
        if is_never_run(block, command):
            printed.append(command.printed)
            continue
        start = ["bash", "-c"] if block.kind == "console" else ["python", "-c"]
        done = place.run([*start, command.typed])
        lines = tuple(done.stdout.splitlines())
        if not _has_answered(block, command, done):
            failures.append(f"{command.typed}\nexits with {done.returncode}:\n{done.stderr}")
            lines = command.printed  # what a command prints before it fails is no output to show
        elif command.prints and not is_same(command.printed, lines):
            failures.append(f"{command.typed}\nprints otherwise:\n{done.stdout}")
        printed.append(lines)
    return Result(block, tuple(printed), tuple(failures))


def _has_answered(block: Block, command: Command, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether it ended as it is to: a script with 0, a command with yes or no, or as it says."""
    if block.kind != "console":
        return done.returncode == 0
    if expected := _EXITS.search(command.typed):
        return done.returncode == int(expected[1])
    if command.prints or command.typed.startswith("ullage "):
        return done.returncode in _YES_OR_NO and "Traceback" not in done.stderr
    return done.returncode == 0

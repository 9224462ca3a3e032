"""The blocks of a page: what is typed, what is printed, and the marks before them.

for block in read_page(Path("README.md")).blocks:
    block.kind, block.line, [command.typed for command in block.commands]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"(?:<!-- (?:(?!-->).)* -->\s*)+\Z", re.DOTALL)
_MARK = re.compile(r"<!-- (place|file|nightly|not run): (.*?) -->", re.DOTALL)
_DATED = re.compile(r";\s\d{4}-\d\d-\d\d,\s\S.*$", re.DOTALL)
_WRITTEN = re.compile(r"<!-- ([\w.-]+): written by [^\n]* -->(.*?)<!-- end \1 -->", re.DOTALL)
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Command:
    """What is typed at one prompt, and the lines that stand below it."""

    typed: str
    printed: tuple[str, ...]

    @property
    def prints(self) -> bool:
        """Whether the page shows what it prints."""
        return any(line.strip() for line in self.printed)


@dataclass(frozen=True)
class Block:
    """A fenced block; `start` and `end` are where its text stands in the page."""

    page: str
    line: int
    kind: str
    text: str
    start: int
    end: int
    marks: dict[str, str]
    is_written: bool  # by a benchmark

    @property
    def name(self) -> str:
        """Such as README.md:9."""
        return f"{self.page}:{self.line}"

    @property
    def place(self) -> str:
        """The directory of the page in which it runs."""
        return self.marks.get("place", "")

    @property
    def file(self) -> str | None:
        """The file of that directory that the block is."""
        return self.marks.get("file")

    @property
    def is_run(self) -> bool:
        """Whether its commands are run, now or by night."""
        is_command = self.kind in ("console", "python") and self.file is None
        return is_command and not self.is_written and not self.why_not

    @property
    def is_nightly(self) -> bool:
        """Whether it takes too long for every change."""
        return "nightly" in self.marks

    @property
    def why_not(self) -> str | None:
        """The reason for which it is not run."""
        return self.marks.get("not run")

    @property
    def is_dated(self) -> bool:
        """Whether its mark has a date and the command that printed it."""
        return self.why_not is not None and _DATED.search(self.why_not) is not None

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """Of a console block, each command with what it prints; a script is one that shows nothing.

        Raises:
            ValueError: the block begins with something that nobody typed.
        """
        if self.kind != "console":
            return (Command(self.text, ()),)
        commands: list[Command] = []
        lines = iter(self.text.splitlines())
        for line in lines:
            if line.startswith(_PROMPT):
                typed = line.removeprefix(_PROMPT)
                while typed.endswith("\\"):
                    typed += "\n" + next(lines)
                commands.append(Command(typed, ()))
            elif commands:
                last = commands[-1]
                commands[-1] = Command(last.typed, (*last.printed, line))
            else:
                raise ValueError(f"{self.name}: {line!r} stands before the first `{_PROMPT}`")
        return tuple(commands)


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it stands in the repository."""

    path: Path
    text: str
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """Such as docs/guide/fit.md."""
        return self.path.relative_to(ROOT).as_posix()


def read_page(path: Path) -> Page:
    """A page and its blocks."""
    text = path.read_text(encoding="utf-8")
    return Page(path, text, parse_blocks(path.relative_to(ROOT).as_posix(), text))


def parse_blocks(page: str, text: str) -> tuple[Block, ...]:
    """The fenced blocks of a text."""
    spans = [match.span() for match in _WRITTEN.finditer(text)]
    blocks = []
    for match in _BLOCK.finditer(text):
        before = _MARKS.search(text, 0, match.start())
        marks = dict(_MARK.findall(before[0])) if before else {}
        is_written = any(begin < match.start() < end for begin, end in spans)
        line = text.count("\n", 0, match.start()) + 1
        span = match.span(2)
        blocks.append(Block(page, line, match[1], match[2], *span, marks, is_written))
    return tuple(blocks)


def all_pages() -> tuple[Page, ...]:
    """README.md, CONTRIBUTING.md, docs and the READMEs below."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    paths += [*ROOT.glob("examples/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    return tuple(read_page(path) for path in sorted(paths))

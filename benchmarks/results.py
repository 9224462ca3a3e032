"""How a benchmark publishes what it measured: all rows as CSV, the rest as a section of a page.

    publish("guard-sweep", report)

writes docs/results/guard-sweep.csv, and the part `guard-sweep` of the page in docs/results that has
the comments of this name. A report is Markdown: a title, the line of `made_by`, words and tables.
Of its tables the first stays in the section if it is short, and so do short lists. All tables and
long lists are rows of the CSV, whose column `table` says under which headings they stood, and so
are the words under a heading whose tables are there alone, but for a paragraph with something in
bold. So one page has room for all benchmarks that answer a question, and no row is lost.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.written_part import fill_part, read_part
from ullage.answers.block_kinds import LEFT, RIGHT, Table
from ullage.answers.ci import markdown

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
MOST_ROWS = 6  # of a table or list in a section: 16 pages have 120 lines and 5 tables at most
_WIDTH = 130
_BLOCK = re.compile(r"^```[\s\S]*?^```$|^#.*$|(?:^(?!```|#).+$\n?)+", re.MULTILINE)
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_ITEM = re.compile(r"^(?:-|\d\.) ", re.MULTILINE)
_MARKUP = re.compile(r"`|\*\*")

Row = dict[str, str]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of a report; the name of a column of numbers begins with ">"."""
    columns = [RIGHT if name.startswith(">") else LEFT for name in head]
    names = [name.removeprefix(">") for name in head]
    return markdown([Table(columns, [*rows], names)]).rstrip("\n")


def publish(name: str, report: str) -> None:
    """Writes the section and the rows of a report.

    Raises:
        ValueError: no page has a part of this name.
    """
    page = page_of(name)
    section, rows = divide(name, report)
    page.write_text(fill_part(page.read_text(encoding="utf-8"), name, section), encoding="utf-8")
    if rows:
        _table_of(name).write_text(rows, encoding="utf-8")
    print(f"Wrote {name} of {page}")


def published(name: str) -> tuple[str, str]:
    """The section and the rows that are there, as `divide` gives them."""
    rows = _table_of(name).read_text(encoding="utf-8") if _table_of(name).exists() else ""
    return read_part(page_of(name).read_text(encoding="utf-8"), name), rows


def read_rows(name: str) -> list[Row]:
    """The rows beside the pages that a benchmark wrote."""
    with _table_of(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _table_of(name: str) -> Path:
    return RESULTS / f"{name}.csv"


def page_of(name: str) -> Path:
    """The page that has a part of this name.

    Raises:
        ValueError: none has.
    """
    begin = f"<!-- {name}: written by "
    for page in sorted(RESULTS.glob("*.md")):
        if begin in page.read_text(encoding="utf-8"):
            return page
    raise ValueError(f"no page of {RESULTS} has {begin}... --> and <!-- end {name} -->")


def divide(name: str, report: str) -> tuple[str, str]:
    """The section of a report, and its rows as CSV ("" where it has none)."""
    section = _Section()
    blocks = [match[0].rstrip("\n") for match in _BLOCK.finditer(report)]
    starts = [number for number, block in enumerate(blocks) if block.startswith("#")]
    for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True):
        section.add_part(blocks[start], blocks[start + 1 : end])
    if section.rows:
        link = f"Rows: [{name}.csv]({name}.csv) ({len(section.rows):,})."
        section.texts = [
            f"{text} {link}" if text.startswith("Made by ") else text for text in section.texts
        ]
    return "\n\n".join(section.texts), _as_csv(section.rows)


@dataclass(slots=True)
class _Section:
    """What of a report stays on the page, and its rows."""

    texts: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Headings under which nothing stands yet; they go if nothing comes."""
    has_table: bool = False

    def add_part(self, heading: str, blocks: Sequence[str]) -> None:
        """A heading and what is under it, up to the next."""
        level = heading.index(" ")
        self.headings = [*self.headings[: level - 1], heading[level + 1 :]]
        self.waiting = [one for one in self.waiting if one.index(" ") <= level]
        self.waiting.append(f"#{heading}")
        shown: list[str] = []
        lead, num_rows = "", len(self.rows)
        for number, block in enumerate(blocks):
            following = blocks[number + 1] if number + 1 < len(blocks) else ""
            if block.endswith(":") and not _is_rows(block) and _is_rows(following):
                lead = block  # goes where the table or list goes
                continue
            if not _is_rows(block) or not self._take(block, lead):
                shown += [_wrap(one) for one in (lead, block) if one]
            lead = ""
        is_of_rows = level > 1 and len(self.rows) > num_rows
        if is_of_rows and not any(block.startswith("|") for block in shown):
            # What is said of rows alone goes with them; what is in bold is the result.
            notes = [{"note": _plain(block)} for block in shown if "**" not in block]
            self.rows += self._labelled("", notes)
            shown = [block for block in shown if "**" in block]
        if shown:
            self.texts += [*self.waiting, *shown]
            self.waiting.clear()

    def _take(self, block: str, lead: str) -> bool:
        """Adds the rows of a table or long list; whether it stands in the CSV alone."""
        if not block.startswith("|"):
            items = [_plain(item) for item in _ITEM.split(block) if item]
            if len(items) > MOST_ROWS:
                self.rows += self._labelled(lead, [{"note": item} for item in items])
            return len(items) > MOST_ROWS
        first, _, *lines = block.splitlines()
        names = _names(_cells(first))
        rows = [dict(zip(names, _cells(line), strict=False)) for line in lines]
        self.rows += self._labelled(lead, rows)
        if self.has_table or len(rows) > MOST_ROWS:
            return True
        self.has_table = True
        return False

    def _labelled(self, lead: str, rows: Sequence[Row]) -> list[Row]:
        label = ": ".join(filter(None, (", ".join(self.headings[1:]), _plain(lead).rstrip(":"))))
        return [{"table": label, **row} for row in rows]


def _is_rows(block: str) -> bool:
    """Whether it is a table or a list."""
    return block.startswith("|") or bool(_ITEM.match(block))


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub("", text).split())


def _cells(line: str) -> list[str]:
    cells = _BETWEEN_CELLS.split(line.strip())[1:-1]
    return [_plain(cell).replace("\\|", "|") for cell in cells]


def _names(cells: Sequence[str]) -> list[str]:
    """The columns, of which those that repeat a name say after which they stand."""
    names: list[str] = []
    for number, cell in enumerate(cells):
        name = cell or ("remark" if number else "name")
        if name in names:
            name = f"{cells[number - 1]}: {name}"
        names.append(f"{name}, column {number + 1}" if name in names else name)
    return names


def _wrap(block: str) -> str:
    """The paragraph or list in lines of one width; code, comments and provenance as they are."""
    if block.startswith(("```", "|", "<", "Made by ")):
        return " ".join(block.splitlines()) if block.startswith("Made by ") else block
    lines: list[str] = []
    for item in re.split(r"\n(?=(?:-|\d\.) )", block):
        indent = "" if not (mark := _ITEM.match(item)) else " " * len(mark[0])
        lines += textwrap.wrap(
            " ".join(item.split()), _WIDTH, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def _as_csv(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not any(row["table"] for row in rows):
        columns = columns[1:]
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
    if rows:
        writer.writeheader()
        writer.writerows(rows)
    return file.getvalue()

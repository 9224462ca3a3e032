"""The blocks of a view. A verb says which blocks there are; renderers decide how they look.

[Headline((Word("fits", Tone.GOOD), Word(" on t4"))), Note("train.py", Tone.FAINT, indent=2)]
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias


class Tone(enum.Enum):
    """The meaning of a text beside its words; a page has a class of that name."""

    PLAIN = ""
    STRONG = "strong"
    FAINT = "faint"
    GOOD = "good"
    DOUBTFUL = "doubtful"
    BAD = "bad"
    WARNING = "warning"
    LESS = "less"
    MORE = "more"


class Overflow(enum.Enum):
    """The treatment of a text that is longer than its place."""

    WRAP = "wrapped at words"
    FOLD = "wrapped anywhere"
    CUT = "cut"
    KEEP = "longer than its place"


class Word(NamedTuple):
    """A part of a text, with a tone."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer in a line: the first line of a report, and the heading of a page."""

    words: tuple[Word, ...]

    @classmethod
    def of(cls, text: str, tone: Tone, more: str = "") -> Headline:
        """A headline of one tone, and more words of none."""
        return cls((Word(text, tone), Word(more)) if more else (Word(text, tone),))

    @property
    def plain(self) -> str:
        """The words without their tones."""
        return "".join(word.text for word in self.words)


@dataclass(frozen=True, slots=True)
class Title:
    """The title of a section."""

    text: str
    tone: Tone = Tone.STRONG


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence.

    Attributes:
        indent: blanks before its first line.
        hang: blanks before its other lines; None: as many as before the first.
        margin: columns at the right that stay empty, where it has a hang.
        lead: what stands before it, such as the code of a finding.
        is_apart: whether a blank line comes before it.
        max_lines: how many lines it may take; None: any number.
    """

    text: str
    tone: Tone = Tone.PLAIN
    overflow: Overflow = Overflow.WRAP
    indent: int = 0
    hang: int | None = None
    margin: int = 0
    lead: Word | None = None
    is_apart: bool = False
    max_lines: int | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of fixed columns, such as a picture of characters; they are not wrapped."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of an answer: in text as many as one line has room for."""

    items: tuple[str, ...]


SPACE: Final = Note("")
"""A blank line."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a cell.

    Attributes:
        scale: the size of the longest bar.
        color: "#rrggbb".
        width: of the longest bar, in characters; None: what the line has left, in the last column
            of a table, which is left out where that is too little.
    """

    size: float
    scale: float
    color: str
    width: int | None = 32


Cell: TypeAlias = "str | Word | Bar | tuple[Word, ...]"
"""A tuple of words is a text of several tones; "\\n" begins a line in a word alone."""


class Row(NamedTuple):
    """A row of a table, with a tone."""

    cells: Sequence[Cell]
    tone: Tone = Tone.PLAIN


Rows: TypeAlias = "list[Row | Sequence[Cell]]"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        is_right: whether its cells are aligned to the right.
        is_rest: whether it takes the rest of the line.
        most: its width at most, in characters.
        hang: in the last column, blanks before the other lines of a text that is wrapped.
    """

    is_right: bool = False
    overflow: Overflow = Overflow.WRAP
    is_rest: bool = False
    most: int | None = None
    hang: int = 0


LEFT: Final = Column()
RIGHT: Final = Column(is_right=True)
REST: Final = Column(overflow=Overflow.CUT, is_rest=True)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in columns.

    Attributes:
        rows: a tuple of cells, or a Row; a short one ends with empty cells.
        head: the names of the columns; empty: there are none.
        indent: blanks before the first column; where it is `is_set_in`, before all its lines.
    """

    columns: Sequence[Column]
    rows: Sequence[Row | Sequence[Cell]]
    head: Sequence[str] = ()
    indent: int = 2
    is_set_in: bool = False


class Drawn(enum.Enum):
    """The lines or points of a plot."""

    LINE = "line"
    DASHES = "dashes"
    DOTS = "dots"
    SQUARES = "squares"
    LARGE = "large"
    CROSSES = "crosses"
    BARS = "bars"


Point: TypeAlias = "tuple[float, float] | tuple[float, float, str]"
"""Where a point is across and up, and what it is called."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a plot.

    Attributes:
        name: in the legend; "": it is not there.
        color: the number of its colour; None: that of its place among the curves.
        width: of bars, across.
    """

    name: str
    points: Sequence[Point]
    drawn: Drawn = Drawn.LINE
    color: int | None = None
    width: float | Sequence[float] = 0.8


class PlotMark(NamedTuple):
    """A value of an axis, and what it is called."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """A direction of a plot.

    Attributes:
        label: what is drawn, with its unit if `tick` does not say it.
        tick: the text of a value.
        is_log: whether equal steps are equal factors; all values are above 0 then.
        ticks: the values that are written; empty: round ones.
        low, high: the ends; None: those of the values, and 0 where it is not logarithmic.
        marks: lines across the plot.
    """

    label: str
    tick: Callable[[float], str] = "{:g}".format
    is_log: bool = False
    ticks: Sequence[float] = ()
    low: float | None = None
    high: float | None = None
    marks: Sequence[PlotMark] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over an axis; empty in text."""

    curves: Sequence[Series]
    across: PlotAxis
    up: PlotAxis


@dataclass(frozen=True, slots=True)
class Map:
    """The memory of devices, block by block over time, with its timelines; empty in text.

    Attributes:
        devices: the packed columns of each (see `report.page.payload`).
        is_comparison: whether two are shown one above the other.
    """

    devices: tuple[str, ...]
    is_comparison: bool = False


@dataclass(frozen=True, slots=True)
class Detail:
    """Blocks that only --full and pages show; a short text has `brief` in their place."""

    blocks: Blocks  # a generator is run where its blocks are shown, and only there
    brief: Blocks = ()


Shown: TypeAlias = Headline | Title | Note | Lines | Assumptions | Table | Plot | Map
Block: TypeAlias = Shown | Detail
Blocks: TypeAlias = Iterable[Block]


def shown_blocks(blocks: Blocks, *, full: bool) -> Iterator[Shown]:
    """The blocks with their details, or with what a short text has in the place of these."""
    for block in blocks:
        if isinstance(block, Detail):
            yield from shown_blocks(block.blocks if full else block.brief, full=full)
        else:
            yield block


def headlines(blocks: Blocks) -> list[str]:
    """The texts of the headlines, which come first: what --quiet prints."""
    return [
        block.plain
        for block in itertools.takewhile(lambda block: isinstance(block, Headline), blocks)
        if isinstance(block, Headline)
    ]

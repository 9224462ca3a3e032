"""What a page prints against what a command printed.

    is_same(printed_in_page, printed_now)         # but for what differs from run to run
    refresh(printed_in_page, printed_now)         # the same excerpt of what is printed now

What differs from run to run is in VARYING, and nothing else is let pass. A line `...` in a page
stands for any number of lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

ELISION = "..."
TIMES = (
    # seconds of the clock on the wall
    (re.compile(r"\d[\d,]*(\.\d+)? s\b"), "N s"),
    # milliseconds that an example measures of its steps
    (re.compile(r"^(step \d+ .*?)[\d,.]+ ms$", re.MULTILINE), r"\1N ms"),
)
VARYING = (
    *TIMES,
    # names of snapshots that nobody named, and of temporary directories
    (re.compile(r"(ullage-[\w-]+?)-\d{8}-\d{6}(-\d+)?\."), r"\1-TIME."),
    (re.compile(r"/tmp/[\w./-]+"), "/tmp/NAME"),
    # versions
    (re.compile(r"\b(torch|ullage|Python|PyTorch) \d+(\.\d+)+(\+\w+)?"), r"\1 VERSION"),
    # the memory of processes of this machine
    (re.compile(r"(^ *peak here  with a GPU at least .*\n).*$", re.MULTILINE), r"\1ROW"),
)


def normalise(lines: Sequence[str]) -> list[str]:
    """The lines, without what differs from run to run and without spaces at their ends."""
    text = "\n".join(line.rstrip() for line in lines).strip("\n")
    for pattern, instead in VARYING:
        text = pattern.sub(instead, text)
    return text.splitlines()


def is_same(page: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a page prints what a command printed."""
    parts = _split(normalise(page))
    pattern = r"(?:.*\n)*?".join(re.escape(_join(part)) for part in parts)
    return re.fullmatch(pattern, _join(normalise(now))) is not None


def refresh(page: Sequence[str], now: Sequence[str]) -> list[str] | None:
    """What the page is to print: all of it, or from the first to the last line of each excerpt.

    Lines of an excerpt are known again by their words, as figures change. A line that differs by
    times alone stays. None where the beginning or the end of an excerpt is not there any more; then
    a person has to choose.
    """
    if is_same(page, now):
        return list(page)
    same_but_times = {_without_times(line): line for line in page}
    lines = [same_but_times.get(_without_times(line), line) for line in map(str.rstrip, now)]
    while lines and not lines[-1]:
        lines.pop()
    parts = _split(page)
    pairs = _align(page, lines)
    excerpts: list[list[str]] = []
    first = 0
    for number, part in enumerate(parts):
        last = first + len(part)
        excerpts.append([])
        if part:
            begin = 0 if number == 0 else pairs.get(first)
            end = len(lines) - 1 if number == len(parts) - 1 else pairs.get(last - 1)
            if begin is None or end is None or begin > end:
                return None
            excerpts[-1] = lines[begin : end + 1]
        first = last + 1  # the elision
    return [line for excerpt in excerpts for line in (ELISION, *excerpt)][1:]


def _without_times(line: str) -> str:
    for pattern, instead in TIMES:
        line = pattern.sub(instead, line)
    return line


def _split(lines: Sequence[str]) -> list[list[str]]:
    """The lines between elisions."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == ELISION:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _join(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _align(page: Sequence[str], now: Sequence[str]) -> dict[int, int]:
    """Lines of the page -> lines that have the same words now."""
    shapes = [[_shape(line) for line in lines] for lines in (page, now)]
    matcher = SequenceMatcher(None, *shapes, autojunk=False)
    return {
        match.a + offset: match.b + offset
        for match in matcher.get_matching_blocks()
        for offset in range(match.size)
    }


def _shape(line: str) -> str:
    return " ".join(re.findall(r"[^\W\d_]{2,}", line)) or line.strip()

"""Run every program of benchmarks/folklore, and rewrite the figures of docs/results/folklore.md.

    python -m benchmarks.folklore --python env/bin/python [--only resnet50 ...]

The environment needs what benchmarks/stacks.txt lists: timm, bitsandbytes. The prose of the page is
written by hand; what stands between two marks is replaced.
"""

import argparse
import re
import sys
from pathlib import Path

from benchmarks.folklore.claims import SECTIONS
from benchmarks.folklore.measure import run
from benchmarks.folklore.section import Play, Played, Section
from benchmarks.provenance import made_by

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "folklore.md"


def render(section: Section, runs: dict[str, Played]) -> str:
    """The commands and what they show."""
    if not section.rows:
        shown = (f"$ {section.plays[name].command}\n{runs[name].text.strip()}" for name in runs)
        return "```console\n" + "\n".join(shown) + "\n```"
    figures = section.figures(runs)
    rows = [
        f"| {row.what} | {row.said or '-'} | {row.show(figures[row.name])} |"
        for row in section.rows
    ]
    commands = "\n".join(f"$ {play.command}" for play in section.plays.values())
    table = "\n".join(("| | said | the phantom |", "|---|--:|--:|", *rows))
    return f"```console\n{commands}\n```\n\n{table}"


def mark(name: str) -> tuple[str, str]:
    """What begins and ends the figures of a section."""
    return f"<!-- {name}: written by python -m benchmarks.folklore -->", f"<!-- end {name} -->"


def replace(page: str, name: str, text: str) -> str:
    """The page with other text between the marks of a section.

    Raises:
        SystemExit: the page has no such marks.
    """
    begin, end = mark(name)
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    changed, count = pattern.subn(lambda _: f"{begin}\n\n{text}\n\n{end}", page)
    if count != 1:
        raise SystemExit(f"{PAGE} has {count} places for {name!r}; write {begin} and {end} once")
    return changed


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with torch")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    args = parser.parse_args()
    played: dict[Play, Played] = {}
    for name in args.only:
        section = SECTIONS[name]
        for play in section.plays.values():
            if play not in played:
                print(play.command, file=sys.stderr, flush=True)
                # Not resolved: a virtual environment's python is a link to what it was made with.
                played[play] = run(play, args.python.absolute())
        runs = {key: played[play] for key, play in section.plays.items()}
        page = PAGE.read_text(encoding="utf-8")  # each time: the prose may be edited meanwhile
        PAGE.write_text(replace(page, name, render(section, runs)), encoding="utf-8")
    if args.only == list(SECTIONS):
        torch = next(iter(played.values())).document["torch"]
        basis = made_by("benchmarks.folklore", torch=torch)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(replace(page, "machine", basis), encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()

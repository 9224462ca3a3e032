"""Run every program of benchmarks/folklore, and publish the figures (docs/results/explain.md).

    python -m benchmarks.folklore --python env/bin/python [--only resnet50 ...]

The environment needs what benchmarks/stacks.txt lists: timm, bitsandbytes. What is said of the
figures is written by hand.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.folklore.claims import SECTIONS
from benchmarks.folklore.measure import run
from benchmarks.folklore.section import Play, Played
from benchmarks.provenance import made_by
from benchmarks.results import publish

COLUMNS = ("claim", "command", "printed", "what", "said", "the phantom")


def rows_of(name: str, runs: dict[str, Played]) -> list[str]:
    """The commands of a claim, and what they show: figures, or what the programs print."""
    section = SECTIONS[name]
    if not section.rows:
        return [
            f"| {name} | `{section.plays[key].command}` | {line} | | | |"
            for key, played in runs.items()
            for line in played.text.strip().splitlines()
        ]
    figures = section.figures(runs)
    return [
        *(f"| {name} | `{play.command}` | | | | |" for play in section.plays.values()),
        *(
            f"| {name} | | | {row.what} | {row.said or '-'} | {row.show(figures[row.name])} |"
            for row in section.rows
        ),
    ]


def main() -> None:
    """Run everything and write the page; with --only, print some rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with torch")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="prints these claims alone")
    args = parser.parse_args()
    played: dict[Play, Played] = {}
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for name in args.only or SECTIONS:
        plays = SECTIONS[name].plays
        for play in plays.values():
            if play not in played:
                print(play.command, file=sys.stderr, flush=True)
                # Not resolved: a virtual environment's python is a link to what it was made with.
                played[play] = run(play, args.python.absolute())
        rows += rows_of(name, {key: played[play] for key, play in plays.items()})
    torch = next(iter(played.values())).document["torch"]
    basis = made_by("benchmarks.folklore", torch=torch)
    if args.only:
        print("\n".join(rows))
    else:
        head = f"# The runs behind these answers\n\n{basis}\n\n"
        publish("folklore", head + "\n".join(rows))


if __name__ == "__main__":
    main()

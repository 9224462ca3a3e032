"""Run tests/programs/distributed/jobs.toml, and write docs/results/programs.md.

    python -m benchmarks.distributed --python env/bin/python

Each is a program in the manner of one of PyTorch's tutorials, for 2, 8 and 64 ranks, of which some
are played. Ends with exit code 1 where ranks that are symmetric have unequal numbers, or others
equal ones. Their tests are tests/phantom/test_distributed_jobs.py.
"""

import argparse
import shlex
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ullage
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "programs" / "distributed"
FIGURES = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "num_allocs")


@dataclass(frozen=True, slots=True)
class Result:
    """A job of so many ranks: those of them that are alike, all that were played, what was found,
    the seconds.
    """

    run: str
    world_size: int
    alike: list[list[int]]
    ranks: list[int]
    document: dict[str, Any]
    wall_s: float

    @property
    def is_as_expected(self) -> bool:
        """Whether every rank ran, and those are alike that are to be, and no others."""
        figures = {
            device["rank"]: [device[name] for name in FIGURES]
            for device in self.document["devices"]
        }
        if self.document["verdict"] != "fits" or sorted(figures) != self.ranks:
            return False
        kinds = [{tuple(figures[rank]) for rank in ranks} for ranks in self.alike]
        return all(len(kind) == 1 for kind in kinds) and len(set.union(*kinds)) == len(kinds)

    def row(self) -> str:
        """A line of the table."""
        devices = {device["rank"]: device for device in self.document["devices"]}
        parts = []
        for ranks in self.alike:
            device = devices.get(ranks[0])
            if device is not None:
                peak = format_bytes(device["peak_allocated_bytes"], 2)
                parts.append(f"{', '.join(map(str, ranks))}: {peak}")
        judged = "as expected" if self.is_as_expected else "**not as expected**"
        cells = (self.run, str(self.world_size), "; ".join(parts), f"{self.wall_s:.0f}", judged)
        return f"| {' | '.join(cells)} |"


def play(job: dict[str, Any], size: str, python: Path) -> Result:
    """One job of one size."""
    name, *words = shlex.split(job["run"])
    alike = job["ranks"][size]
    ranks = sorted(rank for some in alike for rank in some)
    started_s = time.monotonic()
    run = ullage.run_ranks(
        [str(PROGRAMS / name), *words], ranks=ranks, world_size=int(size), python=python
    )
    return Result(job["run"], int(size), alike, ranks, run.document, time.monotonic() - started_s)


def render(results: list[Result]) -> str:
    """The page."""
    rows = "\n".join(result.row() for result in results)
    torch = results[0].document["torch"].partition("+")[0]
    return f"""# Ranks of distributed jobs

{made_by("benchmarks.distributed", torch=torch)}

Each program of `tests/programs/distributed` follows
one of PyTorch's tutorials and takes three steps; each rank is run alone. *peak* is the peak of
allocated memory. Ranks in the same group have the same four figures (requested, allocated,
reserved, number of allocations), and ranks in different groups have different figures.
*seconds* is the time of all these ranks, and of the ranks that had to run beside them.

| program | ranks | peak of rank | seconds | |
|---|--:|---|--:|---|
{rows}
"""


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with torch")
    parser.add_argument("--only", default="", help="jobs whose line holds this")
    args = parser.parse_args()
    jobs = tomllib.loads((PROGRAMS / "jobs.toml").read_text(encoding="utf-8"))["job"]
    results: list[Result] = []
    for job in jobs:
        if args.only not in job["run"]:
            continue
        for size in job["ranks"]:
            # Not resolved: a virtual environment's python is a link to what it was made with.
            results.append(play(job, size, args.python.absolute()))
            print(results[-1].row(), file=sys.stderr, flush=True)
            publish("distributed-ranks", render(results))
    failed = [f"{one.run}, {one.world_size}" for one in results if not one.is_as_expected]
    if failed:
        raise SystemExit("not as expected:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()

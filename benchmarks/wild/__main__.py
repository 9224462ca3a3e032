"""Runs the 45 programs of the wild, whole and with --steps, and writes docs/results/programs.md.

    python -m benchmarks.wild                                    # environments in .envs/, all
    python -m benchmarks.wild --python a/bin/python --python b/bin/python
    python -m benchmarks.wild --rows rows.json                   # goes on where it was stopped
    python -m benchmarks.wild --only GPT --python a/bin/python   # without writing the page

Each runs in the first environment that has its packages. Ends with exit code 1 where fewer run to
their end than docs/results/programs.md asks for, or where a "fits" is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.results import publish
from benchmarks.stacks import versions
from benchmarks.wild.measure import Outcome, Result, try_program
from benchmarks.wild.page import render
from benchmarks.wild.program import HERE, WildProgram, read_programs
from ullage.players.phantom.environment import make_environment
from ullage.verbs.env.options import EnvironmentSpec

ROOT = HERE.parent.parent
AT_LEAST = 42
ENVIRONMENTS = {
    "wild": EnvironmentSpec(requirements=(HERE / "requirements.txt",), with_triton=True),
    "wild-litgpt": EnvironmentSpec(requirements=(HERE / "requirements-litgpt.txt",)),
}


def environments() -> list[Path]:
    """The interpreters of the environments, made where they are not there."""
    pythons = []
    for name, spec in ENVIRONMENTS.items():
        environment = make_environment(
            ROOT / ".envs" / name, spec, force=True, progress=lambda line: print(line, flush=True)
        )
        pythons.append(environment.python)
    return pythons


def read_rows(path: Path | None) -> dict[str, Result]:
    """The results that an earlier call has kept, by name."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    results = (
        Result(**row | {"whole": Outcome(**row["whole"]), "stopped": Outcome(**row["stopped"])})
        for row in rows
    )
    return {result.name: result for result in results}


def write_rows(path: Path | None, results: dict[str, Result]) -> None:
    """Keeps the results for a later call."""
    if path is not None:
        rows = [asdict(result) for result in results.values()]
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def run_one(packages: dict[Path, dict[str, str]], program: WildProgram) -> Result:
    """Runs a program in the first environment that has its packages."""
    needed = set(program.packages)
    python = next((path for path, has in packages.items() if needed <= has.keys()), None)
    if python is None:
        outcome = Outcome("failed", "not installed", None, 0, "its packages are not installed")
        return Result(program.name, "-", "-", outcome, outcome)
    return try_program(python, program, packages[python][program.packages[0]])


def main() -> None:
    """Runs what is asked for, and writes the page when all was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, action="append", help="an environment's interpreter")
    parser.add_argument("--only", help="programs whose name holds this; no page is written")
    parser.add_argument("--rows", type=Path, help="where results are kept; what is fine stays")
    args = parser.parse_args()
    # Not resolved: a virtual environment's python is a link to the one that it was made with.
    pythons = [path.absolute() for path in args.python or ()] or environments()
    packages = {python: versions(python) for python in pythons}
    programs = [one for one in read_programs() if (args.only or "") in one.name]
    results = read_rows(args.rows)
    for program in programs:
        if program.name not in results or not results[program.name].is_as_expected:
            result = results[program.name] = run_one(packages, program)
            print(
                f"{result.name}: {result.whole.verdict}, with --steps {result.stopped.verdict}",
                result.whole.cause or "", file=sys.stderr, flush=True,
            )  # fmt: skip
            write_rows(args.rows, results)
    pairs = [(program, results[program.name]) for program in programs]
    if not args.only:
        publish("wild", render(pairs))
    num_whole = sum(result.has_run_to_its_end for _, result in pairs)
    wrong = [result.name for _, result in pairs if result.is_wrong_fit]
    if wrong or num_whole < min(AT_LEAST, len(pairs)):
        raise SystemExit(f"{num_whole} of {len(pairs)} ran to their end; wrong fits: {wrong}")


if __name__ == "__main__":
    main()

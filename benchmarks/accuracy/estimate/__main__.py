"""Compares `ullage estimate` with the phantom, and writes docs/results/estimates.md.

    python -m benchmarks.accuracy.estimate --python ENV/bin/python [--only WORD] [--family decoders]

Each case runs on the phantom, which plays the real PyTorch and transformers; what it found is kept
in tests/unit/estimate/phantom_vectors.json, so that the tests hold the estimate to it without
them. --page writes the page anew from what is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.accuracy.estimate.case import FOLDER, Case, changes
from benchmarks.accuracy.estimate.page import write_page
from benchmarks.results import publish

ROOT = FOLDER.parents[2]
VECTORS = ROOT / "tests/unit/estimate/phantom_vectors.json"
TIMEOUT_S = 900


def find_cases(family: str | None) -> dict[str, list[Case]]:
    """The cases of each cases_*.py."""
    found = {}
    for file in sorted(FOLDER.glob("cases_*.py")):
        name = file.stem.removeprefix("cases_")
        if family in (None, name):
            found[name] = list(import_module(f"benchmarks.accuracy.estimate.{file.stem}").CASES)
    return found


def run_case(case: Case, python: str) -> dict[str, Any]:
    """What the phantom found: the figures of its first device, and what the program counted."""
    with tempfile.TemporaryDirectory() as folder:
        config, document = Path(folder) / "config.json", Path(folder) / "run.json"
        config.write_text(json.dumps(dict(case.config)))
        command = [
            *(str(Path(sys.executable).with_name("ullage")), "run"),
            *("--gpu", case.gpu, "--python", python),
            *case.options,
            *("--assume", "experts=balanced"),
            *("--snapshot", f"{folder}/run.pickle", "-o", str(document)),
            *("--", str(FOLDER / case.program), *case.arguments(config)),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            raise SystemExit(
                f"{case.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        run = json.loads(document.read_text())
    device = run["devices"][0]
    counted = [line for line in done.stdout.splitlines() if line.startswith('{"parameters"')]
    names = ("requested", "allocated", "reserved")
    return {
        "torch": run["torch"],
        "counted": json.loads(counted[-1]) if counted else None,
        "at_peak": {name: size for name, size in device["at_peak"].items() if size},
        **{f"peak_{name}_bytes": device[f"peak_{name}_bytes"] for name in names},
    }


def read_vectors() -> dict[str, Any]:
    """What has been found, by the name of the case."""
    vectors: dict[str, Any] = json.loads(VECTORS.read_text()) if VECTORS.exists() else {}
    return vectors


def keep(family: str, case: Case, found: dict[str, Any]) -> None:
    """Adds what was found of a case to what others may have found meanwhile."""
    row = {
        "family": family,
        "gpu": case.gpu,
        "config": dict(case.config),
        "recipe": changes(case.recipe),
        "phantom": found,
    }
    VECTORS.write_text(json.dumps(read_vectors() | {case.name: row}, indent=1) + "\n")


def main() -> None:
    """Runs what is asked for, keeps it, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", help="of the environment with torch and transformers")
    parser.add_argument("--family", help="one cases_*.py, such as decoders")
    parser.add_argument("--only", default="", help="cases whose names hold this word")
    parser.add_argument("--missing", action="store_true", help="cases that are not kept yet")
    parser.add_argument("--page", action="store_true", help="write the page, run nothing")
    options = parser.parse_args()
    if not options.page and not options.python:
        parser.error("--python: needed to run anything")
    cases = {} if options.page else find_cases(options.family)
    for family, case in ((family, case) for family, rows in cases.items() for case in rows):
        is_wanted = options.only in case.name
        if is_wanted and not (options.missing and case.name in read_vectors()):
            print(f"{family}: {case.name}", flush=True)
            keep(family, case, run_case(case, options.python))
    publish("estimate-accuracy", write_page(read_vectors()))


if __name__ == "__main__":
    main()

"""All that is tested by day, and the line that says so: `make test-all`.

    python -m tests.whole --python .envs/torch-newest/bin/python --python .envs/stacks/bin/python
    python -m tests.whole --is-current      # whether the line is of this tree

The cases run under the first interpreter. What is skipped there runs under the next ones: with
Triton and the popular libraries, then with the versions of torch that real GPUs were recorded with.
What nothing has run is in tests/skipped.toml, each with the reason why this machine cannot.
tests/whole.json has the digest of src and tests, counts and seconds of the last whole run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINE = ROOT / "tests" / "whole.json"
SKIPPED = ROOT / "tests" / "skipped.toml"
# Made by a build, or by the run itself.
LEFT_OUT = ("__pycache__", "ground/native/lib", "tests/whole.json", "tests/seconds.csv")


def digest() -> str:
    """Of every file of src and tests, its name and its contents."""
    total = hashlib.sha256()
    for path in sorted(path for tree in ("src", "tests") for path in (ROOT / tree).rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and not any(part in name for part in LEFT_OUT):
            total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def run_cases(
    python: Path, scratch: Path, cases: list[str] | None, more: list[str]
) -> dict[str, str]:
    """The outcome of each case of a call of pytest: passed, failed or skipped."""
    outcomes, only = scratch / "outcomes.csv", scratch / "only.txt"
    outcomes.unlink(missing_ok=True)
    options = ["--tier", "all", "--outcomes", str(outcomes), *more]
    if cases is not None:
        only.write_text("\n".join(cases) + "\n", encoding="utf-8")
        options += ["--only", str(only), *sorted({case.partition("::")[0] for case in cases})]
    subprocess.run(
        [
            sys.executable, "-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile",
            "--no-loadscope-reorder", *options,
        ],
        cwd=ROOT, env={**os.environ, "ULLAGE_TEST_PYTHON": str(python)}, check=False,
    )  # fmt: skip
    lines = outcomes.read_text(encoding="utf-8").splitlines() if outcomes.exists() else []
    return {case: outcome for outcome, _, case in (line.partition(",") for line in lines)}


def run_everywhere(pythons: list[Path], more: list[str]) -> dict[str, str]:
    """The outcome of each case under the first interpreter under which it is not skipped."""
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for python in pythons:
            waiting = [case for case, outcome in outcomes.items() if outcome == "skipped"]
            if outcomes and not waiting:
                break
            print(f"\n{len(waiting) or 'all'} cases under {python}", flush=True)
            found = run_cases(python, Path(scratch), waiting if outcomes else None, more)
            outcomes |= {case: found.get(case, "failed") for case in waiting} if waiting else found
    return outcomes


def unexplained(skipped: list[str]) -> list[str]:
    """Cases that no interpreter has run, and that tests/skipped.toml does not name."""
    rows = tomllib.loads(SKIPPED.read_text(encoding="utf-8"))["skipped"]
    known = tuple(row["case"] for row in rows)
    return [case for case in skipped if not case.startswith(known)]


def main() -> int:
    """Runs all, or says whether the line is of this tree; 1: a case failed, or was left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, action="append", default=[])
    parser.add_argument("--is-current", action="store_true")
    parser.add_argument("--seconds", choices=("write",), help="as pytest's, see tests/tiers.py")
    options, more = parser.parse_known_args()
    if options.is_current:
        last = json.loads(LINE.read_text(encoding="utf-8")) if LINE.exists() else {"digest": None}
        if last["digest"] != digest():
            print(f"make test-all has not passed on this tree; the last: {json.dumps(last)}")
        return 0
    before, begun = digest(), time.monotonic()
    seconds = [] if options.seconds is None else ["--seconds", options.seconds]
    outcomes = run_everywhere([path.absolute() for path in options.python], more + seconds)
    counts = Counter(outcomes.values())
    skipped = sorted(case for case, outcome in outcomes.items() if outcome == "skipped")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = {
        "digest": before, "date": f"{date.today()}", "passed": counts["passed"],
        "failed": counts["failed"], "skipped": counts["skipped"],
        "wall_s": round(time.monotonic() - begun),
        "processor_s": round(usage.ru_utime + usage.ru_stime),
    }  # fmt: skip
    print(json.dumps(line))
    for case in unexplained(skipped):
        print(f"skipped under every interpreter, and not in tests/skipped.toml: {case}")
    is_fine = bool(counts["passed"]) and not counts["failed"] and not unexplained(skipped)
    if is_fine and not more:
        LINE.write_text(json.dumps(line) + "\n", encoding="utf-8")
    return int(not is_fine)


if __name__ == "__main__":
    sys.exit(main())

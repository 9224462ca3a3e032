"""Run the programs of public training logs, and write docs/results/accuracy.md.

    git clone https://github.com/openai/parameter-golf DIR        # at the commit of the page
    python -m benchmarks.accuracy.logs --checkout DIR             # minutes a program
    python -m benchmarks.accuracy.logs --checkout DIR --only XSA  # some, without writing the page
    python -m benchmarks.accuracy.logs --checkout DIR --page      # of what was run before

The environments are made in .envs/, and removed with --one-environment, as each has 2.6 GB. What a
run gave is kept in build/accuracy-logs/, so that a benchmark that was stopped goes on; --again runs
everything once more. The last result of each program is in results.json, beside this file. Ends
with exit code 1 where a program did not reach its peak.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.accuracy.logs.page import origin_of, render
from benchmarks.accuracy.logs.row import (
    HERE,
    MIB,
    RESULTS,
    Result,
    Row,
    read_results,
    read_rows,
    read_stored,
)
from benchmarks.accuracy.logs.until_peak import PEAK
from benchmarks.results import publish
from ullage.players.phantom.environment import make_environment
from ullage.verbs.env.options import EnvironmentSpec

ROOT = HERE.parents[2]
WORK = ROOT / "build" / "accuracy-logs"
RANKS = 8
# Enough to reach the peak: the first steps compile, and DDP rearranges its buckets after one. As in
# the logs, a validation comes before the first step and after the last.
STEPS = {"WARMUP_STEPS": "2", "ITERATIONS": "3"}
_PEAK = re.compile(rf"{PEAK} (\d+) MiB reserved: (\d+) MiB")


def run_row(row: Row, python: Path, checkout: Path, work: Path) -> Result:
    """Runs the program of a row on the phantom.

    Raises:
        RuntimeError: it did not print its peak.
    """
    data, directory = work / "data", work / row.name
    subprocess.run([str(python), str(HERE / "make_data.py"), str(data)], check=True)
    directory.mkdir(parents=True, exist_ok=True)
    variables = {
        "DATA_PATH": str(data),
        "TOKENIZER_PATH": str(data / "tokenizer.model"),
        **STEPS,
        **row.environment,
    }
    if row.stand_in:
        variables["PYTHONPATH"] = str(HERE / "stand_ins")
    program = (checkout / row.folder / "train_gpt.py").resolve()
    command = (
        sys.executable, "-c", "from ullage.cli import main; main()", "run", "--json",
        "--gpu", row.gpu, "--world-size", str(RANKS), "--rank", "0", "--python", str(python),
        "--snapshot", str(directory / "snapshot.pickle"),
        "--", str(HERE / "until_peak.py"), str(program),
    )  # fmt: skip
    (directory / "snapshot.pickle").unlink(missing_ok=True)
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **variables}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    printed = _PEAK.search(done.stderr)
    if printed is None or not done.stdout:
        raise RuntimeError(f"{row.name} printed no peak:\n{done.stderr[-2000:]}")
    return read_result(json.loads(done.stdout), (int(printed[1]), int(printed[2])))


def read_result(document: dict[str, Any], printed: tuple[int, int]) -> Result:
    """What a run document, and the line that the program printed, come to."""
    (device,) = document["devices"]
    return Result(
        allocated_mib=printed[0],
        reserved_mib=printed[1],
        warm_mib=device["peak_allocated_low_bytes"] // MIB,
        low_bytes=device["peak_reserved_low_bytes"],
        high_bytes=device["peak_reserved_high_bytes"],
        assumptions=tuple(
            made["what"]
            for made in document["basis"]["allocator"]["assumptions"]
            if made["low_bytes"] is not None
        ),
        torch=document["torch"].partition("+")[0],
        wall_s=document["wall_s"],
    )


def read_kept(work: Path) -> dict[str, Result]:
    """What earlier runs gave, by the names of the rows."""
    return {
        path.stem: read_stored(json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(work.glob("*.json"))
    }


def run_all(rows: Sequence[Row], args: argparse.Namespace) -> list[str]:
    """Runs what has no result yet, a version of torch after the other; the errors."""
    errors = []
    key = lambda row: row.torch_here  # noqa: E731
    for version, group in itertools.groupby(sorted(rows, key=key), key=key):
        directory = ROOT / ".envs" / f"logs-torch-{version}"
        spec = EnvironmentSpec(
            torch=version, requirements=(HERE / "requirements.txt",), with_triton=True
        )
        python = make_environment(directory, spec, force=True, progress=print).python
        for row in group:
            print(f"{row.name}: running with torch {version}", flush=True)
            try:
                result = run_row(row, python, args.checkout, args.work)
            except RuntimeError as error:
                errors.append(str(error))
                continue
            text = json.dumps(asdict(result), indent=1) + "\n"
            (args.work / f"{row.name}.json").write_text(text, encoding="utf-8")
        if args.one_environment:
            shutil.rmtree(directory)
    return errors


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="of openai/parameter-golf")
    parser.add_argument("--only", help="rows whose name holds this, without writing the page")
    parser.add_argument("--page", action="store_true", help="run nothing, and write the page")
    parser.add_argument("--again", action="store_true", help="run what has a result, too")
    parser.add_argument("--one-environment", action="store_true", help="remove each after its rows")
    parser.add_argument("--work", type=Path, default=WORK, help="where data and results are kept")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    rows = list(read_rows())
    results = {} if args.again else read_kept(args.work)
    chosen = [row for row in rows if (args.only or "") in row.name and row.name not in results]
    errors = [] if args.page else run_all(chosen, args)
    stored = read_results() | read_kept(args.work)
    text = json.dumps({name: asdict(each) for name, each in stored.items()}, indent=1)
    RESULTS.write_text(f"{text}\n", encoding="utf-8")
    if not args.only:
        page = render(rows, read_kept(args.work), origin_of(args.checkout))
        publish("accuracy-logs", page)
    if errors:
        raise SystemExit("\n".join(errors))


if __name__ == "__main__":
    main()

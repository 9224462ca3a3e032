"""Predict the step times of published runs, and write docs/results/time.md.

    python -m benchmarks.time.published --programs DIR --python ENV/bin/python             # all
    python -m benchmarks.time.published --programs DIR --python PY --row T1b NaiveBaseline # some

The programs are other people's and no part of this repository. DIR has

    parameter-golf       a checkout of openai/parameter-golf at the commit of rows.csv
    torchtitan-0.1.0     the package torchtitan 0.1.0 (`pip install --no-deps --target`)
    mychat               a checkout of mileswangs/mychat

and the environment needs torch with Triton, torchao, and what the programs import. Every prediction
is printed and stored in results.json before the published figure is read. Ends with exit code 1
where a program gave no prediction.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.results import publish
from benchmarks.time.published.make_data import make_data
from benchmarks.time.published.page import render
from benchmarks.time.published.reclock import clock_kept
from benchmarks.time.published.row import (
    HERE,
    ROOT,
    Prediction,
    Recipe,
    read_figures,
    read_recipes,
)
from ullage.ground.errors import SnapshotError

RESULTS = HERE / "results.json"
WORK = ROOT / "build" / "time-published"
TOKENS_MAKER = ROOT / "benchmarks" / "accuracy" / "logs" / "make_data.py"


def predict(recipe: Recipe, python: Path, folders: Mapping[str, str], work: Path) -> Prediction:
    """Runs a row's program on the phantom, with the clock."""
    directory = work / recipe.name
    directory.mkdir(parents=True, exist_ok=True)
    command = (
        sys.executable, "-c", "from ullage.cli import main; main()", "run", "--time", "--json",
        "--python", str(python), "--snapshot", str(directory / "snapshot.pickle"),
        *recipe.arguments(folders),
    )  # fmt: skip
    (directory / "snapshot.pickle").unlink(missing_ok=True)
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **recipe.variables(folders)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    (directory / "output.txt").write_text(done.stderr, encoding="utf-8")
    (directory / "document.json").write_text(done.stdout, encoding="utf-8")
    return read_kept(directory)


def read_kept(directory: Path) -> Prediction:
    """What a run left in its directory."""
    try:
        return read_prediction(json.loads((directory / "document.json").read_text("utf-8")))
    except (ValueError, KeyError, TypeError):
        last = " ".join((directory / "output.txt").read_text("utf-8").strip().splitlines()[-1:])
        return Prediction(None, None, None, "", 0.0, f"its document states no time; {last}")


def reread(work: Path) -> dict[str, Prediction]:
    """The rows kept in a folder: times of their logs of work by the clock of today."""
    predictions = {}
    for recipe in read_recipes():
        directory = work / recipe.name
        if (directory / "document.json").exists():
            try:
                predictions[recipe.name] = clock_kept(directory, recipe)
            except (KeyError, TypeError, ValueError, SnapshotError):  # the run itself failed
                predictions[recipe.name] = read_kept(directory)
    return predictions


def read_prediction(document: Mapping[str, object]) -> Prediction:
    """The step time that a run document states.

    Raises:
        KeyError, TypeError, ValueError: it states none.
    """
    time, torch, wall_s = document["time"], document["torch"], document["wall_s"]
    if not isinstance(time, dict) or not isinstance(wall_s, (int, float)):
        raise TypeError(f"time is {time!r}, wall_s {wall_s!r}; expected an object and a number")
    low, likely, high = map(float, time["step_s"])
    kinds = {kind["name"]: float(kind["exposed_s"][1]) for kind in time["kinds"]}
    kinds["device idle"] = float(time["device_idle_s"][1])
    version = str(torch).partition("+")[0]
    return Prediction(low, likely, high, version, float(wall_s), kinds=kinds)


def read_results(path: Path) -> dict[str, Prediction]:
    """The stored predictions, by the names of the rows."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {name: Prediction(**fields) for name, fields in stored.items()}


def write_results(path: Path, predictions: Mapping[str, Prediction]) -> None:
    """Stores predictions."""
    stored = {name: asdict(made) for name, made in sorted(predictions.items())}
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run, print, store; then score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=Path, help="folder of the programs; none: only the page")
    parser.add_argument("--python", type=Path, help="interpreter of their environment")
    parser.add_argument("--row", nargs="+", help="these rows; default: all")
    parser.add_argument("--reread", action="store_true", help="clock the runs kept in --work again")
    parser.add_argument("--work", type=Path, default=WORK, help="where data and outputs are kept")
    args = parser.parse_args()
    predictions = read_results(RESULTS)
    errors = []
    if args.reread:
        predictions = reread(args.work)
        write_results(RESULTS, predictions)
    if args.programs is not None:
        folders = {
            "programs": str(args.programs.resolve()),
            "data": str((args.work / "data").resolve()),
            "repository": str(ROOT),
        }
        python = (args.python or Path(sys.executable)).absolute()
        subprocess.run(
            [str(python), str(TOKENS_MAKER), f"{folders['data']}/parameter-golf"], check=True
        )
        make_data(Path(folders["data"]))
        for recipe in read_recipes():
            if args.row and recipe.name not in args.row:
                continue
            made = predict(recipe, python, folders, args.work.resolve())
            print(f"{recipe.name}: {_text(made)}", flush=True)
            errors += [recipe.name] if made.likely_s is None else []
            predictions[recipe.name] = made
            write_results(RESULTS, predictions)
    publish("time", render(tuple(read_figures()), predictions))
    if errors:
        raise SystemExit(f"no prediction: {', '.join(errors)}")


def _text(made: Prediction) -> str:
    if made.low_s is None or made.likely_s is None or made.high_s is None:
        return made.error
    return (
        f"{1e3 * made.likely_s:.1f} ms a step ({1e3 * made.low_s:.1f} to {1e3 * made.high_s:.1f})"
    )


if __name__ == "__main__":
    main()

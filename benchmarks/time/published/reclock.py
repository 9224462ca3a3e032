"""The times of kept runs by the clock of today: the log of work lies in a run's snapshot.

    python -m benchmarks.time.published.reclock --work DIR [--row ...]

prints them beside those of the run, and knows nothing of published times.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.time.published.row import Prediction, Recipe, read_recipes
from ullage.clock.step_time import StepTime
from ullage.facts.gpus import find_gpu
from ullage.log.reader import read_record
from ullage.search.runs.timing import time_process


def clock_kept(directory: Path, recipe: Recipe) -> Prediction:
    """The time of the step that was kept in a row's directory.

    Raises:
        KeyError, TypeError, ValueError: nothing readable was kept, or the log has no whole step.
    """
    document = json.loads((directory / "document.json").read_text("utf-8"))
    if document.get("time") is None:
        raise ValueError(f"{directory}: the run gave no time")
    name = recipe.gpu.removeprefix("--gpu ")
    time = time_process(read_record(directory / "snapshot.pickle"), find_gpu(name), None)
    if time is None:
        raise ValueError(f"{directory}: its log of work has no whole step")
    torch = str(document["torch"]).partition("+")[0]
    return _prediction(time, torch, float(document["wall_s"]))


def _prediction(time: StepTime, torch: str, wall_s: float) -> Prediction:
    kinds = {share.name: share.exposed.s for share in time.categories if share.exposed.s}
    kinds = dict(sorted(kinds.items(), key=lambda kind: -kind[1]))
    kinds["device idle"] = time.device_idle.s
    return Prediction(*time.step, torch, wall_s, kinds=kinds)


def main() -> None:
    """Print the times of kept runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="where the runs were kept")
    parser.add_argument("--row", nargs="+", help="these rows; default: all that were kept")
    args = parser.parse_args()
    for recipe in read_recipes():
        directory = args.work / recipe.name
        if (args.row and recipe.name not in args.row) or not (directory / "document.json").exists():
            continue
        try:
            made = clock_kept(directory, recipe)
        except (KeyError, TypeError, ValueError) as error:
            print(f"{recipe.name}: {error}")
            continue
        document = json.loads((directory / "document.json").read_text("utf-8"))
        interval = (made.low_s, made.likely_s, made.high_s)
        now = " ".join(f"{1e3 * (value or 0.0):.1f}" for value in interval)
        then = " ".join(f"{1e3 * value:.1f}" for value in document["time"]["step_s"])
        kinds = ", ".join(f"{kind} {1e3 * seconds:.1f}" for kind, seconds in made.kinds.items())
        print(f"{recipe.name}: {now} ms (the run said {then}); {kinds}", flush=True)


if __name__ == "__main__":
    main()

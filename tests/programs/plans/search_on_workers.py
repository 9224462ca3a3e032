"""Searches in this process and on workers: `search_on_workers.py POOL PYTHON SCRATCH WORDS...`.

POOL is a file of lines of the guide that define `make`. Prints what both searches found, what has
become of a run whose worker was lost, and what a worker says that is not as this machine is.
"""

import json
import os
import runpy
import sys
from dataclasses import replace
from pathlib import Path

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Semantics
from ullage.ground.errors import UllageError
from ullage.ground.protocol.plain import document_of
from ullage.players.phantom.device import choose_device
from ullage.search import menu
from ullage.search.runner import make_runner
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.trials import Trials
from ullage.search.search import Search
from ullage.verbs.run.options import RunOptions

FEW = ("checkpoint", "optimizer_kernel")
SHARE = 0.995
HERE = Path(__file__).parent


def make_search_job(python, words, **options):
    """A job where memory is without end."""
    device = replace(choose_device("h100-80gb"), is_unlimited=True)
    return make_job(
        words,
        device=device,
        python=python,
        options=make_options(RunOptions([], time=True, **options)),
    )


def search(trials, job):
    """What is found, and in how many runs."""
    gpu = job.device.gpu
    found = Search(make_runner(trials, job), gpu, Semantics.SAME)
    budget = int(SHARE * found.fastest(gpu.total_bytes).as_it_is.used_bytes)
    return document_of(replace(found.fastest(budget), num_runs=trials.num_runs))


def lose(executor, python, begun):
    """How a run ends whose worker is always lost."""
    job = make_search_job(python, [str(HERE / "ends_its_worker.py"), str(begun)])
    return run_alone(executor, job), begun.stat().st_size


def run_alone(executor, job):
    """The verdict of one run, or why there is none."""
    try:
        with Trials(job, executor=executor) as trials:
            (found,) = trials.run([job])
            return found.verdict.value
    except UllageError as error:
        return f"{type(error).__name__}: {error}"


def main():
    """Everything, one after the other."""
    pool, python, scratch, *words = sys.argv[1:]
    os.environ["SEARCH_PID"] = str(os.getpid())
    make = runpy.run_path(pool)["make"]
    job = make_search_job(python, words, steps=3)
    menu.TECHNIQUES = {name: TECHNIQUES[name] for name in FEW}
    with Trials(job) as trials:
        here = search(trials, job)
    executor = make()
    with Trials(job, executor=executor) as trials:
        there = search(trials, job)
    another = replace(job, build=replace(job.build, version="2.0.0"))
    found = {
        "here": here,
        "there": there,
        "another_torch": run_alone(executor, another),
        "lost": lose(executor, python, Path(scratch, "begun")),
    }
    executor.shutdown(wait=False)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

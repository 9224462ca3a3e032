"""Searches on this machine and on a Ray cluster of it: `search_on_ray.py PYTHON SCRATCH WORDS...`.

Prints what both found, what has become of runs whose node was lost once and twice, and what a node
says that is not as this machine is.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from ullage.errors import UllageError
from ullage.phantom.device import choose_device
from ullage.plan import menu
from ullage.plan.runner import make_runner
from ullage.plan.search import Search
from ullage.report.document.fit import fit_document
from ullage.runs.job import make_job, make_options
from ullage.runs.ray_trials import RayTrials
from ullage.runs.trials import Trials
from ullage.techniques.catalog import TECHNIQUES
from ullage.techniques.technique import Semantics

FEW = ("checkpoint", "optimizer_kernel")
SHARE = 0.995
HERE = Path(__file__).parent


def make(python, words, **options):
    """A job where memory is without end."""
    device = replace(choose_device("h100-80gb"), is_unlimited=True)
    return make_job(words, device=device, python=python, options=make_options(time=True, **options))


def search(trials, job):
    """What is found, and in how many runs."""
    gpu = job.device.gpu
    found = Search(make_runner(trials, job), gpu, Semantics.SAME)
    budget = int(SHARE * found.fastest(gpu.total_bytes).as_it_is.used_bytes)
    return fit_document(replace(found.fastest(budget), num_runs=trials.num_runs))


def lose(python, directory, times):
    """How a run ends whose node is lost so often, and how often it was begun."""
    begun = directory / str(times)
    job = make(python, [str(HERE / "ends_its_node.py"), str(begun), str(times)])
    return caught(lambda: run_alone(job)), begun.stat().st_size


def run_alone(job):
    """The verdict of one run on a cluster of its own."""
    with RayTrials(job, "local") as trials:
        (found,) = trials.run([job])
        return found.verdict.value


def caught(call):
    """What a call gives, or the error that ends it."""
    try:
        return call()
    except UllageError as error:
        return f"{type(error).__name__}: {error}"


def main():
    """Everything, one after the other."""
    python, scratch, *words = sys.argv[1:]
    job = make(python, words, steps=3)
    menu.TECHNIQUES = {name: TECHNIQUES[name] for name in FEW}
    with Trials(job) as trials:
        here = search(trials, job)
    with RayTrials(job, "local") as trials:
        nodes = [node.name for node in trials._nodes]
        there = search(trials, job)
    another = replace(job, build=replace(job.build, version="2.0.0"))
    found = {
        "here": here,
        "there": there,
        "nodes": nodes,
        "lost": [lose(python, Path(scratch), times) for times in (1, 2)],
        "another_torch": caught(lambda: run_alone(another)),
        "no_cluster": caught(lambda: RayTrials(job, "127.0.0.1:1").__enter__()),
    }
    print(json.dumps(found))


main()

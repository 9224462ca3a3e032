"""Makes two runs on the workers of an executor: `run_on_workers.py POOL PYTHON WORDS...`."""

import json
import runpy
import sys

from search_on_workers import make_search_job

from ullage.search.runs.trials import Trials

if __name__ == "__main__":
    pool, python, *words = sys.argv[1:]
    job = make_search_job(python, words, steps=2)
    executor = runpy.run_path(pool)["make"]()
    with Trials(job, executor=executor) as trials:
        verdicts = [report.verdict.value for report in trials.run([job, job])]
    if hasattr(executor, "shutdown"):
        executor.shutdown()
    print(json.dumps(verdicts))

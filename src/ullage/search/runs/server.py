"""Runs a server on the phantom, sends requests to it, and stops it.

run, output = run_server(job, service, Path("run.pickle"))
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ullage.explain.run import RunReport
from ullage.players.phantom.client import Service, check_port, replay
from ullage.players.phantom.insistence import is_writing
from ullage.players.phantom.launch import make_environment, run_directory, start
from ullage.search.runs.forks import last_lines
from ullage.search.runs.job import Job
from ullage.search.runs.one import explain_job

# The time limit for a server's shutdown; the record may take longer.
_PATIENCE_S = 60.0


def run_server(job: Job, service: Service, snapshot: Path) -> tuple[RunReport, str]:
    """Runs the server; returns its report, and its last lines of output.

    Raises:
        EnvironmentProblem: its port is in use, or it cannot be started.
        KeyboardInterrupt: the user stopped it.
    """
    check_port(service.endpoint)
    with run_directory() as run_dir:
        output = run_dir / "output"
        environment = make_environment(run_dir, job.device, job.build, job.options)
        with start(job.program, environment, output=output) as child:
            with child.limited(job.options.timeout_s):
                replay(service, child, run_dir)
            was_running = child.end(_PATIENCE_S, lambda: is_writing(run_dir))
            ended = child.wait()
        if ended.was_interrupted:
            raise KeyboardInterrupt
        if was_running:  # we stopped it, so its exit code is not a failure
            ended = replace(ended, exit_code=0, left_running=(), was_stopped=True)
        return explain_job(job, run_dir, child.pid, ended, snapshot), last_lines(output)

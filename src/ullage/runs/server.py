"""Runs a server on the phantom, replays requests against it, and stops it.

run, output = run_server(job, service, Path("run.pickle"))
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ullage.explain.run import RunReport
from ullage.phantom.client import Service, check_port, replay
from ullage.phantom.insistence import is_writing
from ullage.phantom.launch import make_environment, run_directory, start
from ullage.runs.job import Job
from ullage.runs.one import explain_job
from ullage.runs.parallel import last_lines

# For what a server does when it is asked to end; its record may take longer.
_PATIENCE_S = 60.0


def run_server(job: Job, service: Service, snapshot: Path) -> tuple[RunReport, str]:
    """The run, and the last lines that the server printed.

    Raises:
        EnvironmentProblem: its port is taken, or it cannot be started.
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
        if was_running:  # how it ended was ours to say
            ended = replace(ended, exit_code=0, left_running=(), was_stopped=True)
        return explain_job(job, run_dir, child.pid, ended, snapshot), last_lines(output)

"""Measures a function of this process on a simulated GPU: `ullage.measure`.

    model, batch = torch.nn.Linear(4096, 4096), torch.randn(64, 4096)
    run = ullage.measure(lambda: model.cuda()(batch.cuda()).sum().backward(), gpu="l4")
    run.verdict, run.peak_allocated_bytes

The function is called in a process of its own, where torch finds the simulated GPU. It gets there
by cloudpickle and a pipe from this process to that child: no file is written or read for it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.ground.programs import called_function
from ullage.search.runs.one import run_job
from ullage.verbs.run.function import Run, make_run_job
from ullage.verbs.run.options import RunOptions


def measure(
    function: Callable[[], object],
    *,
    gpu: str | None = None,
    memory: str | int | None = None,
    budget: str | int | None = None,
    time: bool = False,
) -> Run:
    """Calls a function on a simulated GPU, and reports the memory that it takes.

    Args:
        function: takes no arguments; what it refers to goes with it, such as a model and a batch on
            the CPU. Changes that it makes stay in the child.
        gpu, memory, budget, time: as for `ullage.run`.

    Raises:
        SpecError: it cannot be called or pickled, or an option is not possible.
        EnvironmentProblem: cloudpickle or torch for CUDA is not installed beside this Python.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    if not callable(function):
        raise SpecError(f"found {function!r}; expected a function without arguments")
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "a function is sent to its process by cloudpickle, which is not installed; install it "
            "with: pip install 'ullage[measure]'"
        ) from None
    try:
        content = pickle.dumps(sys.path) + cloudpickle.dumps(function)
    except Exception as error:  # whatever an object's own way of being pickled raises
        raise SpecError(
            f"{name} cannot be sent to a process of its own: {error}; make what it refers to "
            "within it"
        ) from None
    words = [called_function.__file__]
    job = make_run_job(RunOptions(words, gpu=gpu, memory=memory, budget=budget, time=time))
    reader, writer = os.pipe()
    sender = threading.Thread(target=_send, args=(writer, content))
    try:
        program = replace(job.program, argv=("ullage.measure", name), stdin=reader)
        sender.start()
        report = run_job(replace(job, program=program), None, stdout_to_stderr=False)
    finally:
        os.close(reader)  # a child that has read nothing leaves the sender no reader
        sender.join()
    return Run(report)


def _send(writer: int, content: bytes) -> None:
    """Writes to the child, in a thread: a pipe holds less than a model takes."""
    try:
        with open(writer, "wb") as stream:
            stream.write(content)
    except BrokenPipeError:  # the child ended before; the report says how
        return

"""Serves traffic with a real engine on the phantom: starts it, and reads what it leaves.

served = serve(["vllm", "serve", "llama-3.1-8b"], traffic, gpu="h100-80gb", python=None)
served.outcome.ttft_s
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from ullage.facts.families.config import FILE_NAME
from ullage.facts.families.find import find_config
from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.operate.serve.host_time import MEASURED, NO_HOST_TIME, HostTime
from ullage.operate.serve.outcome import Engine, Outcome, read_engine, read_outcome
from ullage.operate.serve.task import Task, write_task
from ullage.operate.serve.traffic import Traffic
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.rank import choose_ranks
from ullage.search.runs.job import make_job, make_options
from ullage.search.runs.one import run_job
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from ullage.explain.run import RunReport

_FOLDER: Final = Path(__file__).parent
ENTRANCE: Final = _FOLDER / "vllm" / "entrance.py"
# By the first two words of a command: the program that starts its engine.
_PROGRAMS: Final = {
    ("vllm", "serve"): ENTRANCE,
    ("transformers", "serve"): _FOLDER / "transformers" / "entrance.py",
}
# vLLM shares layers among processes; one process is what runs here.
_SEVERAL: Final = {
    "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp", "--nnodes",
}  # fmt: skip
_NO_SGLANG: Final = (
    "SGLang is not served here: its scheduler has not been put into virtual time; use "
    "vllm serve MODEL ..., or transformers serve MODEL --continuous-batching"
)
_TENSOR_PARALLEL: Final = {"--tensor-parallel-size", "-tp"}


class Loaded(NamedTuple):
    """The outcome of the requests at `load` times the traffic's rate."""

    load: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Served:
    """A server's run.

    Attributes:
        command: the words of the engine's command line.
        gpu: the GPU's name in the catalogue.
        outcome: what became of the requests.
        report: the run on the phantom, with the memory of the whole device.
        by_load: the outcomes at all loads, ascending, with `outcome` at 1; empty where only the
            traffic itself was sent.
        host: what the host was assumed to take for a step.
        first: the engine of the start that left its compile cache; None: there was no such start.
    """

    command: tuple[str, ...]
    gpu: str
    outcome: Annotated[Outcome, Mark.FLAT]
    report: Annotated[RunReport, Only("torch"), As("torch")]
    by_load: Annotated[tuple[Loaded, ...], Mark.NO_KEY] = ()
    host: Annotated[HostTime, Mark.NAMED, As("host_time")] = NO_HOST_TIME
    first: Annotated[Engine | None, As("first_start")] = None

    @figure
    def device(self) -> Mapping[str, Any] | None:
        """The memory of the whole device, as `ullage run` counts it."""
        device = next(iter(self.report.devices), None)
        return (
            None
            if device is None
            else {
                "name": device.gpu.slug,
                "total_bytes": device.gpu.total_bytes,
                "peak_used_bytes": device.peak_used_bytes,
                "peak_reserved_bytes": device.totals.peak_reserved_bytes,
                "peak_allocated_bytes": device.totals.peak_allocated_bytes,
            }
        )


def serve(
    command: Sequence[str],
    traffic: Traffic,
    *,
    gpu: str,
    python: str | None = None,
    stdout_to_stderr: bool = True,
    loads: Sequence[float] = (),
    host: HostTime | None = None,
    is_cached: bool = False,
) -> Served:
    """Runs the engine with the traffic, until all requests have their answer or never will.

    Args:
        command: `vllm serve MODEL ...`, or `transformers serve MODEL ...`; the model is found as by
            `ullage estimate`, and only its configuration is needed.
        gpu: a GPU of the catalogue.
        python: the interpreter of the environment with the engine; None: this one.
        loads: the same requests are also sent at this many times their rate, by the same engine.
        host: what the host takes; None: for vLLM as it was measured, for transformers nothing.
        is_cached: the engine starts twice, and the start that serves finds the compile cache of the
            other.

    Raises:
        SpecError: the command or the model cannot be served here.
        EnvironmentProblem: the engine did not start, or failed; its own output says why.
    """
    model = check_command(command)
    host = _check_host(command, host)
    if is_cached:
        _check_has_compile_cache(command)
    sent = (1.0, *(load for load in loads if load != 1.0))
    first = None
    with made_ready(command, model, traffic, gpu) as task:
        program = Program(tuple(command), task.gpu, python, stdout_to_stderr)
        task = replace(task, loads=sent, host=host)
        if is_cached:
            first = program.start(task)
        else:
            task = replace(task, compile_cache=None)
        report, document = program.run(task)
    runs = zip(sent, document.pop("runs"), strict=True)
    outcomes = [
        Loaded(load, read_outcome({**document, **run}, traffic.at_load(load))) for load, run in runs
    ]
    by_load = tuple(sorted(outcomes, key=lambda loaded: loaded.load)) if loads else ()
    return Served(tuple(command), task.gpu, outcomes[0].outcome, report, by_load, host, first)


@contextmanager
def made_ready(command: Sequence[str], model: str, traffic: Traffic, gpu: str) -> Iterator[Task]:
    """The order for a command's program, in a directory that lasts as long."""
    config = find_config(model).config
    with TemporaryDirectory(prefix="ullage-serve-") as name:
        folder = Path(name, "model")
        folder.mkdir()
        (folder / FILE_NAME).write_text(json.dumps(dict(config.fields)), encoding="utf-8")
        arguments = [str(folder) if word == model else word for word in command[2:]]
        yield Task(
            tuple(arguments), str(folder / FILE_NAME), choose_device(gpu).gpu.slug, traffic,
            str(Path(name, "result.json")), compile_cache=str(Path(name, "compiled")),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Program:
    """An engine's program on the phantom."""

    command: tuple[str, ...]
    gpu: str
    python: str | None
    stdout_to_stderr: bool

    def start(self, task: Task) -> Engine:
        """The engine's own figures; it only starts, and ends.

        Raises:
            EnvironmentProblem: it did not start.
        """
        return read_engine(self.run(replace(task, loads=()))[1]["engine"])

    def run(self, task: Task) -> tuple[RunReport, dict[str, Any]]:
        """Runs it with an order; the run on the phantom, and what the program wrote.

        Raises:
            EnvironmentProblem: it wrote nothing.
        """
        Path(task.result).unlink(missing_ok=True)
        program = _PROGRAMS[self.command[0], self.command[1]]
        words = [str(program), str(write_task(task, Path(task.result).parent))]
        # What steers the engine does not hang on values of the device; to follow them takes long.
        # Where nothing is sent, no time is needed either.
        clock: Literal["real", "virtual"] = "virtual" if task.loads else "real"
        options = make_options(RunOptions(words, clock=clock, values=False))
        ranks = tensor_parallel(self.command)
        if ranks > 1:
            options = replace(options, rank=choose_ranks((0,), ranks, ranks)[0])
        device = choose_device(self.gpu)
        job = make_job(words, device=device, python=self.python, options=options)
        report = run_job(job, None, stdout_to_stderr=self.stdout_to_stderr)
        if not Path(task.result).is_file():
            raise EnvironmentProblem(
                f"{' '.join(self.command)} did not come to its end on the phantom (exit code "
                f"{report.program.exit_code}): see its output above"
            )
        return report, json.loads(Path(task.result).read_text(encoding="utf-8"))


def _check_has_compile_cache(command: Sequence[str]) -> None:
    """Raises SpecError for an engine that keeps none."""
    if command[0] == "transformers":
        raise SpecError("transformers serve keeps no compile cache; leave --cached out")


def _check_host(command: Sequence[str], host: HostTime | None) -> HostTime:
    if command[0] == "vllm":
        return MEASURED if host is None else host
    if host is not None and host != NO_HOST_TIME:
        raise SpecError("the host's time is counted for vLLM alone; leave --host-time out")
    return NO_HOST_TIME


def check_command(command: Sequence[str]) -> str:
    """The model of a command; SpecError where the command cannot be served here."""
    shown = " ".join(command)
    engine = tuple(command[:2])
    if command and "sglang" in shown.partition(" --")[0]:
        raise SpecError(_NO_SGLANG)
    if engine not in _PROGRAMS:
        raise SpecError(
            f"found {shown!r}; expected a server's command: vllm serve MODEL ..., or "
            f"transformers serve MODEL --continuous-batching"
        )
    if engine[0] == "transformers" and "--continuous-batching" not in command:
        raise SpecError(
            "transformers serve answers one request at a time without --continuous-batching, and "
            "has no scheduler to serve traffic with; add it"
        )
    for word in command[2:]:
        if word.partition("=")[0] in _SEVERAL:
            raise SpecError(
                f"{word!r}: several GPUs are not simulated here; leave it out, or choose a GPU "
                "with room for the whole model"
            )
        if word.partition("=")[0] == "--kv-transfer-config":
            raise SpecError(
                f"{word!r}: connectors are not simulated here; leave it out, or use "
                "--kv-offloading-size GIB, which is vLLM's own offloading to the host"
            )
    if len(command) < 3 or command[2].startswith("-"):
        raise SpecError(f"{shown!r} names no model; write it first: {' '.join(engine)} MODEL ...")
    return command[2]


def tensor_parallel(command: Sequence[str]) -> int:
    """The GPUs that share each layer; SpecError where the words say no number."""
    for index, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in _TENSOR_PARALLEL:
            text = value if equals else "".join(command[index + 1 : index + 2])
            if not text.isdecimal() or int(text) < 1:
                raise SpecError(f"{word!r}: found {text!r}; expected a number of GPUs")
            return int(text)
    return 1

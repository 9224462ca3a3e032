"""The options of `ullage run`, and of `ullage.run`, `ullage.sweep` and `ullage.run_ranks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, Protocol, TypeAlias

from ullage.ground.protocol.option import (
    SETTINGS,
    Command,
    File,
    HelpSection,
    Listener,
    Names,
    Python,
    Size,
    Words,
)
from ullage.ground.protocol.plain import From, Mark, Misfit

GPU, RANKS, TIME = HelpSection("GPU"), HelpSection("Ranks of a job"), HelpSection("Time")
PROGRAM, OUTPUT = HelpSection("Program"), HelpSection("Output")
DISTINCT = "distinct"

# What several verbs have is said once: `memory: Size | None = GPU(*MEMORY)`.
MEMORY = ("Total memory of the GPU, for example 24GiB.", "SIZE")
CAPABILITY = ("Compute capability of the GPU, for example 8.9.", "M.N")
ALLOC_CONF = ("Set PYTORCH_ALLOC_CONF for the program.", "TEXT")
PYTHON = ("Python interpreter of the program's environment.", "PATH")
DUMMY_WEIGHTS = "Generate missing weight files."
ASSUME = (
    (
        "Assumption about unknown values: nonzero=all|half|none|FRACTION, "
        "experts=worst|balanced, values=plausible|zeros."
    ),
    "NAME=VALUE",
)
MEASURED = ("Correct the times by a recording on that GPU (`ullage record --kernels`).", "FILE")
GUARD = (
    (
        "Where it ends out of memory, start it again under the next of these plans or of a ladder "
        "from `ullage fit`; without a file: under checkpoints."
    ),
    "[FILE,...]",
)
RESUME = (
    "What a restart appends to the program's words, to go on from its checkpoint.",
    "WORDS",
)


class WrittenPlan(Protocol):
    """A plan that was read: `ullage.Plan`."""

    def text(self) -> str:
        """The text of its file."""


def _split_variables(texts: Sequence[str]) -> Mapping[str, Sequence[str]]:
    variables: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise Misfit(f"{text!r} gives no values; for example: --sweep batch=1,2,4")
        if name in variables:
            raise Misfit(f"names {name!r} twice; give all its values at once")
        variables[name] = values.split(",")
    return variables


def _split_ranks(text: str) -> Sequence[int] | str:
    numbers = text.split(",")
    if text == DISTINCT:
        return DISTINCT
    if not all(number.isdecimal() for number in numbers):
        raise Misfit(
            f"{text!r} are not ranks; give numbers or {DISTINCT}, for example: --ranks 0,7"
        )
    return [int(number) for number in numbers]


Plan: TypeAlias = Annotated[File | WrittenPlan, From(File)]
Variables: TypeAlias = Annotated[
    Mapping[str, Sequence[object]], From(tuple[str, ...]), _split_variables
]
Ranks: TypeAlias = Annotated[int | Sequence[int] | str, From(str), _split_ranks]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run on a simulated GPU.

    Attributes:
        program: its words, as they would follow `ullage run --`: a file and its arguments, "-m" and
            a module, or the name of a Python entry point.
        snapshot: a file; for several ranks a directory, with a file for each of them. None of
            `ullage.run`: none is kept.
        force: overwrite what `snapshot` names.
        stdout_to_stderr: the program's own output goes to stderr.
        say: called with a line for each run that the guard follows by another.
        on_progress: called with a line, such as "step 3 allocated 8641234567", as steps or runs
            end.
        on_failure: called with the last output of a program that failed, of several runs.
    """

    program: Command
    _: KW_ONLY

    gpu: str | None = GPU(
        "GPU(s) to simulate (see `ullage gpus`); default: an H100 with unlimited memory.",
        "NAME[,...]", complete="gpus",
    )  # fmt: skip
    gpus: int | None = GPU("Number of identical GPUs.", "N")
    memory: Size | None = GPU(*MEMORY)
    capability: str | None = GPU(*CAPABILITY)
    budget: Size | None = GPU(
        "Memory that the program may use; beyond it, it runs out of memory.", "SIZE"
    )
    platform: Literal["linux", "windows"] = SETTINGS(
        "System with the GPU, whose driver orders addresses; WSL2: windows. Default: linux.",
        default="linux",
    )

    world_size: int | None = RANKS("Simulate one rank of a job of N ranks.", "N")
    ranks: Ranks | None = RANKS(
        "Ranks to simulate, or 'distinct'; default: 0.", "R[,...]", "--rank", "--ranks"
    )
    local_world_size: int | None = SETTINGS("Ranks per node; default: 8.", "N")

    time: bool = TIME.switch("Also predict how long a step takes on the GPU.")
    price: float | None = TIME(
        "Price of a GPU-hour: what steps and tokens cost; implies --time.", "DOLLARS"
    )
    interconnect: str | None = TIME(
        "Links between the GPUs; default: those of the GPU; implies --time.", "TEXT"
    )
    measured: File | None = TIME(*MEASURED)
    clock: Literal["real", "virtual"] = TIME(
        "Clock that the program reads; virtual: the predicted one; implies --time.", default="real"
    )

    python: Python | None = PROGRAM(*PYTHON)
    steps: int | None = PROGRAM("Stop after N training steps.", "N")
    sweep: Variables | None = PROGRAM(
        "Run once per value, which replaces {NAME} in the command; repeatable.", "NAME=A,B,..."
    )
    plan: Plan | None = PROGRAM("Run under this plan (from `ullage fit`).", "FILE")
    guard: Names | None = PROGRAM(*GUARD, bare="")
    resume: Words = PROGRAM(*RESUME, default=())
    try_remedies: bool = PROGRAM.switch("If memory runs out, run again with each remedy.")
    alloc_conf: str | None = PROGRAM(*ALLOC_CONF)
    real_init: bool = SETTINGS.switch("Initialise weights on the CPU; default: skip it.")
    dummy_weights: bool = PROGRAM.switch(DUMMY_WEIGHTS)
    values: bool = SETTINGS("Whether small tensor values are computed; default: on.", default=True)
    assume: Sequence[str] = PROGRAM(*ASSUME, default=())
    nvml: File | None = PROGRAM(
        "Directory through which NVML programs see the GPUs: ullage nvml DIR -- nvitop.", "DIR"
    )

    snapshot: File | None = OUTPUT(
        "Memory snapshot; default: a new file here. For several ranks: a directory.", "FILE"
    )
    force: Annotated[bool, Mark.NO_KEY] = False
    stdout_to_stderr: Annotated[bool, Mark.NO_KEY] = False
    say: Listener = None
    on_progress: Listener = None
    on_failure: Listener = None

    @property
    def gpu_names(self) -> Sequence[str]:
        """The GPUs to run on; empty: none was named."""
        return () if self.gpu is None else self.gpu.split(",")

    @property
    def is_sweep(self) -> bool:
        """True if the program runs several times: with several values or on several GPUs."""
        return bool(self.sweep) or len(self.gpu_names) > 1

    @property
    def has_many_ranks(self) -> bool:
        """True if several ranks of a job run: "0,7" or "distinct"."""
        return isinstance(self.ranks, str) or (
            isinstance(self.ranks, Sequence) and len(self.ranks) > 1
        )

"""The search for programs that bring their own launcher: what `ullage fit --gpus N` does where the
program is started by `accelerate launch`, or reads a configuration of DeepSpeed.

    ullage fit --gpu rtx-4090 --gpus 4 -o accelerate.yaml -- accelerate launch train.py
    ullage fit --gpu rtx-4090 --gpus 4 -o ds.json -- train.py --deepspeed ds_config.json

The search varies, and writes, that launcher's own configuration. It runs one rank of each.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ullage.explain.run import RunReport
from ullage.ground.errors import SpecError
from ullage.ground.parsing import read_bounded
from ullage.players.phantom.launch import run_directory
from ullage.players.phantom.program import resolve_program
from ullage.search.budget import Limit
from ullage.search.costs.measure import RunRequest
from ullage.search.findings import FitReport
from ullage.search.launchers.accelerate_file import accelerate_config, to_yaml
from ullage.search.launchers.sharded_search import ShardedSearch
from ullage.search.launchers.shardings import (
    SHARDINGS,
    Engine,
    OnHost,
    Sharding,
    splitting_sequences,
)
from ullage.search.runner import make_trial
from ullage.search.runs.job import Job, jobs_of_launchers
from ullage.search.runs.trials import Trials

# Options of `accelerate launch` that replace parts of its configuration.
_SAYS_HOW = ("--multi", "--use_", "--fsdp", "--zero", "--offload", "--deepspeed", "--cpu", "--tpu")
_MODULE = "accelerate.commands.launch"
_READ_YAML = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))"


class Launched(Protocol):
    """A program with a launcher's configuration that the search can replace."""

    @property
    def suffix(self) -> str:
        """The suffix of its files."""

    @property
    def shardings(self) -> Sequence[Sharding]:
        """The shardings that its configuration can express."""

    def text(self, sharding: Sharding, kinds: Sequence[str]) -> str:
        """Its configuration for a sharding and the classes of the blocks."""

    def jobs(self, files: Sequence[Path], job: Job) -> list[Job | str]:
        """The job with each of these configurations, or why it cannot start."""


@dataclass(frozen=True, slots=True)
class AccelerateLaunched:
    """A program that `accelerate launch` starts.

    Attributes:
        words: of the whole command line.
        place: among them, of the launcher's first option.
        own: its configuration.
        num_ranks: of the job.
    """

    words: tuple[str, ...]
    place: int
    own: Mapping[str, Any]
    num_ranks: int

    @property
    def suffix(self) -> str:
        """Accelerate tells YAML from JSON by it."""
        return ".yaml"

    @property
    def shardings(self) -> Sequence[Sharding]:
        """All, and one that DeepSpeed's file cannot express."""
        return (*SHARDINGS, splitting_sequences(self.num_ranks))

    def text(self, sharding: Sharding, kinds: Sequence[str]) -> str:
        """YAML."""
        return to_yaml(accelerate_config(self.own, sharding, self.num_ranks, kinds))

    def jobs(self, files: Sequence[Path], job: Job) -> list[Job | str]:
        """The jobs that `accelerate launch --config_file FILE` would start."""
        launched = [
            resolve_program(
                [*self.words[: self.place], "--config_file", str(file), *self.words[self.place :]],
                job.program.python,
                job.program.directory,
            )
            for file in files
        ]
        return jobs_of_launchers(job, launched)


@dataclass(frozen=True, slots=True)
class DeepSpeedLaunched:
    """A program that reads a configuration of DeepSpeed.

    Attributes:
        word: of its command line, which names that file.
        own: its configuration.
    """

    word: str
    own: Mapping[str, Any]

    @property
    def suffix(self) -> str:
        """The suffix of JSON."""
        return ".json"

    @property
    def shardings(self) -> Sequence[Sharding]:
        """The shardings of DeepSpeed."""
        return [sharding for sharding in SHARDINGS if sharding.engine is Engine.DEEPSPEED]

    def text(self, sharding: Sharding, kinds: Sequence[str]) -> str:
        """JSON, which does not depend on the blocks."""
        del kinds
        return json.dumps(deepspeed_config(self.own, sharding), indent=2) + "\n"

    def jobs(self, files: Sequence[Path], job: Job) -> list[Job | str]:
        """The program with another file on its command line."""
        program = job.program
        jobs: list[Job | str] = []
        for file in files:
            words = [
                argument.removesuffix(self.word) + str(file)
                if _names(argument, self.word)
                else argument
                for argument in program.arguments
            ]
            jobs.append(replace(job, program=replace(program, arguments=tuple(words))))
        return jobs


def _names(word: str, file: str) -> bool:
    """True if a word of a command line is a file, or an option with it: --deepspeed=ds.json."""
    return word.rpartition("=")[2] == file


def find_launched(job: Job) -> Launched | None:
    """The launcher's configuration of a program, if the search can vary it; None: there is none.

    Raises:
        SpecError: its configuration cannot be read, or its command line replaces parts of it.
    """
    words = job.program.argv
    for word in words:
        name = word.rpartition("=")[2]
        own = read_deepspeed_config(name)
        if own is not None:
            return DeepSpeedLaunched(name, own)
    launch = next((n for n, word in enumerate(words[:3]) if word in {"launch", _MODULE}), None)
    if launch and (words[launch] == _MODULE or Path(words[launch - 1]).name == "accelerate"):
        return _find_accelerate(job, launch + 1)
    return None


def _find_accelerate(job: Job, place: int) -> AccelerateLaunched:
    words = list(job.program.argv)
    script = job.program.arguments[job.program.arguments[0] == "-m"]
    options = words[place : words.index(script, place)]
    own: Mapping[str, Any] = {}
    for number, word in reversed([*enumerate(options, place)]):
        name, _, value = word.partition("=")
        if name == "--config_file":
            own = _read_config(value or words[number + 1], job.program.python)
            del words[number : number + (1 if value else 2)]
        elif name.startswith(_SAYS_HOW):
            raise SpecError(
                f"{name} says how the ranks share the training, which is what is looked for; leave "
                "it out, or put it into the file that --config_file names"
            )
    rank = job.options.rank
    defaults = {"mixed_precision": job.options.variables.get("ACCELERATE_MIXED_PRECISION", "no")}
    num_ranks = 1 if rank is None else rank.world_size
    return AccelerateLaunched(tuple(words), place, {**defaults, **own}, num_ranks)


def _read_config(file: str, python: str) -> Mapping[str, Any]:
    """A configuration of Accelerate, read by the YAML of the program's own environment."""
    done = subprocess.run(
        [python, "-c", _READ_YAML, file], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = "; ".join(done.stderr.strip().splitlines()[-1:])
        raise SpecError(f"the configuration {file!r} cannot be read: {reason}")
    config = json.loads(done.stdout)
    if not isinstance(config, dict):
        raise SpecError(f"the configuration {file!r} is {config!r}; expected names and values")
    return config


def fit_launched(
    trials: Trials,
    job: Job,
    launched: Launched,
    budget_bytes: int,
    limit: Limit,
    *,
    is_for_memory: bool = False,
) -> FitReport:
    """Finds the fastest configuration under which every rank of a job fits.

    Args:
        trials: makes the runs.
        job: its first rank, where memory is without end.
        launched: the configuration that it has.
        budget_bytes: of each rank's device.
        limit: of time.
        is_for_memory: find that which takes the least memory instead.
    """
    with run_directory() as directory:
        runs = _Runs(job, launched, trials, directory)
        search = ShardedSearch(
            runs.run, launched.text, job.device.gpu, launched.shardings, limit.is_late
        )
        num_gpus = 1 if job.options.rank is None else job.options.rank.world_size
        return replace(search.find(budget_bytes, is_for_memory=is_for_memory), num_gpus=num_gpus)


class _Runs:
    """Makes the runs that a search asks for; each configuration is written, and asked for, once."""

    def __init__(self, job: Job, launched: Launched, trials: Trials, directory: Path) -> None:
        self._job = job
        self._launched = launched
        self._trials = trials
        self._directory = directory
        self._jobs: dict[str, Job | str] = {"": job}

    def run(self, requests: Sequence[RunRequest]) -> list[RunReport | str]:
        """Runs these; of what cannot be started, why."""
        texts = [self._text(request) for request in requests]
        new = [text for text in dict.fromkeys(texts) if text not in self._jobs]
        suffix = self._launched.suffix
        files = [self._directory / f"{len(self._jobs) + n}{suffix}" for n in range(len(new))]
        for text, file in zip(new, files, strict=True):
            file.write_text(text, encoding="utf-8")
        if new:
            self._jobs |= dict(zip(new, self._launched.jobs(files, self._job), strict=True))
        answers: list[RunReport | str] = []
        jobs = []
        for text, request in zip(texts, requests, strict=True):
            job = self._jobs[text]
            if not isinstance(job, str):
                jobs.append(make_trial(job, request))
        reports = iter(self._trials.run(jobs))
        for text in texts:
            why = self._jobs[text]
            answers.append(why if isinstance(why, str) else next(reports))
        return answers

    def _text(self, request: RunRequest) -> str:
        if request.sharding is None:
            return ""
        is_done = request.plan is not None  # the plan does what the file cannot say
        sharding = replace(request.sharding, is_checkpointed=False) if is_done else request.sharding
        return self._launched.text(sharding, request.kinds)


# A sharding as a configuration of DeepSpeed: the program's own JSON with another ZeRO. Source:
# DeepSpeed 0.19, deepspeed/runtime/zero/config.py and offload_config.py.

# One of them is in each file that `deepspeed.initialize` takes.
_TELLING = {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization"}
_OPTIMIZER, _PARAMETERS = "offload_optimizer", "offload_param"


def read_deepspeed_config(word: str) -> dict[str, Any] | None:
    """Reads the configuration of DeepSpeed that a word of a command line names, or None."""
    path = Path(word)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        document = json.loads(read_bounded(path))
    except (OSError, ValueError) as error:
        raise SpecError(f"{word!r} is not JSON that can be read: {error}") from None
    return document if isinstance(document, dict) and document.keys() & _TELLING else None


def deepspeed_config(own: Mapping[str, Any], sharding: Sharding) -> dict[str, Any]:
    """The configuration with this sharding in place of its own.

    Checkpointing cannot be said in it: DeepSpeed's section of that name sets up only what a script
    asks of `deepspeed.checkpointing` itself. A plan does it.

    Raises:
        SpecError: it cannot be said there.
    """
    if sharding.engine is not Engine.DEEPSPEED or sharding.is_checkpointed:
        raise SpecError(f"{sharding.name} cannot be said in a configuration of DeepSpeed")
    zero = dict(own.get("zero_optimization") or {})
    offloads = {name: zero.pop(name, None) or {} for name in (_OPTIMIZER, _PARAMETERS)}
    zero.pop("cpu_offload", None)  # as versions before 0.4 had it
    zero["stage"] = sharding.zero_stage
    if sharding.on_host is not OnHost.NOTHING:
        zero[_OPTIMIZER] = _offload(offloads[_OPTIMIZER])
    if sharding.on_host is OnHost.ALL:
        zero[_PARAMETERS] = _offload(offloads[_PARAMETERS])
    config = {**own, "zero_optimization": zero}
    if sharding.on_host is not OnHost.NOTHING:
        # Else an optimizer that the script makes itself is refused.
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    return config


def _offload(own: Mapping[str, Any]) -> dict[str, Any]:
    """Where it goes: as in the program's own file, such as to NVMe, or to the host's memory."""
    is_asked = own.get("device", "none") != "none"
    return dict(own) if is_asked else {"device": "cpu", "pin_memory": True}

"""A scenario, as in the configuration, and the cases that its matrix makes of it.

[case.name for case in expand(scenario)]    # ["train/batch=8,gpu=l4", "train/batch=8,gpu=t4"]
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from ullage.ground.config.tables import (
    WRITTEN,
    Count,
    Seconds,
    Share,
    Whole,
    Word,
    Words,
    check_positive,
    parser,
    read_words,
)
from ullage.ground.errors import SpecError
from ullage.ground.files import is_directory
from ullage.ground.protocol.option import Program
from ullage.ground.protocol.plain import As, Example, From, Mark, Misfit, plain, read_at, show
from ullage.players.eager.training.recipe import Lora, Recipe
from ullage.players.inside.values.assume import Assumed
from ullage.players.phantom.rank import check_num_gpus, choose_ranks
from ullage.search.runs.variables import fill_in
from ullage.verbs.check.gate.budget import NO_BUDGET, Budget, Tolerance
from ullage.verbs.run.options import DISTINCT

GPU = "gpu"
PORT_NAME = "port"
_TRAFFIC = '"trace.csv", or a generator: "poisson:rate=2,prompt=1000,output=200"'


def _check_ready(path: str) -> str:
    if not path.startswith("/"):
        raise Misfit(f'is {path!r}; expected a path of the server, such as "/health"')
    return path


def _check_goodput(share: float) -> float:
    if not 0 < share <= 1:
        raise Misfit(f"is {100 * share:g} %; expected more than 0 % and 100 % at most")
    return share


def _check_assumptions(words: tuple[str, ...]) -> tuple[str, ...]:
    parser(Assumed.parse)(words)
    return words


@dataclass(frozen=True, slots=True)
class _RankKeys:
    world_size: Count | None = None
    local_world_size: Count | None = None
    rank: Whole | None = None
    ranks: Words | None = None

    def chosen(self) -> tuple[int, ...] | str:
        """The ranks that are played."""
        if self.rank is not None and self.ranks is not None:
            raise Misfit("and ranks are both there; keep one of them", "rank")
        if self.world_size is None:
            raise Misfit(
                "are of a job; give the number of its ranks, such as: world_size = 8", "ranks"
            )
        is_distinct = self.ranks == (DISTINCT,)
        if not is_distinct and not all(rank.isdecimal() for rank in self.ranks or ()):
            raise Misfit(f'is {self.ranks!r}; expected ranks = [0, 7] or "{DISTINCT}"', "ranks")
        ranks = (0,) if is_distinct else (*map(int, self.ranks or (self.rank or 0,)),)
        try:
            choose_ranks(ranks, self.world_size, self.local_world_size)
        except SpecError as error:
            raise Misfit(f": {error}", "world_size") from None
        return DISTINCT if is_distinct else ranks


@dataclass(frozen=True, slots=True)
class Replay:
    """A file of requests, and the function or server that answers them.

    Attributes:
        file: of a JSON object on each line; it and `users` may hold variables of the matrix.
        users: how many requests run at once.
        limit: only this many of the first; None: all.
        function: that is called, such as "serve.py:handle"; None where there is a server.
        url: that requests are sent to; {port} is one that is free. None where there is a function.
        ready: the path that says that the server is; None: when its port is open.
        ready_timeout_s, timeout_s: how long that, and an answer, may take.
        fields: what is sent with each request that has not its own.
    """

    file: Annotated[str, Example('"requests.jsonl"')]
    users: Annotated[Word, As("concurrency")] = "1"
    limit: Count | None = None
    function: Annotated[str | None, Example('"serve.py:handle"')] = None
    url: Annotated[str | None, Example('"http://127.0.0.1:{port}/v1/completions"')] = None
    ready: Annotated[str, _check_ready] | None = None
    ready_timeout_s: Count = 300
    timeout_s: Count = 300
    fields: Annotated[Mapping[str, Any], As("body")] = field(default_factory=dict)

    def filled_in(self, values: Mapping[str, str]) -> Replay:
        """The same with the values of variables."""
        return replace(self, file=fill_in(self.file, values), users=fill_in(self.users, values))

    def describe(self, command: str) -> str:
        """The command in the lock: "serve.py:handle < requests.jsonl, 8 users"."""
        first = "" if self.limit is None else f", the first {self.limit}"
        many = "1 user" if self.users == "1" else f"{self.users} users"
        return f"{command or self.function} < {self.file}{first}, {many}"


@dataclass(frozen=True, slots=True)
class Serving:
    """The traffic of a server, and what it must hold.

    Attributes:
        traffic: a file or a generator; it may hold variables of the matrix.
        slo: the objective, such as "ttft=1s,tpot=50ms"; None: every request must be answered.
        goodput_frac: the share of all requests that must meet it.
        least_tokens: that the cache must have; None: no limit but the lock's.
        command: the engine's, whose words are the scenario's.
    """

    traffic: Annotated[str, Example(_TRAFFIC)]
    slo: Annotated[str | None, Example('"ttft=1s,tpot=50ms"')] = None
    goodput_frac: Annotated[Share, _check_goodput, As("goodput")] = 0.99
    least_tokens: Count | None = None
    command: Annotated[tuple[str, ...], From(object), read_command, As("serve")] = ()

    def filled_in(self, values: Mapping[str, str]) -> Serving:
        """The same with the values of variables."""
        return replace(self, traffic=fill_in(self.traffic, values))

    def describe(self, command: str) -> str:
        """The command in the lock: "vllm serve MODEL < trace.csv"."""
        objective = "" if self.slo is None else f", {self.slo}"
        return f"{command} < {self.traffic}{objective}"


@dataclass(frozen=True, slots=True)
class Trained:
    """A model and how it is trained, in place of a program.

    Attributes:
        model: as `ullage estimate` finds it; a file is beside the configuration. It may hold
            variables of the matrix; what else the matrix has are keys of the recipe.
    """

    model: Annotated[str, Example('"llama-3.1-8b"')] = ""
    recipe: Annotated[Recipe, Mark.FLAT] = Recipe()  # noqa: RUF009 - it is frozen

    def filled_in(self, values: Mapping[str, str]) -> Trained:
        """The same with the values of variables."""
        changed = {
            name: int(text) if text.isdecimal() else text
            for name, text in values.items()
            if name in RECIPE_KEYS
        }
        recipe = read_at("matrix", partial(WRITTEN.read, Recipe), plain(self.recipe) | changed)
        return Trained(fill_in(self.model, values), recipe)

    def describe(self) -> str:
        """The command in the lock: "llama-3.1-8b, batch 4, length 1024"."""
        from ullage.players.eager.training.log import list_recipe

        usual = dict(list_recipe(asdict(Recipe(lora=Lora())))) | {"lora": "none", "lora rank": ""}
        asked = dict(list_recipe(asdict(self.recipe)))
        others = (f"{key} {text}" for key, text in asked.items() if usual[key] != text)
        return ", ".join((f"estimate {self.model}", *others))


RECIPE_KEYS: Final = frozenset(plain(Recipe()))
_COMMON: Final = frozenset({GPU, "matrix", "budget", "tolerance", "directory"})
# What runs in place of a program: how it is written, its own keys, and what it takes besides.
_KINDS: Final = {
    "serve": (
        "a server", "vllm serve llama-3.1-8b --max-model-len 16384",
        frozenset({"traffic", "slo", "goodput", "least_tokens"}),
        _COMMON | {"python", "env", "inputs", "timeout"},
    ),
    "model": ("a model", "llama-3.1-8b", RECIPE_KEYS, _COMMON),
}  # fmt: skip


def check_keys(table: Mapping[str, Any]) -> None:
    """Refuses keys of a server or a model without one, and with one those of other scenarios."""
    for kind, (what, example, own, beside) in _KINDS.items():
        for key in table:
            if key in own and kind not in table:
                raise Misfit(f'is for {what}; add {kind} = "{example}"', key)
            if kind in table and key not in own | beside | {kind}:
                raise Misfit(f"does not go with {kind}; leave it out", key)
    if "goodput" in table and "slo" not in table:
        raise Misfit('needs an objective; add slo = "ttft=1s,tpot=50ms"', "goodput")
    if "model" in table and "growth_per_step" in table.get("budget", {}):
        raise Misfit("is not known of an estimate; leave it out", "budget", "growth_per_step")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program, how it is run, and its memory budget.

    Attributes:
        name: by which it is called.
        line: of the configuration, where it begins.
        command: its words, as they would follow `ullage run --`; {NAME} is a variable's place.
        gpus: names of the catalogue, each a case of its own; none: an H100-80 without a limit.
        directory: where it runs.
        python: the interpreter; None is that of ullage.
        num_devices, world_size, local_world_size: as for `ullage.run`.
        ranks: those that are played, or "distinct"; empty where the program is not a rank.
        env: environment variables, in addition to ullage's own environment.
        matrix: the values of each variable.
        inputs: files that the result depends on, besides those that Python reads.
        replay: the requests that are sent to it, if any.
        serving: its traffic, where it is an engine that is served in virtual time.
        trained: a model that is estimated, where no program runs.
        timeout_s: how long a case may run before it is ended.
        tolerance: the allowed increase of a peak over the lock; None: the default.
    """

    name: Annotated[str, Mark.NAME]
    line: Annotated[int, Mark.NO_KEY] = 1
    command: Annotated[tuple[str, ...], From(object), read_command, Example('"train.py"')] = ()
    directory: Annotated[Path, check_directory, Example('"training"')] = Path()
    gpus: Annotated[Words, As(GPU), Example('"h100-80gb"')] = ()
    memory: str | int | None = None
    capability: Annotated[str | None, Example('"8.9"')] = None
    python: Annotated[Program | None, Example('".venv/bin/python"')] = None
    num_devices: Annotated[Annotated[int, parser(check_num_gpus)] | None, As("gpus")] = None
    world_size: Count | None = None
    local_world_size: Count | None = None
    ranks: Annotated[tuple[int, ...] | str, Mark.FLAT, From(_RankKeys), _RankKeys.chosen] = ()
    alloc_conf: Annotated[str | None, Example('"expandable_segments:True"')] = None
    steps: Count | None = None
    real_init: bool = False
    dummy_weights: bool = False
    values: bool = True
    assume: Annotated[Words, _check_assumptions] = ()
    env: Mapping[Annotated[str, From(object), check_variable], Word] = field(default_factory=dict)
    matrix: Mapping[str, Annotated[tuple[str, ...], From(object), read_values]] = field(
        default_factory=dict
    )
    inputs: Annotated[Words, check_patterns] = ()
    replay: Annotated[Replay | None, As("requests")] = None
    serving: Annotated[Serving | None, Mark.FLAT] = None
    trained: Annotated[Trained | None, Mark.FLAT] = None
    budget: Budget = NO_BUDGET
    tolerance: Tolerance | None = None
    timeout_s: Annotated[Seconds, check_positive, As("timeout")] = 30 * 60

    def filled_in(self, values: Mapping[str, str]) -> Scenario:
        """The same with the values of variables."""
        return replace(
            self,
            command=tuple(fill_in(word, values) for word in self.command),
            env={name: fill_in(text, values) for name, text in self.env.items()},
            replay=self.replay and self.replay.filled_in(values),
            serving=self.serving and self.serving.filled_in(values),
            trained=self.trained and self.trained.filled_in(values),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a scenario, in which variables have their values."""

    name: str
    scenario: Scenario
    gpu: str | None

    @property
    def text(self) -> str:
        """The command, as it is written in the lock."""
        scenario, command = self.scenario, shlex.join(self.scenario.command)
        if scenario.trained is not None:
            return scenario.trained.describe()
        about = scenario.serving or scenario.replay
        return command if about is None else about.describe(command)


def expand(scenario: Scenario) -> tuple[Case, ...]:
    """The cases of a scenario: every combination of the matrix and of several GPUs."""
    variables = dict(scenario.matrix)
    if len(scenario.gpus) > 1:
        variables[GPU] = scenario.gpus
    only = scenario.gpus[0] if scenario.gpus else None
    cases = []
    for values in itertools.product(*variables.values()):
        assignment = dict(zip(variables, values, strict=True))
        varied = ",".join(f"{name}={value}" for name, value in assignment.items())
        name = f"{scenario.name}/{varied}" if varied else scenario.name
        cases.append(Case(name, scenario.filled_in(assignment), assignment.get(GPU, only)))
    return tuple(cases)


def variables_in(text: str) -> set[str]:
    """The names in braces in a text; not all need be variables of a matrix."""
    return set(re.findall(r"\{(\w+)\}", text))


_NOWHERE = "/dev/null"  # a pattern is tried where nothing can match


def read_command(value: object) -> tuple[str, ...]:
    """A list of words, or a text that is split as a shell would."""
    words = read_words(value)
    try:
        return tuple(shlex.split(words[0])) if isinstance(value, str) else words
    except ValueError as error:
        raise Misfit(f"cannot be split into words: {error}") from None


def check_directory(path: Path) -> Path:
    """A directory that is there."""
    if not is_directory(path):
        raise Misfit(f"is {str(path)!r}, and there is no such directory")
    return path


def check_variable(name: str) -> str:
    """The name of a variable, as an operating system takes it."""
    if not name or "=" in name or "\0" in name:
        raise Misfit("is not a variable; expected a name without = and NUL, such as SEED")
    return name


def check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns of files below the scenario's directory."""
    for pattern in patterns:
        try:
            is_below = not Path(pattern).is_absolute()
            list(Path(_NOWHERE).glob(pattern))
        except (ValueError, NotImplementedError, IndexError):
            is_below = False
        if not is_below:
            raise Misfit(
                f"has {pattern!r}, which is not a pattern of files below the scenario's directory; "
                'write, for example: inputs = ["data/*.bin"]'
            )
    return patterns


def read_values(value: object) -> tuple[str, ...]:
    """The values of a variable of the matrix."""
    if not isinstance(value, list) or not value:
        raise Misfit(f"is {show(value)}; expected a list, such as: [1, 2, 4]")
    values = read_words(value)
    twice = next((value for value, count in Counter(values).items() if count > 1), None)
    if twice is not None:
        raise Misfit(f"has {twice!r} twice; give each value once")
    return values

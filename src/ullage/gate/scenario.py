"""A scenario, as the configuration has it, and the cases that its matrix makes of it.

[case.name for case in expand(scenario)]    # ["train/batch=8,gpu=l4", "train/batch=8,gpu=t4"]
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ullage.gate.budget import NO_BUDGET, Amount, Budget

DISTINCT = "distinct"
GPU = "gpu"
PORT_NAME = "port"


@dataclass(frozen=True, slots=True)
class Replay:
    """A file of requests, and the function or server that answers them.

    Attributes:
        file: of a JSON object on each line; it and `users` may hold variables of the matrix.
        users: how many requests run at once.
        limit: only so many of the first; None is all.
        function: that is called, such as "serve.py:handle"; None where there is a server.
        url: that requests are sent to; {port} is one that is free. None where there is a function.
        ready: the path that says that the server is; None: when its port is open.
        ready_timeout_s, timeout_s: how long that, and an answer, may take.
        fields: what is sent with each request that has not its own.
    """

    file: str
    users: str = "1"
    limit: int | None = None
    function: str | None = None
    url: str | None = None
    ready: str | None = None
    ready_timeout_s: int = 300
    timeout_s: int = 300
    fields: Mapping[str, Any] = field(default_factory=dict)

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
    """

    traffic: str
    slo: str | None = None
    goodput_frac: float = 0.99
    least_tokens: int | None = None

    def describe(self, command: str) -> str:
        """The command in the lock: "vllm serve MODEL < trace.csv"."""
        objective = "" if self.slo is None else f", {self.slo}"
        return f"{command} < {self.traffic}{objective}"


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
        ranks: those that are played, or "distinct"; empty where the program is no rank.
        env: environment variables, in addition to ullage's own environment.
        matrix: the values of each variable.
        inputs: files that the result depends on, besides those that Python reads.
        replay: the requests that are sent to it, if any.
        serving: its traffic, where it is an engine that is served in virtual time.
        timeout_s: how long a case may run before it is ended.
        tolerance: the allowed increase of a peak over the lock; None: the default.
    """

    name: str
    line: int
    command: tuple[str, ...]
    directory: Path
    gpus: tuple[str, ...] = ()
    memory: str | int | None = None
    capability: str | None = None
    python: str | None = None
    num_devices: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    ranks: tuple[int, ...] | str = ()
    alloc_conf: str | None = None
    steps: int | None = None
    real_init: bool = False
    dummy_weights: bool = False
    values: bool = True
    assume: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    matrix: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    replay: Replay | None = None
    serving: Serving | None = None
    budget: Budget = NO_BUDGET
    tolerance: Amount | None = None
    timeout_s: float = 30 * 60


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a scenario: its command and environment with the values of its variables."""

    name: str
    scenario: Scenario
    gpu: str | None
    command: tuple[str, ...]
    env: Mapping[str, str]
    replay: Replay | None = None
    serving: Serving | None = None

    @property
    def text(self) -> str:
        """The command, as it is written in the lock."""
        command = shlex.join(self.command)
        if self.serving is not None:
            return self.serving.describe(command)
        return command if self.replay is None else self.replay.describe(command)


def expand(scenario: Scenario) -> tuple[Case, ...]:
    """The cases of a scenario: every combination of the matrix and of several GPUs."""
    variables = dict(scenario.matrix)
    if len(scenario.gpus) > 1:
        variables[GPU] = scenario.gpus
    cases = []
    for values in itertools.product(*variables.values()):
        values_by_name = dict(zip(variables, values, strict=True))
        varied = ",".join(f"{name}={value}" for name, value in values_by_name.items())
        only = scenario.gpus[0] if scenario.gpus else None
        cases.append(
            Case(
                name=f"{scenario.name}/{varied}" if varied else scenario.name,
                scenario=scenario,
                gpu=values_by_name.get(GPU, only),
                command=tuple(fill_in(word, values_by_name) for word in scenario.command),
                env={name: fill_in(text, values_by_name) for name, text in scenario.env.items()},
                replay=None
                if scenario.replay is None
                else scenario.replay.filled_in(values_by_name),
                serving=None
                if scenario.serving is None
                else replace(
                    scenario.serving, traffic=fill_in(scenario.serving.traffic, values_by_name)
                ),
            )
        )
    return tuple(cases)


def variables_in(text: str) -> set[str]:
    """The names in braces in a text; not all need be variables of a matrix."""
    return set(re.findall(r"\{(\w+)\}", text))


def fill_in(text: str, values: Mapping[str, str]) -> str:
    """A text with its variables' values; other braces are the program's own."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)

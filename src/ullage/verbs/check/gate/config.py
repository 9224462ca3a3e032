"""The configuration: ullage.toml, or [tool.ullage] of pyproject.toml.

    [scenario.train]
    command = "train.py --batch-size {batch}"
    gpu = "h100-80gb"
    matrix = { batch = [8, 16] }
    budget = { headroom = "5%" }

    configuration = load_configuration(Path.cwd())
    configuration.scenarios["train"].command

All that can be known to be wrong before anything runs is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from ullage.ground.config.project_file import CONFIG_NAME, PROJECT_NAME, open_configuration
from ullage.ground.config.tables import name_with, parser
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import Misfit, read_at
from ullage.ground.units import format_bytes
from ullage.players.phantom.device import PhantomDevice, choose_device
from ullage.search.runs.variables import check_number
from ullage.verbs import SECTIONS
from ullage.verbs.check.gate.budget import Budget
from ullage.verbs.check.gate.estimated import check_trained
from ullage.verbs.check.gate.lock import LOCK_NAME
from ullage.verbs.check.gate.requests import check_contradictions, check_replay
from ullage.verbs.check.gate.scenario import (
    GPU,
    RECIPE_KEYS,
    Scenario,
    check_keys,
    expand,
    variables_in,
)
from ullage.verbs.check.gate.serving import check_serving

_EXAMPLE = '[scenario.train] with command = "train.py" and gpu = "h100-80gb"'


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration file, and its scenarios by name."""

    path: Path
    scenarios: Mapping[str, Scenario]

    @property
    def lock_path(self) -> Path:
        """The lock file: next to the configuration."""
        return self.path.with_name(LOCK_NAME)


@dataclass(frozen=True, slots=True)
class _Sections:
    """The file without the options of verbs; [watch] is read by operate/watch/alerts/rules_file.py,
    and [front] by operate/front/settings.py.
    """

    scenario: Mapping[Annotated[str, name_with(".", 1000)], Scenario] = field(default_factory=dict)
    watch: Mapping[str, Any] = field(default_factory=dict)
    front: Mapping[str, Any] = field(default_factory=dict)


def load_configuration(start: Path, path: Path | None = None) -> Configuration:
    """The configuration of a directory, or of the nearest one above that has one.

    Args:
        start: where the search begins.
        path: a file to read instead.

    Raises:
        SpecError: there is none, or something in it is wrong.
    """
    opened = open_configuration(start, path)
    if opened is None:
        raise SpecError(
            f"there is no {CONFIG_NAME} in {str(start.absolute())!r} or above, and no "
            f"[tool.ullage] in a {PROJECT_NAME}; write one: {_EXAMPLE}"
        )
    source, table = opened
    table = {key: value for key, value in table.items() if key not in SECTIONS}
    scenarios = {}
    for name, scenario in source.read(_Sections, (), table).scenario.items():
        with source.at("scenario", name):
            placed = replace(
                scenario,
                line=source.line("scenario", name),
                directory=source.path.parent / scenario.directory,
            )
            scenarios[name] = _checked(placed, table["scenario"][name])
    if not scenarios:
        raise SpecError(f"{source.path} has no scenario; write one, such as {_EXAMPLE}")
    return Configuration(source.path, scenarios)


def _checked(scenario: Scenario, table: Mapping[str, Any]) -> Scenario:
    """The scenario of a table, checked for missing and contradictory settings."""
    check_contradictions(scenario.replay, table)
    check_keys(table)
    if scenario.serving is not None:
        scenario = replace(scenario, command=scenario.serving.command)
    if not scenario.command and scenario.replay is None and scenario.trained is None:
        raise Misfit('is missing; write what to run: command = "train.py"', "command")
    matrix = dict(scenario.matrix)
    if GPU in matrix:
        if scenario.gpus:
            raise Misfit("and matrix.gpu are both there; keep one of them", GPU)
        scenario = replace(scenario, gpus=matrix.pop(GPU), matrix=matrix)
    replay = scenario.replay
    texts = (*scenario.command, *scenario.env.values(),
             *((replay.file, replay.users) if replay is not None else ()),
             scenario.serving.traffic if scenario.serving is not None else "",
             scenario.trained.model if scenario.trained is not None else "")  # fmt: skip
    used = {name for text in texts for name in variables_in(text)}
    used |= RECIPE_KEYS if scenario.trained is not None else set()
    for name in matrix:
        if name not in used and scenario.trained is not None:
            raise Misfit(
                f"has {name!r}; expected keys of the recipe, or {{NAME}}s of model", "matrix"
            )
        if name not in used:
            raise Misfit(
                f"has {name!r}, and neither the command nor env has {{{name}}}; write it where its "
                f"values go, such as: --{name} {{{name}}}",
                "matrix",
            )
    if scenario.ranks and scenario.num_devices is not None:
        raise Misfit("is for one process; ranks have those of local_world_size", "gpus")
    num_cases = math.prod(map(len, (scenario.gpus or (None,), *matrix.values())))
    read_at("matrix", parser(check_number), num_cases)
    for gpu in scenario.gpus or (None,):
        _check_budget(scenario.budget, _choose_device(scenario, gpu))
    has_more = (replay, scenario.serving, scenario.trained) != (None, None, None)
    for case in expand(scenario) if has_more else ():
        check_replay(case)
        check_serving(case)
        check_trained(case)
    return scenario


def _choose_device(scenario: Scenario, gpu: str | None) -> PhantomDevice:
    """The device of a case; an error names the key that causes it."""
    options: dict[str, Any] = {}
    for key, value in (
        (GPU, gpu),
        ("memory", scenario.memory),
        ("capability", scenario.capability),
    ):
        options[key] = value
        try:
            device = choose_device(**options)
        except SpecError as error:
            raise Misfit(f": {error}", key) from None
    return device


def _check_budget(budget: Budget, device: PhantomDevice) -> None:
    """Refuses budgets that every run meets, or that none can."""
    if budget.headroom is not None and device.is_unlimited:
        raise Misfit('asks for headroom on no GPU; name one, such as: gpu = "h100-80gb"', "budget")
    total, context = device.gpu.total_bytes, device.gpu.context_high_bytes
    if budget.headroom is not None and budget.headroom.of(total) > total - context:
        raise Misfit(
            f"asks for a headroom of {format_bytes(budget.headroom.of(total))}, and without any "
            f"program {device.gpu.slug} has {format_bytes(total - context)}; ask for less",
            "budget",
        )
    if budget.max_used_bytes is not None and budget.max_used_bytes <= context:
        raise Misfit(
            f"allows {format_bytes(budget.max_used_bytes)} of the whole device, and the driver's "
            f"context alone takes up to {format_bytes(context)}; allow more",
            "budget",
        )
    limits = (budget.max_allocated_bytes, budget.max_reserved_bytes, budget.max_used_bytes)
    for limit in limits:
        if limit is not None and limit > total and not device.is_unlimited:
            raise Misfit(
                f"allows {format_bytes(limit)}, and {device.gpu.slug} has {format_bytes(total)}: "
                "nothing could exceed it; allow less",
                "budget",
            )

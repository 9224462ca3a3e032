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

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ullage.configuration.project_file import (
    CONFIG_NAME,
    PROJECT_NAME,
    open_configuration,
)
from ullage.configuration.sections import Section, Source
from ullage.errors import SpecError
from ullage.gate.budget import Amount, Budget
from ullage.gate.lock import LOCK_NAME
from ullage.gate.places import (
    read_directory,
    read_environment,
    read_inputs,
    read_python,
    read_timeout,
)
from ullage.gate.requests import check_contradictions, check_replay, read_replay
from ullage.gate.scenario import DISTINCT, GPU, Scenario, expand, variables_in
from ullage.gate.serving import check_serving, read_serving, serve_words
from ullage.parsing import show_value
from ullage.phantom.device import PhantomDevice, choose_device
from ullage.phantom.rank import choose_ranks
from ullage.record.values.assume import Assumed
from ullage.units import format_bytes, parse_bytes

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
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
    top = Section(source, (), table)
    top.inner("watch").items()  # for watch/alerts/rules_file.py
    top.inner("front").items()  # for front/settings.py
    scenarios = {
        name: _parse_scenario(name, top_table, source)
        for name, top_table in top.inner("scenario").items().items()
    }
    top.refuse_rest()
    if not scenarios:
        raise SpecError(f"{source.path} has no scenario; write one, such as {_EXAMPLE}")
    return Configuration(source.path, scenarios)


def _parse_scenario(name: str, table: object, source: Source) -> Scenario:
    keys = ("scenario", name)
    if not isinstance(table, dict):
        raise source.error(
            keys, f"scenario.{name} is {show_value(table)}; expected a table: {_EXAMPLE}"
        )
    if not _NAME.fullmatch(name):
        raise source.error(
            keys, f"{name!r} is not a name; expected letters, digits, and any of _ . -"
        )
    section = Section(source, keys, table)
    root = source.path.parent
    replay = read_replay(section)
    if replay is not None:
        check_contradictions(section, table, replay)
    serving = read_serving(section)
    directory = read_directory(section, root)
    scenario = Scenario(
        name=name,
        line=section.line,
        command=_command(section) if serving is None else serve_words(section),
        directory=directory,
        **_device(section),
        python=read_python(section, root),
        **_ranks(section),
        **_options(section),
        env=read_environment(section),
        matrix=_matrix(section),
        inputs=read_inputs(section),
        timeout_s=read_timeout(section),
        replay=replay,
        serving=serving,
        **_limits(section),
    )
    section.refuse_rest()
    scenario = _checked(scenario, section)
    for case in expand(scenario) if replay is not None or serving is not None else ():
        check_replay(case, section)
        check_serving(case, section)
    return scenario


def _list(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _command(section: Section) -> tuple[str, ...]:
    value = section.words("command") or []
    if isinstance(value, list):
        return tuple(value)
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise section.error("command", f"cannot be split into words: {error}") from None


def _device(section: Section) -> dict[str, Any]:
    return {
        "gpus": tuple(_list(section.words(GPU))),
        "memory": section.size("memory"),
        "capability": section.text("capability", "8.9"),
        "num_devices": section.number("gpus", 1),
    }


def _ranks(section: Section) -> dict[str, Any]:
    world_size = section.number("world_size", 1)
    local = section.number("local_world_size", 1)
    rank, ranks = section.number("rank", 0), section.words("ranks")
    if rank is not None and ranks is not None:
        raise section.error("rank", "and ranks are both there; keep one of them")
    if world_size is None and (local is not None or rank is not None or ranks is not None):
        raise section.error(
            "ranks", "are of a job; give the number of its ranks, such as: world_size = 8"
        )
    if world_size is None:
        return {}
    if ranks == DISTINCT:
        chosen: tuple[int, ...] | str = DISTINCT
    elif isinstance(ranks, str) or not all(rank.isdecimal() for rank in ranks or ()):
        raise section.error("ranks", f'is {ranks!r}; expected ranks = [0, 7] or "{DISTINCT}"')
    else:
        chosen = tuple(map(int, ranks)) if ranks else (rank or 0,)
    try:
        choose_ranks((0,) if isinstance(chosen, str) else chosen, world_size, local)
    except SpecError as error:
        raise section.error("world_size", f": {error}") from None
    return {"world_size": world_size, "local_world_size": local, "ranks": chosen}


def _options(section: Section) -> dict[str, Any]:
    assume = tuple(_list(section.words("assume")))
    try:
        Assumed.parse(assume)
    except SpecError as error:
        raise section.error("assume", f": {error}") from None
    return {
        "alloc_conf": section.text("alloc_conf", "expandable_segments:True"),
        "steps": section.number("steps", 1),
        "real_init": section.switch("real_init", default=False),
        "dummy_weights": section.switch("dummy_weights", default=False),
        "values": section.switch("values", default=True),
        "assume": assume,
    }


def _matrix(section: Section) -> dict[str, tuple[str, ...]]:
    inner = section.inner("matrix")
    choices: dict[str, tuple[str, ...]] = {}
    for name in list(inner.names):
        values = inner.words(name)
        if not isinstance(values, list) or not values:
            raise inner.error(name, f"is {values!r}; expected a list, such as: {name} = [1, 2, 4]")
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise inner.error(name, f"has {twice!r} twice; give each value once")
        choices[name] = tuple(values)
    return choices


def _limits(section: Section) -> dict[str, Any]:
    inner = section.inner("budget")
    sizes = {name: _size(inner, name) for name in ("max_allocated", "max_reserved", "max_used")}
    budget = Budget(
        **{f"{name}_bytes": size for name, size in sizes.items()},
        headroom=_amount(inner, "headroom"),
        growth_bytes=_size(inner, "growth_per_step"),
    )
    inner.refuse_rest()
    return {"budget": budget, "tolerance": _amount(section, "tolerance")}


def _size(section: Section, key: str) -> int | None:
    value = section.size(key)
    try:
        return None if value is None else parse_bytes(value)
    except SpecError as error:
        raise section.error(key, f": {error}") from None


def _amount(section: Section, key: str) -> Amount | None:
    value = section.size(key)
    try:
        return None if value is None else Amount.parse(value)
    except SpecError as error:
        raise section.error(key, f": {error}") from None


def _checked(scenario: Scenario, section: Section) -> Scenario:
    """The scenario, checked for missing and contradictory settings."""
    if not scenario.command and scenario.replay is None:
        raise section.error("command", 'is missing; write what to run: command = "train.py"')
    matrix = dict(scenario.matrix)
    if GPU in matrix:
        if scenario.gpus:
            raise section.error(GPU, "and matrix.gpu are both there; keep one of them")
        scenario = replace(scenario, gpus=matrix.pop(GPU), matrix=matrix)
    replay = scenario.replay
    texts = (*scenario.command, *scenario.env.values(),
             *((replay.file, replay.users) if replay is not None else ()),
             scenario.serving.traffic if scenario.serving is not None else "")  # fmt: skip
    used = {name for text in texts for name in variables_in(text)}
    for name in matrix:
        if name not in used:
            raise section.error(
                "matrix",
                f"has {name!r}, and neither the command nor env has {{{name}}}; write it where its "
                f"values go, such as: --{name} {{{name}}}",
            )
    if scenario.ranks and scenario.num_devices is not None:
        raise section.error("gpus", "is for one process; ranks have those of local_world_size")
    for gpu in scenario.gpus or (None,):
        _check_budget(scenario.budget, _choose_device(scenario, gpu, section), section)
    return scenario


def _choose_device(scenario: Scenario, gpu: str | None, section: Section) -> PhantomDevice:
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
            raise section.error(key, f": {error}") from None
    return device


def _check_budget(budget: Budget, device: PhantomDevice, section: Section) -> None:
    """Refuses budgets that every run meets, or that none can."""
    if budget.headroom is not None and device.is_unlimited:
        raise section.error(
            "budget", 'asks for headroom on no GPU; name one, such as: gpu = "h100-80gb"'
        )
    total, context = device.gpu.total_bytes, device.gpu.context_high_bytes
    if budget.headroom is not None and budget.headroom.of(total) > total - context:
        raise section.error(
            "budget",
            f"asks for a headroom of {format_bytes(budget.headroom.of(total))}, and without any "
            f"program {device.gpu.slug} has {format_bytes(total - context)}; ask for less",
        )
    if budget.max_used_bytes is not None and budget.max_used_bytes <= context:
        raise section.error(
            "budget",
            f"allows {format_bytes(budget.max_used_bytes)} of the whole device, and the driver's "
            f"context alone takes up to {format_bytes(context)}; allow more",
        )
    limits = (budget.max_allocated_bytes, budget.max_reserved_bytes, budget.max_used_bytes)
    for limit in limits:
        if limit is not None and limit > total and not device.is_unlimited:
            raise section.error(
                "budget",
                f"allows {format_bytes(limit)}, and {device.gpu.slug} has {format_bytes(total)}: "
                "nothing could exceed it; allow less",
            )

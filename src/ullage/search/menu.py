"""The menu of a search: the techniques of the catalogue that it may use, each with the settings
that are worth a run.

A technique for modules is a *treatment* of blocks. A technique for the optimizer or the whole
program is a *move*; a *setting* is a set of compatible moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Action, Place, Semantics, Technique, Value
from ullage.ground.errors import PlanError

Actions = tuple[Action, ...]

# Two techniques that help each other on one module: checkpointing keeps only the inputs, and these
# are offloaded to the host.
_PAIRS = (("checkpoint", "offload_activations"),)
# Techniques that only go with a certain way to share a training among ranks.
_LAYOUTS = (("data_parallel", "zero_optimizer"),)
_ORDER = tuple(Semantics)


def treatments(allowed: Semantics, paths: Sequence[str]) -> Iterator[Actions]:
    """Each treatment, applied to all of these modules."""
    usable = [technique for technique in _usable(allowed) if technique.place is Place.MODULES]
    for technique in usable:
        for way in _ways(technique):
            yield (Action(technique.name, tuple(paths), way),)
    names = {technique.name for technique in usable}
    for pair in _PAIRS:
        if names.issuperset(pair):
            yield tuple(Action(name, tuple(paths)) for name in pair)


def moves(allowed: Semantics) -> Iterator[Actions]:
    """Each move by itself."""
    for technique in _usable(allowed):
        if technique.place is not Place.MODULES:
            for way in _ways(technique):
                yield (Action(technique.name, (), way),)


def variables(allowed: Semantics) -> Iterator[Mapping[str, str]]:
    """The environment variables that moves need before a program starts."""
    for (action,) in moves(allowed):
        make_variables = TECHNIQUES[action.technique].variables
        if make_variables is not None:
            yield make_variables(action)


def settings(chosen: Sequence[Action]) -> Iterator[Actions]:
    """All sets of compatible moves; the empty one first."""
    actionses: list[Actions] = [()]
    for name in dict.fromkeys(action.technique for action in chosen):
        ways = [action for action in chosen if action.technique == name]
        more = [(*some, way) for some in actionses for way in ways]
        actionses += [some for some in more if go_together(some)]
    yield from actionses


def go_together(some: Sequence[Action]) -> bool:
    """True if moves can be in one plan."""
    names = [action.technique for action in some]
    excluded = {other for name in names for other in TECHNIQUES[name].excludes}
    return len(set(names)) == len(names) and not excluded.intersection(names)


def are_exclusive(action: Action, other: Action) -> bool:
    """True if one of two techniques excludes the other."""
    first, second = TECHNIQUES[action.technique], TECHNIQUES[other.technique]
    return second.name in first.excludes or first.name in second.excludes


def layouts(paths: Sequence[str]) -> Iterator[Actions]:
    """Each way to share a training among ranks.

    Args:
        paths: the modules that are sharded one by one.
    """
    for technique in TECHNIQUES.values():
        # Techniques that split one batch among ranks are left out: their step does one batch only.
        has_own_batches = technique.semantics is Semantics.TRAINING
        if technique.place is Place.RANKS and has_own_batches:
            modules = tuple(paths) if technique.names_modules else ()
            for way in _ways(technique):
                yield (Action(technique.name, modules, way),)
    for pair in _LAYOUTS:
        yield tuple(Action(name) for name in pair)


def _usable(allowed: Semantics) -> Iterator[Technique]:
    for technique in TECHNIQUES.values():
        if technique.place is Place.RANKS or technique.needs_ranks or technique.is_for_chains:
            continue
        if _ORDER.index(technique.semantics) <= _ORDER.index(allowed):
            yield technique


def _ways(technique: Technique) -> Iterator[Mapping[str, Value]]:
    """The settings of a technique that are worth a run. Its defaults are left out where they lack a
    setting that the technique requires.
    """
    for way in ({}, *technique.variants):
        try:
            if technique.variables is not None:
                technique.variables(Action(technique.name, (), way))
        except PlanError:
            continue
        yield way

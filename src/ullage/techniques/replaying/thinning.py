"""Makes a model smaller: of the modules in a list that are alike and get the same actions, only a
few remain.

    with thinned(root, actions) as thin:
        thin.actions        # with the new paths of the modules
        thin.stands_for     # for each path of the plan, the path of a module that is alike
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ullage.record.owners.module_trees import join, paths
from ullage.techniques.technique import Action

_LISTS = ("ModuleList", "Sequential")
# What tells one of several layers from another, and changes nothing that it computes.
_NUMBERS = ("idx", "index", "layer", "id", "block")

_Kind = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Thin:
    """What is left of a model.

    Attributes:
        actions: those of the plan, on what is left.
        stands_for: by each path that the plan names, the path of a module in the model as it is
            now that is alike and treated alike.
        num_left_out: modules that are not there.
    """

    actions: tuple[Action, ...]
    stands_for: Mapping[str, str]
    num_left_out: int


@contextmanager
def thinned(root: Any, actions: Sequence[Action], num_alike: int | None = 2) -> Iterator[Thin]:
    """While this lasts, the model has the fewest modules that a plan can be replayed with.

    num_alike: how many stay of those that are alike and are treated alike; None: all.
    """
    kinds = _kinds(root, actions)
    before = []
    new_path, left_out = dict[str, str | None](), 0
    try:
        for path, module in list(paths(root)):
            if num_alike is None or type(module).__name__ not in _LISTS:
                continue
            staying = _staying(path, module, kinds, num_alike)
            if len(staying) < len(module._modules):
                before.append((module, module._modules))
                left_out += len(module._modules) - len(staying)
                for name in module._modules:
                    new_path[join(path, name)] = None
                for number, name in enumerate(staying):
                    new_path[join(path, name)] = join(path, str(number))
                children = [module._modules[name] for name in staying]
                module._modules = type(module._modules)(
                    (str(number), child) for number, child in enumerate(children)
                )
        renamed = {path: _renamed(path, new_path) for path in kinds}
        yield Thin(
            tuple(
                replace(
                    action, modules=tuple(new for path in action.modules if (new := renamed[path]))
                )
                for action in actions
            ),
            _stands_for(kinds, renamed, actions),
            left_out,
        )
    finally:
        for module, children in before:
            module._modules = children


def _kinds(root: Any, actions: Sequence[Action]) -> dict[str, _Kind]:
    """Of each module, what it is and how it and all in it are treated."""
    treated: dict[str, list[tuple[str, str]]] = {}
    for action in actions:
        for path in action.modules:
            treated.setdefault(path, []).append((action.technique, str(action.settings)))
    kinds = {}
    for path, module in paths(root):
        inside = f"{path}." if path else ""
        within = sorted(
            (other.removeprefix(inside), *done)
            for other, done in treated.items()
            if other.startswith(inside)
        )
        kinds[path] = (*structure(module), tuple(treated.get(path, ())), tuple(within))
    return kinds


def structure(module: Any) -> tuple[Any, ...]:
    """What tells a module from others: classes, shapes and settings of all in it."""
    parts = [(path, type(part).__name__, *_settings(part)) for path, part in module.named_modules()]
    tensors = [
        (name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if not getattr(tensor, "is_lazy", False)
    ]
    return tuple(parts), tuple(tensors)


def _settings(part: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(part).items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and any(word in name for word in _NUMBERS):
            continue
        if isinstance(value, bool | int | float | str):
            yield name, value


def _staying(path: str, module: Any, kinds: Mapping[str, _Kind], num_alike: int) -> list[str]:
    """The names of the modules of a list that stay; what has no parameters stays."""
    count: dict[_Kind, int] = {}
    staying = []
    for name, child in module._modules.items():
        kind = kinds.get(join(path, name))
        if child is not None and kind is not None and next(child.parameters(), None) is not None:
            count[kind] = count.get(kind, 0) + 1
            if count[kind] > num_alike:
                continue
        staying.append(name)
    return staying


def _renamed(path: str, new_path: Mapping[str, str | None]) -> str | None:
    """The path that a module has meanwhile; None: it is not there."""
    name, rest = path, ""
    while name:
        if name in new_path:
            to = new_path[name]
            if to is None:
                return None
            return _renamed_above(to, rest, new_path)
        name, _, last = name.rpartition(".")
        rest = join(last, rest)
    return path


def _renamed_above(path: str, rest: str, new_path: Mapping[str, str | None]) -> str | None:
    """A path of which the last list is renamed: those that hold that list may be too."""
    parent, _, last = path.rpartition(".")
    above = _renamed(parent, new_path) if parent else ""
    return None if above is None else join(join(above, last), rest)


def _stands_for(
    kinds: Mapping[str, _Kind], renamed: Mapping[str, str | None], actions: Sequence[Action]
) -> dict[str, str]:
    there: dict[_Kind, str] = {}
    for path, to in renamed.items():
        if to is not None:
            there.setdefault(kinds[path], to)
    module_paths = [path for action in actions for path in action.modules]
    return {path: there[kinds[path]] for path in module_paths if kinds[path] in there}

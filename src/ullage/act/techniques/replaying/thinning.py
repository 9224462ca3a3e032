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

from ullage.act.techniques.technique import Action
from ullage.players.inside.owners.module_trees import join, paths

_LISTS = ("ModuleList", "Sequential")
# Attributes that distinguish layers of a list without an effect on results.
_NUMBERS = ("idx", "index", "layer", "id", "block")

_Kind = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Thin:
    """A thinned model.

    Attributes:
        actions: the actions of the plan, on the modules that remain.
        stands_for: for each path of the plan, the path of a remaining module that is alike and has
            the same actions.
        num_left_out: the number of removed modules.
    """

    actions: tuple[Action, ...]
    stands_for: Mapping[str, str]
    num_left_out: int


@contextmanager
def thinned(root: Any, actions: Sequence[Action], num_alike: int | None = 2) -> Iterator[Thin]:
    """Removes modules that a replay of the plan does not need, in this context.

    Args:
        root: the model.
        actions: the actions of the plan.
        num_alike: how many modules remain of those that are alike and have the same actions;
            None: all.
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
    """The structure of a module: classes, shapes and settings of all its submodules."""
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
    """The names of the remaining modules of a list; those without parameters remain."""
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
    """A path whose last list is renamed; the lists that contain it may be renamed too."""
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

"""The state of a module besides parameters and buffers: attributes, lists and dicts, and the random
number generators of Python and NumPy.

A forward may write to this state (a counter, the loss of a router) and read it. To run a module a
second time, restore the state before the run and again after it:

    before = PythonState(module)
    module(inputs)
    before.changes()                # ["0.calls"]
    with before.again():
        module(inputs)              # computes the same, without side effects

Reads of other state, such as global variables, are not detected.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Managed by torch; callers that need buffers and parameters compare them themselves.
_TORCH_KEEPS = frozenset({"_buffers", "_parameters", "_modules", "_non_persistent_buffers_set"})
_CONTAINERS = (list, dict, set, deque)
_DEPTH = 3


class PythonState:
    """A copy of the state of a module and its submodules."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._parts = dict(module.named_modules())
        self._attributes = {name: _own(part) for name, part in self._parts.items()}
        self._contents: list[tuple[str, Any, Any]] = []
        for name, own in self._attributes.items():
            for key, value in own.items():
                self._look_into(f"{name}.{key}".lstrip("."), value, _DEPTH)
        self._draws = _draws()

    def _look_into(self, name: str, value: Any, depth: int) -> None:
        if not depth or not isinstance(value, _CONTAINERS):
            return
        content: Any = dict(value) if isinstance(value, dict) else list(value)
        self._contents.append((name, value, content))
        for element in content.values() if isinstance(content, dict) else content:
            self._look_into(name, element, depth - 1)

    def changes(self) -> list[str]:
        """The paths of the attributes that have changed."""
        changed = []
        for name, own in self._attributes.items():
            now = _own(self._parts[name])
            changed += [
                f"{name}.{key}".lstrip(".")
                for key in {**own, **now}
                if key not in own or key not in now or not _is_same(own[key], now[key])
            ]
        changed += [
            name for name, value, content in self._contents if not _is_same_content(value, content)
        ]
        return list(dict.fromkeys(changed))

    def parts_added(self) -> list[str]:
        """The paths of submodules that were added or removed."""
        now = dict(self._module.named_modules())
        before = self._parts
        return [name for name in {**before, **now} if before.get(name) is not now.get(name)]

    def has_drawn(self) -> bool:
        """True if random numbers of Python or NumPy were drawn since then."""
        return [*map(_comparable, self._draws)] != [*map(_comparable, _draws())]

    def tensors(self) -> list[Any]:
        """The tensors among the attributes."""
        import torch

        values = [value for own in self._attributes.values() for value in own.values()]
        for _, _, content in self._contents:
            values += content.values() if isinstance(content, dict) else content
        return [value for value in values if isinstance(value, torch.Tensor)]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restores the state for this context, and the present state after it."""
        now = PythonState(self._module)
        self.put_back()
        try:
            yield
        finally:
            now.put_back()

    def put_back(self) -> None:
        """Restores the state."""
        skips_tensors = _is_distributed()
        for name, own in self._attributes.items():
            attributes: dict[str, Any] = self._parts[name].__dict__
            for key, value in {**_own(self._parts[name]), **own}.items():
                if skips_tensors and hasattr(value, "untyped_storage"):
                    continue
                if key not in own:
                    del attributes[key]
                elif attributes.get(key, self) is not value:
                    attributes[key] = value
        for _, value, content in self._contents:
            if not _is_same_content(value, content):
                _fill(value, content)
        _set_draws(self._draws)


def _own(part: Any) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(part).items()
        if key not in _TORCH_KEEPS and "hooks" not in key
    }


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    return type(value) is type(other) and isinstance(value, int | float | str) and value == other


def _is_same_content(value: Any, content: Any) -> bool:
    if len(value) != len(content):
        return False
    if isinstance(value, dict):
        return all(
            key in value and _is_same(value[key], element) for key, element in content.items()
        )
    if isinstance(value, set):
        return all(element in value for element in content)
    return all(_is_same(element, other) for element, other in zip(value, content, strict=True))


def _fill(value: Any, content: Any) -> None:
    value.clear()
    if isinstance(value, list | deque):
        value.extend(content)
    else:
        value.update(content)


def _is_distributed() -> bool:
    """True if FSDP may have replaced parameters by views, which differ again in backward."""
    import torch

    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def _draws() -> tuple[Any, Any]:
    """The states of the random generators that torch does not restore."""
    numpy = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy is None else numpy.get_state()


def _comparable(state: Any) -> Any:
    """A generator state with arrays converted to bytes, for comparison."""
    return state and tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state)


def _set_draws(draws: tuple[Any, Any]) -> None:
    ours, numpys = draws
    random.setstate(ours)
    if numpys is not None:
        sys.modules["numpy.random"].set_state(numpys)

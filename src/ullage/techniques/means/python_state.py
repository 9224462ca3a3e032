"""What a module keeps beside parameters and buffers: attributes, lists and dicts, and the random
numbers of Python and NumPy.

A forward may write there (a counter, the loss of a router) and read what it wrote. Who runs it a
second time has it start from the same state, and takes back what the second run wrote:

    before = PythonState(module)
    module(inputs)
    before.changes()                # ["0.calls"]
    with before.again():
        module(inputs)              # computes the same, and leaves no trace

What a module reads elsewhere, such as a global variable, is not seen.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Kept by torch itself; buffers and parameters are compared by who needs them.
_TORCH_KEEPS = frozenset({"_buffers", "_parameters", "_modules", "_non_persistent_buffers_set"})
_CONTAINERS = (list, dict, set, deque)
_DEPTH = 3


class PythonState:
    """The state of a module and of all in it when this was made."""

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
        """The attributes that are not now what they were, by their paths."""
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
        """Modules that have come into it or left it."""
        now = dict(self._module.named_modules())
        before = self._parts
        return [name for name in {**before, **now} if before.get(name) is not now.get(name)]

    def has_drawn(self) -> bool:
        """Whether Python's or NumPy's random numbers were drawn since."""
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
        """While this lasts all is as it was; after it, as it was before that."""
        now = PythonState(self._module)
        self.put_back()
        try:
            yield
        finally:
            now.put_back()

    def put_back(self) -> None:
        """Makes all what it was."""
        skips_tensors = _is_shared_out()
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


def _is_shared_out() -> bool:
    """FSDP puts views of its own where parameters were, and others in their place in backward."""
    import torch

    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def _draws() -> tuple[Any, Any]:
    """The states of the generators of random numbers that torch does not play again."""
    numpy = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy is None else numpy.get_state()


def _comparable(state: Any) -> Any:
    """A state whose arrays are bytes."""
    return state and tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state)


def _set_draws(draws: tuple[Any, Any]) -> None:
    ours, numpys = draws
    random.setstate(ours)
    if numpys is not None:
        sys.modules["numpy.random"].set_state(numpys)

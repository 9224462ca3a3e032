"""Everything that a step can change: found from a few roots, noted before each step, and put back
after an error.

    reach = Reach({"model": model, "optimizer": optimizers}, parameters, names)
    reach.take(fn, {"batch": batch})   # before each step
    reach.restore()                    # after an error: as before, or a GuardError with names

The objects form a graph. It is walked once; before each step only objects that have changed are
noted again, and what they refer to since then is walked. A note is shallow (kinds.py).
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any
from weakref import ProxyTypes

import torch

from ullage.act.guard.failure import say
from ullage.act.guard.state.kinds import (
    ARRAY,
    BYTES,
    EXTRA,
    HOOKS,
    LARGE_ARRAY,
    OPAQUE,
    ORDERED,
    Kind,
    Names,
    Unrestored,
    find_kind,
)
from ullage.act.guard.state.lost import Lost, Weak, held
from ullage.act.guard.state.tags import Tags
from ullage.act.guard.state.tensors import MOST_BYTES, Entry, Tensors
from ullage.ground.errors import GuardError
from ullage.ground.units import format_bytes

# Elements of a longer container are noted once, and compared after an error.
MOST_ELEMENTS = 1000
_MOST_NAMES = 3
_MOST_PARENTS = 30
# A proxy looks like what it stands for, which something else holds; one that is dead raises.
_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes, *ProxyTypes))
# Of a module of torch: its buffers are restored, and with them what is to be saved of them.
_SET_OF_NAMES = "._non_persistent_buffers_set"
_IN_MODULES = re.compile(r"\._(modules|buffers|parameters)(?=[.\[])")
_COLD = "one of more than a thousand, noted once"
_REMEDY = (
    "change it outside the step, or pass an object with state_dict and load_state_dict that has it "
    "as extra="
)


class Node:
    """An object that is reached.

    Attributes:
        value: the object, which is held.
        kind: what is done for it.
        noted: its note.
        children: the objects that the note refers to.
        num_parents: how many refer to it.
        parent, name: through which it was found first.
        place: of its tag; None: it has none.
        is_batch: whether it is what the step is called with, or was found there.
        is_cold: whether it is noted once.
        is_kept: whether its tensors are states of an optimizer.
        is_stale: whether it is to be noted again.
    """

    __slots__ = (
        "children", "is_batch", "is_cold", "is_kept", "is_stale", "kind", "name", "noted",
        "num_parents", "parent", "place", "value",
    )  # fmt: skip

    def __init__(self, value: Any, kind: Kind, parent: Node | None, name: str) -> None:
        self.value, self.kind, self.parent, self.name = value, kind, parent, name
        self.noted: Any = None
        self.children: list[Any] = []
        self.num_parents = 0
        self.place: int | None = None
        self.is_batch = self.is_cold = self.is_kept = self.is_stale = False

    @property
    def path(self) -> str:
        """The place where it was found, as "model.blocks[0].history"."""
        names: list[str] = []
        node: Node | None = self
        while node is not None and len(names) < _MOST_PARENTS:
            names.append(node.name)
            node = node.parent
        return _join(reversed(names))


class _Call(Kind):
    """The step: its function and what it is called with; another one before each step."""

    is_polled = False

    def note(self, value: Any, noted: Any) -> Any:
        return value

    def parts(self, value: Any, noted: Any) -> Any:
        for name, each in value:
            if isinstance(each, MethodType):  # it is made anew for each step
                yield name, each.__self__
                yield name, each.__func__
            else:
                yield name, each

    def is_same(self, value: Any, noted: Any) -> bool:
        return True


class Reach:
    """The objects that steps can change.

    Args:
        roots: from which they are found, by name.
        parameters: that only the optimizer and averages change, which are not copied.
        names: of tensors, by their identity.
        extra: objects that are restored by their `load_state_dict`.
    """

    def __init__(
        self, roots: dict[str, Any], parameters: Sequence[Any], names: Mapping[int, str],
        extra: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self._roots = [*roots.items()]
        self._kept = {id(tensor): tensor for tensor in parameters}
        self._names = names
        self._optimizers = {id(each) for each in roots.get("optimizer", ())}
        self._extra = {id(each): each for each in extra if _has_state(each)}
        self._said: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        """Walks everything anew."""
        self._nodes: dict[int, Node] = {}
        self._polled: dict[int, Node] = {}
        self._places: dict[int, Node] = {}
        self._modules: dict[int, Node] = {}
        self._tags, self._tensors = Tags(), Tensors()
        self._num_bytes = 0
        self._root = Node(self._roots, _CALL, None, "")
        self._function, self._batch = Node((), _CALL, None, ""), Node((), _CALL, None, "")
        self._batch.is_batch = True
        self._lost: list[Node] = []
        self._note(self._root)
        self._most_nodes = 2 * len(self._nodes) + MOST_ELEMENTS

    def take(self, fn: Any, batch: Mapping[str, Any]) -> None:
        """Notes what a step can change.

        Args:
            fn: the step's function.
            batch: what it is called with, by what that is called.
        """
        if len(self._nodes) > self._most_nodes:
            self._begin()  # circles of objects that are reached no more
        before, self._function.value = self._function.value, (("the function", fn),)
        parts = [[*map(id, _parts_of(value))] for value in (before, self._function.value)]
        if parts[0] != parts[1]:
            self._note(self._function)
        if batch:
            self._batch.value = [*batch.items()]
            self._note(self._batch)
        self.take_again()

    def drop_batch(self) -> None:
        """After a step: what it was called with is not held."""
        if self._batch.value:
            self._batch.value = ()
            self._note(self._batch)

    def take_again(self) -> None:
        """Notes it once more, as under another plan."""
        self._lost = []
        for place in self._tags.changed():
            node = self._places.get(place)
            if node is not None and node.num_parents:
                self._note_change(node)
        for node in [*self._polled.values()]:
            if node.num_parents:
                self._note_change(node)
        self._tensors.take()

    def learn(self) -> None:
        """After a step that succeeded."""
        self._tensors.learn()

    def find(self, kind: type) -> list[Any]:
        """The objects of a class that are reached."""
        return [node.value for node in self._nodes.values() if isinstance(node.value, kind)]

    @property
    def num_bytes(self) -> int:
        """The bytes of copies, on the host and on devices."""
        return self._num_bytes + sum(self._tensors.num_bytes.values())

    @property
    def text(self) -> str:
        """The bytes of the copies, in words."""
        parts = [f"{format_bytes(count)} on {device}" for device, count in
                 self._tensors.num_bytes.items()]  # fmt: skip
        return ", ".join([f"{format_bytes(self._num_bytes)} of arrays", *parts])

    def restore(self, gradients: Collection[int] = ()) -> None:
        """Puts everything back as it was noted.

        Args:
            gradients: the identities of tensors that are followed by other means.

        Raises:
            GuardError: something was changed that cannot be put back; it is named.
        """
        changed = [node for node in self._nodes.values() if not _is_same(node)]
        reasons = [_why(n, n.kind.refusal or _COLD) for n in changed if n.is_cold or n.kind.refusal]
        for entry, why in self._tensors.changed(gradients):
            if why is not None:
                parent, name = entry.place
                path = self._names.get(id(entry.tensor)) or _join([parent.path, name])
                reasons.append(f"{path} ({why})")
        _refuse(reasons)
        for node in changed:
            if node.kind.is_replaced:
                self._replace(node, reasons)
        _refuse(reasons)
        for node in [n for n in changed if not n.kind.is_replaced]:
            try:
                node.kind.restore(node.value, node.noted)
            except Unrestored as error:
                reasons.append(_why(node, str(error)))
        self._tensors.restore(gradients)
        _refuse(reasons)
        self._lost = [node for node in changed if _has_lost(node)]

    def check_lost(self) -> None:
        """Raises GuardError if a step that was run again has kept what stands for a tensor that is
        gone.
        """
        for node in self._lost:
            if _has_lost(node):
                raise GuardError(f"{node.path} has a tensor that is gone, and the step needs it")

    def _replace(self, node: Node, reasons: list[str]) -> None:
        """Puts a copy of an object wherever it was, if all of these places are known."""
        value, copy = node.value, node.noted[1]
        num_places = num_noted = 0
        owners = [each for each in self._nodes.values() if node in each.children]
        for owner in owners:
            now = owner.kind.note(owner.value, None)
            num_places += sum(part is value for _, part in owner.kind.parts(owner.value, now))
            num_noted += owner.kind.exchange(owner.noted, value, copy)
            del now
        # Referred to here by the node, `value`, and the argument.
        known = num_places + 3
        if num_noted != node.num_parents or sys.getrefcount(value) != known:
            reasons.append(_why(node, "it is referred to from elsewhere, and can only be replaced"))
            return
        for owner in owners:
            owner.kind.restore(owner.value, owner.noted)

    def _note_change(self, node: Node) -> None:
        try:
            is_same = node.kind.note(node.value, node.noted) is node.noted
        except Exception:  # whatever the program's classes raise
            is_same = False
        if not is_same:
            self._note(node)

    def _read(self, node: Node) -> list[tuple[str, Any]]:
        """Notes an object; what it refers to."""
        try:
            node.noted = node.kind.note(node.value, node.noted)
            return [*node.kind.parts(node.value, node.noted)]
        except Exception:  # whatever the program's classes raise
            node.kind, node.noted = OPAQUE, None
            self._polled.pop(id(node.value), None)
            self._name(node)
            return []

    def _note(self, first: Node) -> None:
        """Notes an object, and walks to those that it refers to now."""
        waiting = deque((first,))
        # Left at the end: what they had may be referred to from elsewhere by then.
        left: list[Any] = []
        while waiting:
            node = waiting.popleft()
            left += node.children
            node.children = []
            parts = self._read(node)
            is_cold = node.is_cold or len(parts) > MOST_ELEMENTS
            for name, part in parts:
                child = self._enter(part, node, name, is_cold=is_cold)
                if type(child) is Entry:
                    node.children.append(child)
                    # What the program has put on a tensor.
                    child = None if node.is_kept else self._enter(
                        part.__dict__, node, name, is_cold=is_cold
                    )  # fmt: skip
                if child is None:
                    continue
                node.children.append(child)
                child.num_parents += 1
                if child.num_parents == 1 or child.is_stale:
                    child.is_stale = False
                    waiting.append(child)
        self._leave(left)

    def _enter(self, value: Any, parent: Node, name: str, *, is_cold: bool) -> Any:
        """The node of an object, or the entry of a tensor; None: it cannot change."""
        if type(value) in _ATOMS or type(value) is Weak or name == _SET_OF_NAMES:
            return None
        if isinstance(value, torch.Tensor):
            if type(value) is Lost:
                return None
            is_kept = parent.is_kept or id(value) in self._kept or value.grad_fn is not None
            return self._tensors.enter(
                value, (parent, name), is_kept=is_kept, is_cold=is_cold, is_batch=parent.is_batch
            )
        if type(value) is Names:
            return self._enter_names(value, parent, name)
        node = self._nodes.get(id(value))
        if node is not None:
            return node
        kind = EXTRA if id(value) in self._extra else find_kind(value)
        if kind is None:
            return None
        if kind is ORDERED and "hooks" in name:
            kind = HOOKS
        if kind in (ARRAY, BYTES):
            num_bytes = memoryview(value).nbytes if kind is BYTES else value.nbytes
            if self._num_bytes + num_bytes > MOST_BYTES:
                kind = LARGE_ARRAY
            else:
                self._num_bytes += num_bytes
        return self._add(value, kind, parent, name, is_cold=is_cold)

    def _add(self, value: Any, kind: Kind, parent: Node, name: str, *, is_cold: bool) -> Node:
        node = Node(value, kind, parent, name)
        node.is_cold, node.is_batch = is_cold, parent.is_batch
        node.is_kept = parent.is_kept or (
            name == ".state" and parent.parent is not None
            and id(parent.parent.value) in self._optimizers
        )  # fmt: skip
        self._nodes[id(value)] = node
        if not is_cold and kind.is_polled:
            self._polled[id(value)] = node
        elif not is_cold and (tagged := kind.tagged(value)) is not None:
            node.place = self._tags.add(tagged)
            self._places[node.place] = node
        if kind.is_named:
            self._name(node)
        return node

    def _enter_names(self, value: Names, parent: Node, name: str) -> Node:
        """The node of a module's names; there is one for each module."""
        node = self._modules.get(id(value.module))
        if node is None:
            node = self._add(value, find_kind(value), parent, name, is_cold=False)  # type: ignore[arg-type]
            self._modules[id(value.module)] = node
        elif not value.names.keys() <= node.value.names.keys():
            node.value.names.update(value.names)
            node.is_stale = True
        return node

    def _leave(self, children: list[Any]) -> None:
        """Objects are referred to once less."""
        waiting = children
        while waiting:
            child = waiting.pop()
            if type(child) is Entry:
                self._tensors.leave(child)
                continue
            child.num_parents -= 1
            if child.num_parents:
                continue
            key = id(child.value)
            self._nodes.pop(key, None)
            self._polled.pop(key, None)
            if child.place is not None:
                del self._places[child.place]
                self._tags.remove(child.place)
            if type(child.value) is Names:
                self._modules.pop(id(child.value.module), None)
            if child.kind in (ARRAY, BYTES):
                self._num_bytes -= len(child.noted[1]) if child.kind is ARRAY else len(child.noted)
            waiting += child.children

    def _name(self, node: Node) -> None:
        """Says once that an object is not restored."""
        text = f"not restored after an error: {node.path} ({node.kind.refusal})"
        if text not in self._said:
            self._said.add(text)
            say(f"{text}; {_REMEDY}")


_CALL = _Call()


def _parts_of(value: Any) -> Iterator[Any]:
    return (part for _, part in _CALL.parts(value, None))


def _has_state(value: Any) -> bool:
    """True if an object of `extra=` is restored by its state; torch's own are walked."""
    is_walked = isinstance(
        value,
        torch.nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler,
    )
    return not is_walked and hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _is_same(node: Node) -> bool:
    try:
        return node.kind.is_same(node.value, node.noted)
    except Exception:  # whatever the program's classes raise
        return False


def _has_lost(node: Node) -> bool:
    now = node.kind.note(node.value, None)
    return any(type(held(each)) is Lost for _, each in node.kind.parts(node.value, now))


def _why(node: Node, reason: str) -> str:
    return f"{node.path} ({reason})"


def _join(names: Any) -> str:
    return _IN_MODULES.sub("", "".join(names)).lstrip(".") or "the step"


def _refuse(reasons: list[str]) -> None:
    """Raises GuardError with the names of what cannot be put back."""
    if reasons:
        more = len(reasons) - _MOST_NAMES
        text = "; ".join(reasons[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        raise GuardError(
            f"the step had changed what cannot be put back: {text}; it is not run again: {_REMEDY}"
        )

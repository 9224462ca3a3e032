"""Who owns which address: claims, made where an owner's address is known.

A claim holds for the whole life of the block that is live at its address at its position, so it may
be made late: a gradient is claimed when backward has ended, a parameter at the first forward. Names
of functions play no part.
"""

from __future__ import annotations

import array
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

from ullage.log.record_schema import PRECISIONS
from ullage.players.inside import library
from ullage.players.inside.owners import sharded
from ullage.players.inside.owners.module_trees import find_roots, join, live_owners
from ullage.players.inside.owners.modules import Modules, Place
from ullage.players.inside.patches import Patches
from ullage.players.inside.unseen import Unseen

# The rows of claims, the most of them in columns: a sixth of the memory of tuples, as a long run
# has many.

ClaimRow = tuple[int, int, int, str, "list[Place]"]
"""Position, device, address, category, and the name: a place, or none yet."""
_MANY = 1024


class ClaimRows:
    """Claims in their order. Several threads may append: to a list, which one of them moves into
    the columns now and then.
    """

    def __init__(self, rows: Iterable[ClaimRow] = ()) -> None:
        self._positions, self._addresses = array.array("q"), array.array("q")
        self._devices, self._kinds = array.array("h"), array.array("B")
        self._names: list[list[Place]] = []
        self._categories: list[str] = []
        self._num_moved = 0
        self._fresh: list[ClaimRow] = []
        self._moving = threading.Lock()
        for row in rows:
            self.append(row)

    def append(self, row: ClaimRow) -> None:
        """One more."""
        self._fresh.append(row)
        if len(self._fresh) >= _MANY and self._moving.acquire(blocking=False):
            try:
                self._move()
            finally:
                self._moving.release()

    def _move(self) -> None:
        rows = self._fresh[:_MANY]
        for position, device, address, category, name in rows:
            if category not in self._categories:
                self._categories.append(category)
            self._positions.append(position)
            self._devices.append(device)
            self._addresses.append(address)
            self._kinds.append(self._categories.index(category))
            self._names.append(name)
        self._num_moved += len(rows)
        del self._fresh[: len(rows)]

    def keep(self, rows: Iterable[ClaimRow]) -> None:
        """These and no others from here on; they may come from this object."""
        self.__dict__ = ClaimRows(rows).__dict__

    def keep_newest(self, count: int) -> None:
        """Forgets all but this many of the newest."""
        excess = max(0, len(self) - count)
        if excess:
            self.keep(islice(self, excess, None))

    def keep_last_of_address(self) -> None:
        """Keeps the last row of each owner of an address. A block that is live has no later owner,
        so that its row is kept; blocks that were at its address before lose theirs.
        """
        last: dict[tuple[int, int, str, Place | int], ClaimRow] = {}
        for row in self:
            _, device, address, category, name = row
            key = (device, address, category, name[0] if name else id(name))
            last.pop(key, None)  # so that the rows stay in their order
            last[key] = row
        self.keep(last.values())

    def __len__(self) -> int:
        return self._num_moved + len(self._fresh)

    def __iter__(self) -> Iterator[ClaimRow]:
        # In this order another thread's move gives rows twice, which says nothing more, and loses
        # none.
        fresh, count, categories = list(self._fresh), self._num_moved, self._categories
        columns = (self._positions, self._devices, self._addresses, self._kinds, self._names)
        for position, device, address, kind, name in islice(zip(*columns, strict=False), count):
            yield position, device, address, categories[kind], name
        yield from fresh


Claim = tuple[int, int, int, str, str]  # position, device, address, category, name
Name = list[Place]
"""The place of a parameter, or nothing; it may become known after a claim was made."""
_SELDOM = frozenset([*range(4), *(10**power for power in range(1, 9))])
"""Calls at which a root module or an optimizer is walked again; the end finds the rest."""


class Claims:
    """Collects claims. One for the process."""

    def __init__(
        self, torch: ModuleType, modules: Modules, unseen: Unseen, patches: Patches
    ) -> None:
        self.patches = patches
        self.unseen = unseen
        self._claims = ClaimRows()
        self._torch = torch
        self._plain = {torch.Tensor, torch.nn.Parameter}
        codes = ((getattr(torch, name, None), code) for code, name in enumerate(PRECISIONS))
        self._precisions = {dtype: code for dtype, code in codes if dtype is not None}
        self._modules = modules
        self._num_calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._num_moves: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._parameters: dict[int, tuple[weakref.ref[Any], Name]] = {}
        self._states: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def rows(self) -> list[Claim]:
        """The claims, with names as they are known now."""
        naming = self._modules.naming()
        return [
            (position, device, address, category, naming(name[0]) if name else "")
            for position, device, address, category, name in self._claims
        ]

    def keep_from(self, first: int, births: Mapping[tuple[int, int], int]) -> None:
        """Forgets claims of blocks that are gone, where the events before a position are.

        births: of each block that was there at that position, by device and address, the position
            of the event that brought it: its claims are moved to `first`.
        """
        claims: dict[tuple[int, int, int, str, Place | int], ClaimRow] = {}
        for position, device, address, category, name in self._claims:
            birth = births.get((device, address))
            if position > first or (birth is not None and birth < position):
                row = (max(position, first), device, address, category, name)
                claims[(*row[:4], name[0] if name else id(name))] = row
        self._claims.keep(claims.values())
        for key in [key for key, (parameter, _) in self._parameters.items() if parameter() is None]:
            del self._parameters[key]

    def keep_newest(self, count: int) -> int:
        """Forgets claims until there are no more than that: first those of blocks whose address has
        a later block, then the oldest. Returns how many there were.
        """
        before = len(self._claims)
        if before > count:
            self._claims.keep_last_of_address()
            self._claims.keep_newest(count)
        return before - len(self._claims)

    def __len__(self) -> int:
        return len(self._claims)

    def claim_module(self, module: Any) -> None:
        """The parameters and buffers of a root module."""
        if self._is_seldom(module):
            sharded.watch(self)
            self._walk(module)
            self._modules.note_call(module)

    def release(self, module: Any) -> list[tuple[Any, Name]]:
        """The parameters of a module that is about to be moved or converted, which may free them;
        their names come with its first forward. No weak reference to them stays, as torch swaps
        no tensor that has one; returns what `claim_moved` takes up again.
        """
        if self._num_moves.get(module, 0) in _SELDOM:
            for parameter in module.parameters():
                self._meet(parameter)
        met = [(each, self._parameters.pop(id(each), None)) for each in module.parameters()]
        return [(parameter, known[1]) for parameter, known in met if known is not None]

    def claim_moved(self, module: Any, released: list[tuple[Any, Name]]) -> None:
        """Claims what they are now."""
        for parameter, name in released:
            self._parameters[id(parameter)] = (weakref.ref(parameter), name)
        moves = self._num_moves.get(module, 0)
        self._num_moves[module] = moves + 1
        if moves in _SELDOM:
            for parameter in module.parameters():
                self._meet(parameter)

    def claim_for(self, parameter: Any, tensor: Any, category: str) -> None:
        """A tensor that belongs to a parameter; None: to no single one."""
        self._claim(tensor, category, self._name(parameter))

    def claim_gradients(self) -> None:
        """Claims what `.grad` holds now, of every parameter met so far."""
        dead_keys = []
        for key, (reference, name) in self._parameters.items():
            parameter = reference()
            if parameter is None:
                dead_keys.append(key)
            elif parameter.grad is not None:
                self._claim(parameter.grad, "gradient", name)
        for key in dead_keys:
            del self._parameters[key]

    def claim_optimizer(self, optimizer: Any) -> None:
        """The parameters, gradients and state of an optimizer."""
        # Asked first, as it counts the calls.
        if not self._is_seldom(optimizer) and not self._has_new_states(optimizer):
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._meet(parameter)
                if parameter.grad is not None:
                    self._claim(parameter.grad, "gradient", self._name(parameter))
        for parameter, state in optimizer.state.items():
            self._claim_all(state, "optimizer_state", self._name(parameter))

    def claim_cache(self, kwargs: dict[str, Any], output: Any) -> None:
        """Keys and values that a model was handed, or returned, to keep for the next token."""
        for holder in (kwargs.get("past_key_values"), getattr(output, "past_key_values", None)):
            if holder is not None:
                self._claim_all(holder, "kv_cache", [])

    def claim_everything(self) -> tuple[list[Any], list[Any]]:
        """Every module and optimizer there is: after the first step (at the end, what the
        program's functions held may be gone), when memory ran out, and at the end. Returns both.
        """
        modules, optimizers = live_owners(self._torch)
        for module in find_roots(modules):
            self._walk(module)
        self.claim_gradients()
        for optimizer in optimizers:
            self._num_calls.pop(optimizer, None)
            self.claim_optimizer(optimizer)
        return modules, optimizers

    def _is_seldom(self, owner: Any) -> bool:
        calls = self._num_calls.get(owner, 0)
        self._num_calls[owner] = calls + 1
        return calls in _SELDOM

    def _has_new_states(self, optimizer: Any) -> bool:
        """True if the states of its first parameter are others than before: some optimizers make
        theirs again in each step, such as those that keep them in 8 bits.
        """
        first = next(iter(optimizer.state.values()), None)
        states = list(_tensors(first, self._torch.Tensor))
        known = self._states.get(optimizer, [])
        if len(known) == len(states) and all(
            reference() is state for reference, state in zip(known, states, strict=True)
        ):
            return False
        self._states[optimizer] = [weakref.ref(state) for state in states]
        return True

    def _walk(self, top: Any) -> None:
        known_ids = set()
        for (root, path), module in self._modules.walk(top):
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in known_ids:  # of tied parameters the first has the name
                    known_ids.add(id(parameter))
                    self._meet(parameter, (root, join(path, name)))
            # A replica's copies of parameters are plain tensors to torch.
            for name, copy in module.__dict__.get("_former_parameters", {}).items():
                self._claim(copy, "parameter", [(root, join(path, name))])
            for name, buffer in module.named_buffers(recurse=False):
                self._claim(buffer, "buffer", [(root, join(path, name))])
            cache = module.__dict__.get("kv_cache")  # as vLLM binds it to its layers
            if cache is not None:
                self._claim_all(cache, "kv_cache", [(root, path)])

    def _meet(self, parameter: Any, place: Place | None = None) -> None:
        """Claims a parameter, and remembers it for its gradients."""
        known = self._parameters.get(id(parameter))
        if known is None or known[0]() is not parameter:
            self._parameters[id(parameter)] = known = (weakref.ref(parameter), [])
        if place is not None:
            known[1][:] = [place]
        self._claim(parameter, "parameter", known[1])

    def _name(self, parameter: Any) -> Name:
        known = self._parameters.get(id(parameter))
        return known[1] if known is not None else []

    def _claim_all(self, holder: Any, category: str, name: Name) -> None:
        for tensor in _tensors(holder, self._torch.Tensor):
            self._claim(tensor, category, name)

    def _claim(self, tensor: Any, category: str, name: Name) -> None:
        is_plain = type(tensor) in self._plain
        if not is_plain:
            tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor's part on this rank
        if not tensor.is_cuda:
            return
        # A subclass made of others: codes and scales.
        if not is_plain and hasattr(tensor, "__tensor_flatten__"):
            for part in tensor.__tensor_flatten__()[0]:
                self._claim(getattr(tensor, part), category, name)
            return
        try:
            address = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):  # a subclass without storage of its own
            return
        if address:
            if library.is_present:
                library.note_precision(address, self._precisions.get(tensor.dtype, 0))
            self._claims.append((library.position(), tensor.get_device(), address, category, name))


def _tensors(holder: Any, tensor_type: type, depth: int = 5) -> Iterator[Any]:
    if isinstance(holder, tensor_type):
        yield holder
        return
    if depth == 0 or holder is None or isinstance(holder, (str, bytes, int, float, type)):
        return
    if isinstance(holder, dict):
        parts: Iterable[Any] = holder.values()
    elif isinstance(holder, (list, tuple)):
        parts = holder
    else:
        parts = getattr(holder, "__dict__", {}).values()
    for part in list(parts):
        yield from _tensors(part, tensor_type, depth - 1)

"""The kinds of objects that a step can change: what is noted of each, and how it is put back.

A note is shallow: a list's note has the list's elements, which have notes of their own. So an
object is put back where it is, and whoever else refers to it finds it as it was.
docs/reference/guard-state.md has the kinds as a table.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import enum
import gc
import io
import itertools
import pickle
import queue
import random
import sys
import threading
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cache, cached_property, partial
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from ullage.act.guard.state.lost import are_held, held, hold, is_held
from ullage.act.guard.state.programs import (
    is_library,
    is_library_file,
    is_own_class,
    names_of,
    slots_of,
)

# Larger arrays and longer texts are not copied before each step.
SMALL_BYTES = 1 << 20
MOST_DIGESTED_BYTES = 64 << 20
# Longer lists are noted as they grow.
LONG = 4096
_ABSENT = object()
_HOOKS_OF = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")

Parts = Iterable[tuple[str, Any]]


class Names(NamedTuple):
    """The names of a module that the program's functions use; `names` grows as these are met."""

    module: dict[str, Any]
    names: dict[str, None]


class Kind:
    """The treatment of objects of some types.

    Attributes:
        is_polled: whether it is noted before each step; else others see its changes.
        refusal: why an object that was changed cannot be put back; None: it can.
        is_named: whether the first step says so.
        is_replaced: whether a copy takes the place of one that was changed.
        has_items: whether a note is a list or a dict of what it refers to.
    """

    is_polled = True
    is_replaced = has_items = False
    refusal: str | None = None
    is_named = False

    def tagged(self, value: Any) -> Any:
        """The dict whose tag says that an object has changed (tags.py); None: there is none."""
        return None

    def note(self, value: Any, noted: Any) -> Any:
        """The note of an object; `noted`, the last note, if nothing has changed."""
        return None

    def parts(self, value: Any, noted: Any) -> Parts:
        """The objects that it refers to, and how."""
        return ()

    def is_same(self, value: Any, noted: Any) -> bool:
        """True if an object is as it was noted."""
        return self.note(value, noted) is noted

    def restore(self, value: Any, noted: Any) -> None:
        """Puts an object back."""

    def exchange(self, noted: Any, value: Any, copy: Any) -> int:
        """Puts a copy of an object into a note in its place; returns how often it was there."""
        places = range(len(noted)) if isinstance(noted, list) else noted
        same = [place for place in places if noted[place] is value] if self.has_items else []
        for place in same:
            noted[place] = copy
        return len(same)


class _Fixed(Kind):
    """The kind of objects that cannot change themselves.

    Args:
        parts: the objects that one refers to.
    """

    is_polled = False

    def __init__(self, parts: Callable[[Any], Parts]) -> None:
        self._parts = parts

    def parts(self, value: Any, noted: Any) -> Parts:
        return self._parts(value)

    def is_same(self, value: Any, noted: Any) -> bool:
        return True


class _Dict(Kind):
    """Their tags say which have changed."""

    is_polled = False
    has_items = True

    def tagged(self, value: Any) -> Any:
        return value

    def note(self, value: Any, noted: Any) -> Any:
        if noted is not None and self.is_same(value, noted):
            return noted
        return {key: hold(each) for key, each in value.items()}

    def parts(self, value: Any, noted: Any) -> Parts:
        for key, each in noted.items():
            yield _place(key), each
            if type(key) is not str:
                yield _place(key), key
        yield from _attributes(value)

    def is_same(self, value: Any, noted: Any) -> bool:
        return (
            len(value) == len(noted)
            and all(map(is_, value, noted))
            and are_held(value.values(), noted.values())
        )

    def restore(self, value: Any, noted: Any) -> None:
        for key in [key for key in value if key not in noted]:
            dict.__delitem__(value, key)
        for key, each in noted.items():
            if key not in value or not is_held(value[key], each):
                dict.__setitem__(value, key, held(each))
        if not all(map(is_, value, noted)):  # in another order
            items = [*value.items()]
            dict.clear(value)
            dict.update(value, {key: dict(items)[key] for key in noted})


class _Hooks(_Dict):
    """The hooks of a module or an optimizer."""

    def restore(self, value: Any, noted: Any) -> None:
        value.clear()
        for key, each in noted.items():
            value[key] = held(each)


class _Ordered(_Hooks):
    """Its order changes without a tag."""

    is_polled = True

    def tagged(self, value: Any) -> Any:
        return None


class _List(Kind):
    """A long one is noted as it grows: its old elements are compared after an error only."""

    has_items = True

    def note(self, value: Any, noted: Any) -> Any:
        if noted is None:
            return [*map(hold, value)]
        if len(noted) > LONG and len(value) >= len(noted):
            noted += map(hold, itertools.islice(value, len(noted), None))
            return noted
        return noted if self.is_same(value, noted) else [*map(hold, value)]

    def parts(self, value: Any, noted: Any) -> Parts:
        yield from ((f"[{index}]", each) for index, each in enumerate(noted))
        yield from _attributes(value)

    def is_same(self, value: Any, noted: Any) -> bool:
        return len(value) == len(noted) and are_held(value, noted)

    def restore(self, value: Any, noted: Any) -> None:
        if not are_held(value, noted):
            _refuse_long(noted)
        list.__setitem__(value, slice(None), [*map(held, noted)])


class _Set(Kind):
    def note(self, value: Any, noted: Any) -> Any:
        if noted is None:
            return [*value]
        is_long = len(noted) == len(value) > LONG
        return noted if is_long or self.is_same(value, noted) else [*value]

    def parts(self, value: Any, noted: Any) -> Parts:
        yield from (("", each) for each in noted)
        yield from _attributes(value)

    def is_same(self, value: Any, noted: Any) -> bool:
        return len(value) == len(noted) and all(map(is_, value, noted))

    def restore(self, value: Any, noted: Any) -> None:
        _refuse_long(noted)
        value.clear()
        value.update(noted)
        if not self.is_same(value, noted):
            # The order of a set depends on what was in it before.
            raise Unrestored("the order of a set has changed")


class _Deque(_List):
    def note(self, value: Any, noted: Any) -> Any:
        if noted is None:
            return [*map(hold, value)]
        is_long = len(noted) == len(value) > LONG
        return noted if is_long or self.is_same(value, noted) else [*map(hold, value)]

    def restore(self, value: Any, noted: Any) -> None:
        _refuse_long(noted)
        value.clear()
        value.extend(map(held, noted))


class _Array(Kind):
    """Arrays of NumPy."""

    def note(self, value: Any, noted: Any) -> Any:
        content = value.tolist() if value.dtype.hasobject else value.tobytes()
        now = (value.shape, content)
        return noted if noted is not None and now == noted else now

    def parts(self, value: Any, noted: Any) -> Parts:
        if value.dtype.hasobject:
            yield from (("", each) for each in value.flat)
        yield from _attributes(value)

    def restore(self, value: Any, noted: Any) -> None:
        numpy = sys.modules["numpy"]
        shape, content = noted
        if value.shape != shape:
            raise Unrestored("the shape of an array was changed")
        if value.dtype.hasobject:
            before = numpy.empty(shape, dtype=object)
            before[...] = content
        else:
            before = numpy.frombuffer(content, dtype=value.dtype).reshape(shape)
        is_writeable = value.flags.writeable
        value.flags.writeable = True
        value[...] = before
        value.flags.writeable = is_writeable


class _Object(Kind):
    """Any object: its attributes are a dict, which has a note of its own, and slots.

    Args:
        has_slots: whether it has slots, which are compared before each step.
    """

    def __init__(self, *, has_slots: bool) -> None:
        self.is_polled = has_slots

    def note(self, value: Any, noted: Any) -> Any:
        if noted is not None and self.is_same(value, noted):
            return noted
        return (getattr(value, "__dict__", None), _slots(value))

    def parts(self, value: Any, noted: Any) -> Parts:
        attributes, slots = noted
        if attributes is not None:
            yield "", attributes
        yield from ((f".{name}", each) for name, each in slots.items())
        if is_own_class(type(value)):
            yield ".__class__", type(value)

    def is_same(self, value: Any, noted: Any) -> bool:
        attributes, slots = noted
        now = _slots(value)
        return (
            getattr(value, "__dict__", None) is attributes
            and now.keys() == slots.keys()
            and all(is_held(now[name], each) for name, each in slots.items())
        )

    def restore(self, value: Any, noted: Any) -> None:
        attributes, slots = noted
        if getattr(value, "__dict__", None) is not attributes:
            object.__setattr__(value, "__dict__", attributes)
        for name in _slots(value).keys() - slots.keys():
            object.__delattr__(value, name)
        for name, each in slots.items():
            object.__setattr__(value, name, held(each))


class _Cell(Kind):
    """A variable of a function that functions within it use."""

    has_items = True

    def note(self, value: Any, noted: Any) -> Any:
        try:
            now = value.cell_contents
        except ValueError:
            now = _ABSENT
        return noted if noted is not None and is_held(now, noted[0]) else [hold(now)]

    def parts(self, value: Any, noted: Any) -> Parts:
        yield "", noted[0]

    def restore(self, value: Any, noted: Any) -> None:
        if noted[0] is _ABSENT:
            del value.cell_contents
        else:
            value.cell_contents = held(noted[0])


class _Names(Kind):
    is_polled = False
    has_items = True

    def tagged(self, value: Any) -> Any:
        return value.module

    def note(self, value: Any, noted: Any) -> Any:
        module = value.module
        if noted is not None and len(noted) == len(value.names) and self.is_same(value, noted):
            return noted
        return {name: hold(module.get(name, _ABSENT)) for name in value.names}

    def parts(self, value: Any, noted: Any) -> Parts:
        for name, each in noted.items():
            if isinstance(each, types.ModuleType) and not is_library(each.__name__):
                yield f"'s {name}", Names(vars(each), dict(value.names))
            else:
                yield f"'s {name}", each

    def is_same(self, value: Any, noted: Any) -> bool:
        get = value.module.get
        return all([is_held(get(name, _ABSENT), each) for name, each in noted.items()])  # noqa: C419

    def restore(self, value: Any, noted: Any) -> None:
        for name, each in noted.items():
            if each is _ABSENT:
                value.module.pop(name, None)
            elif not is_held(value.module.get(name, _ABSENT), each):
                value.module[name] = held(each)


class _Class(Kind):
    """A class of the program."""

    is_polled = False

    def tagged(self, value: Any) -> Any:
        (attributes,) = gc.get_referents(vars(value))
        return attributes

    def note(self, value: Any, noted: Any) -> Any:
        return noted if noted is not None and self.is_same(value, noted) else dict(vars(value))

    def parts(self, value: Any, noted: Any) -> Parts:
        yield from ((f".{name}", each) for name, each in noted.items())
        yield from (("", base) for base in value.__bases__ if is_own_class(base))

    def is_same(self, value: Any, noted: Any) -> bool:
        now = vars(value)
        return len(now) == len(noted) and all([now.get(k, _ABSENT) is v for k, v in noted.items()])  # noqa: C419

    def restore(self, value: Any, noted: Any) -> None:
        for name in [name for name in vars(value) if name not in noted]:
            type.__delattr__(value, name)
        for name, each in noted.items():
            if vars(value).get(name, _ABSENT) is not each:
                type.__setattr__(value, name, each)


class ParameterHooks(list[Any]):
    """The parameters whose hooks are noted."""


class _ParameterHooks(Kind):
    """torch numbers all hooks: where there is no new number there is no new hook."""

    def note(self, value: Any, noted: Any) -> Any:
        number = RemovableHandle.next_id
        return noted if noted is not None and noted[0] == number else (number, _hooks_of(value))

    def parts(self, value: Any, noted: Any) -> Parts:
        return (("hooks", each) for each in noted[1] if each is not None)

    def is_same(self, value: Any, noted: Any) -> bool:
        return all(map(is_, _hooks_of(value), noted[1]))

    def restore(self, value: Any, noted: Any) -> None:
        for hooks, before in zip(_hooks_of(value), noted[1], strict=True):
            if before is None and hooks is not None:
                hooks.clear()


class _State(Kind):
    """A generator of random numbers, or what else has a state that is read and set.

    Args:
        read: the state of an object.
        write: sets it.
    """

    def __init__(self, read: Any, write: Any) -> None:
        self._read, self._write = read, write

    def note(self, value: Any, noted: Any) -> Any:
        now = self._read(value)
        return noted if noted is not None and _is_equal(now, noted) else now

    def parts(self, value: Any, noted: Any) -> Parts:
        return _attributes(value)

    def restore(self, value: Any, noted: Any) -> None:
        self._write(value, noted)


class _Iterator(Kind):
    """Over a list, a tuple, a range or a text: it has a place that can be set."""

    def note(self, value: Any, noted: Any) -> Any:
        reduced = value.__reduce__()
        now = reduced[2:]  # nothing, once it has come to its end
        return noted if noted == now else now

    def parts(self, value: Any, noted: Any) -> Parts:
        return (("", each) for each in value.__reduce__()[1])

    def restore(self, value: Any, noted: Any) -> None:
        if len(value.__reduce__()) < 3:
            raise Unrestored("an iterator has come to its end")
        value.__setstate__(*noted)


class _Copied(Kind):
    """An object that can only be copied: a copy takes its place wherever it was, if all of these
    places are known. The note has its state, and a copy.
    """

    is_replaced = True

    def note(self, value: Any, noted: Any) -> Any:
        now = _pickled(value)
        return noted if noted is not None and now == noted[0] else (now, deepcopy(value))


class _Digested(Kind):
    """The kind of objects that are too large to be copied before each step: a digest is noted once.

    Args:
        what: it is.
        read: its digest.
    """

    is_polled = False

    def __init__(self, what: str, read: Callable[[Any], int]) -> None:
        self.refusal = f"{what}, too large to be copied before each step"
        self._read = read

    def note(self, value: Any, noted: Any) -> Any:
        return self._read(value)

    def is_same(self, value: Any, noted: Any) -> bool:
        return bool(self._read(value) == noted)


class _Watched(_State):
    """An object whose changes are seen, and cannot be undone."""

    is_named = True

    def __init__(self, what: str, read: Any) -> None:
        super().__init__(read, None)
        self.refusal = what

    def parts(self, value: Any, noted: Any) -> Parts:
        # What a generator or an iterator works on, hidden iterators included.
        has_parts = not isinstance(value, io.IOBase) and not hasattr(value, "__dict__")
        return (("", each) for each in gc.get_referents(value)) if has_parts else ()


class _WatchedElements(_Watched):
    """One that is as it was where it has the same elements."""

    def note(self, value: Any, noted: Any) -> Any:
        now = self._read(value)
        is_same = noted is not None and len(now) == len(noted) and are_held(now, noted)
        return noted if is_same else [*map(hold, now)]


class _Opaque(Kind):
    """An object that cannot be looked into."""

    is_polled = False
    is_named = True
    refusal = "an object that does not show its state"

    def is_same(self, value: Any, noted: Any) -> bool:
        return False


class Unrestored(Exception):
    """An object cannot be put back; the text says why."""


def _refuse_long(noted: Any) -> None:
    """Refuses what is too long to be noted anew before each step."""
    if len(noted) > LONG:
        raise Unrestored(f"{len(noted):,} elements, of which those before the step are not known")


def _place(key: Any) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}"
    return f"[{key!r:.40}]" if type(key) in (str, int) else f"[a {type(key).__name__}]"


def _hooks_of(parameters: Iterable[Any]) -> list[Any]:
    return [hooks for pair in map(_HOOKS_OF, parameters) for hooks in pair]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", None)
    if attributes is not None:
        yield "", attributes
        if is_own_class(type(value)):
            yield ".__class__", type(value)


def _slots(value: Any) -> dict[str, Any]:
    slots = {}
    for descriptor in slots_of(type(value)):
        try:
            slots[descriptor.__name__] = hold(descriptor.__get__(value))
        except AttributeError:
            continue
    return slots


def _is_equal(value: Any, other: Any) -> bool:
    """True if two states are equal, arrays and tensors by their elements."""
    if isinstance(value, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(value, other)
    if isinstance(value, Mapping):
        return (
            isinstance(other, Mapping)
            and value.keys() == other.keys()
            and all(_is_equal(each, other[key]) for key, each in value.items())
        )
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(_is_equal, value, other))
    if hasattr(value, "tobytes"):
        return bool(value.tobytes() == other.tobytes())
    return bool(value == other)


def _naming(*names: str) -> Kind:
    """The kind of what refers to other objects by some attributes."""
    return _Fixed(lambda value: (("", getattr(value, name, None)) for name in names))


def _parts_of_function(value: Any) -> Parts:
    """The parts of a function of the program: its variables, defaults, attributes, and the globals
    it names; of a library's, what it was put around.
    """
    if is_library_file(value.__code__.co_filename):
        yield "", getattr(value, "__wrapped__", None)
        return
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        yield f"'s {name}", cell
    yield ".__defaults__", value.__defaults__
    yield ".__kwdefaults__", value.__kwdefaults__
    yield "", Names(value.__globals__, dict.fromkeys(names_of(value.__code__)))
    yield "", value.__dict__


def _write_bytes(value: Any, noted: bytes) -> None:
    if isinstance(value, bytearray):
        value[:] = noted
    else:
        del value[:]
        value.frombytes(noted)


def _write_memory(value: Any, noted: bytes) -> None:
    """Writes the memory of ctypes, as in multiprocessing's shared values."""
    ctypes.memmove(ctypes.addressof(value), noted, len(noted))


def _digest(value: Any) -> int:
    """A checksum of an array; of a huge one, of elements at equal distances."""
    every = 1 + value.nbytes // MOST_DIGESTED_BYTES
    return zlib.crc32(value.reshape(-1)[::every].tobytes())


def _pickled(value: Any) -> bytes:
    """The state of an object, as it is written; nothing is ever read back."""
    return repr(value).encode() if type(value) is itertools.count else pickle.dumps(value)


def _read_generator(generator: Any) -> list[Any]:
    frame = generator.gi_frame
    return [-1 if frame is None else frame.f_lasti, *gc.get_referents(generator)]


def _read_iterator(iterator: Any) -> Any:
    """How far an iterator is; what is never equal where it does not say."""
    with suppress(TypeError, AttributeError):  # one without an end, or that has none
        return iterator.__length_hint__()
    if type(iterator) is enumerate:
        return iterator.__reduce__()[1][1]
    return None if type(iterator) in _WITHOUT_PLACE else object()


def _write_text(text: Any, noted: Any) -> None:
    text.seek(0)
    text.truncate()
    text.write(noted[0])
    text.seek(noted[1])


def _read_file(file: Any) -> Any:
    try:
        return file.tell() if file.seekable() else None
    except (OSError, ValueError):
        return object()


_WITHOUT_PLACE = (map, filter, zip)
_INDEXED: tuple[Any, ...] = ([], (), range(1), range(1 << 70), "", "\xff", b"")
_OBJECT, _SLOTTED = _Object(has_slots=False), _Object(has_slots=True)
# Wrappers of ranks and of compiled models: their own state is torch's, their model is not.
_WRAPPER = _Fixed(lambda value: (("", vars(value)["_modules"]),))
_DICT, ORDERED, HOOKS, ARRAY, _COPIED = _Dict(), _Ordered(), _Hooks(), _Array(), _Copied()
OPAQUE, BYTES = _Opaque(), _State(bytes, _write_bytes)
LARGE_ARRAY = _Digested("an array", _digest)
_LARGE_OBJECT = _Digested("an object of an extension", lambda value: hash(_pickled(value)))
EXTRA = _State(
    lambda value: deepcopy(value.state_dict()),
    lambda value, noted: value.load_state_dict(deepcopy(noted)),
)
_OF_CTYPES = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
_TYPES: tuple[tuple[Any, Kind | None], ...] = (
    (Names, _Names()),
    (collections.OrderedDict, ORDERED),
    (dict, _DICT),
    (ParameterHooks, _ParameterHooks()),
    (list, _List()),
    (
        (tuple, frozenset),
        _Fixed(lambda value: ((f"[{index}]", each) for index, each in enumerate(value))),
    ),
    (set, _Set()),
    (collections.deque, _Deque()),
    ((bytearray, array.array), BYTES),
    (types.CellType, _Cell()),
    (types.FunctionType, _Fixed(_parts_of_function)),
    ((types.MethodType, types.BuiltinMethodType), _naming("__self__", "__func__")),
    (partial, _naming("func", "args", "keywords")),
    ((staticmethod, classmethod, property), _naming("__func__", "fget", "fset")),
    ((cached_property, type(cache(len))), _naming("func", "__wrapped__")),
    (random.SystemRandom, None),
    (random.Random, _State(random.Random.getstate, random.Random.setstate)),
    (torch.Generator, _State(torch.Generator.get_state, torch.Generator.set_state)),
    (contextvars.ContextVar, _State(lambda each: each.get(None), lambda each, to: each.set(to))),
    (tuple(map(type, map(iter, _INDEXED))), _Iterator()),
    (types.GeneratorType, _WatchedElements("a generator", _read_generator)),
    ((io.StringIO, io.BytesIO), _State(lambda text: (text.getvalue(), text.tell()), _write_text)),
    (io.IOBase, _Watched("an open file", _read_file)),
    (itertools.count, _COPIED),
    # Another thread may put something on it, or take it, at any time.
    (queue.Queue, _WatchedElements("a queue", lambda each: [*each.queue])),
    (_OF_CTYPES, _State(bytes, _write_memory)),
    ((threading.local, types.SimpleNamespace), _OBJECT),
    ((types.CoroutineType, types.AsyncGeneratorType), OPAQUE),
)
# Their objects are no state of a training, or are made ready for another try by other means.
_PASSED = (
    "_thread", "threading", "logging", "concurrent", "multiprocessing", "asyncio", "socket", "ssl",
    "subprocess", "typing", "inspect", "importlib", "types", "operator", "functools", "datetime",
    "decimal", "fractions", "uuid", "pathlib", "re", "enum", "zoneinfo", "pyarrow", "ullage",
    "torch._C", "torch.distributed", "torch._dynamo", "torch._inductor", "torch._functorch",
    "torch.fx", "torch.autograd", "torch.cuda", "torch.profiler", "torch.jit", "torch.library",
    "torch._ops", "torch.storage",
)  # fmt: skip
_WRAPPERS = ("DistributedDataParallel", "OptimizedModule", "RecursiveScriptModule", "ScriptModule")
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(...), type, weakref.ref,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, types.ModuleType,
    types.CodeType, types.FrameType, types.TracebackType, types.MappingProxyType, enum.Enum,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType,
    TorchDispatchMode, TorchFunctionMode,
)  # fmt: skip
# The state of an object of an extension that is copied before each step is at most so long.
_SMALL_STATE = 1 << 14


def find_kind(value: Any) -> Kind | None:
    """The kind of an object; None: it cannot change, or its changes are not the training's."""
    kind = type(value)
    if isinstance(value, type):
        return _CLASS if is_own_class(value) and not issubclass(value, enum.Enum) else None
    if kind not in _known:
        _known[kind] = _find(value, kind)
    handling = _known[kind]
    if handling is ARRAY and value.nbytes > SMALL_BYTES:
        return LARGE_ARRAY if value.flags.writeable or value.base is not None else None
    return handling


def _find(value: Any, kind: type) -> Kind | None:
    if kind.__name__ in _WRAPPERS and isinstance(value, torch.nn.Module):
        return _WRAPPER
    for bases, handling in _TYPES:
        if issubclass(kind, bases):
            return handling
    if issubclass(kind, _ATOMS):
        has_own = issubclass(kind, (int, float, complex, str, bytes)) and is_own_class(kind)
        return _OBJECT if has_own and not issubclass(kind, enum.Enum) else None
    if kind.__module__.partition(".")[0] == "numpy":
        return _find_numpy(kind)
    module = f"{kind.__module__}."
    if module == "multiprocessing.sharedctypes.":
        # Its lock is of another process's concern; the value is within.
        return _naming("_obj")
    if module.startswith(tuple(f"{each}." for each in _PASSED)):
        return None
    if _is_plain(kind) or isinstance(value, BaseException):
        if "_num_yielded" in getattr(value, "__dict__", ()):
            return _Watched("an iterator of a DataLoader", lambda each: each._num_yielded)
        return _SLOTTED if slots_of(kind) else _OBJECT
    if hasattr(kind, "__next__"):
        return _Watched("an iterator", _read_iterator)
    try:
        size = len(_pickled(value))
        is_copied = size <= _SMALL_STATE and _pickled(deepcopy(value)) == _pickled(value)
    except Exception:  # whatever an extension raises
        return OPAQUE
    return _COPIED if is_copied else _LARGE_OBJECT


def _find_numpy(kind: type) -> Kind | None:
    numpy = sys.modules["numpy"]
    if issubclass(kind, numpy.ndarray):
        return ARRAY
    if issubclass(kind, numpy.random.Generator):
        return _State(
            lambda each: each.bit_generator.state,
            lambda each, to: setattr(each.bit_generator, "state", to),
        )
    if issubclass(kind, numpy.random.RandomState):
        return _State(
            lambda each: each.get_state(legacy=False), lambda each, to: each.set_state(to)
        )
    if issubclass(kind, numpy.random.BitGenerator):
        return _State(lambda each: each.state, lambda each, to: setattr(each, "state", to))
    return None


def _is_plain(kind: type) -> bool:
    """True if objects of a class have attributes and slots, and nothing else in memory."""
    header = object.__basicsize__
    words = len(slots_of(kind)) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__basicsize__ == header + words * header // 2


_CLASS = _Class()
_known: dict[type, Kind | None] = {}

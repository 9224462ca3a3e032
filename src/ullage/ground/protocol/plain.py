"""Converts frozen dataclasses to plain values, as JSON and TOML hold them, and back: the type of a
field says how its value is read, its default what holds without one.

    plain(Note("power_w", "not supported", (0, 1)))
    # {"field": "power_w", "reason": "not supported", "devices": [0, 1]}
    restore(Note, document, "notes[0]")

A type may be annotated: with functions that check or convert what was read, and with `From`, `As`,
`Only`, `Example` and `Mark`. What differs between kinds of files is in the `Reader` of each. A
property that is a `figure` is written, too.

    threads: Annotated[int, at_least(1)] = 4
    limit: Annotated[int, From(str | int), parse_bytes, As("max"), Example('"40GiB"')]
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import inspect
import itertools
import math
import sys
import types
import typing
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from ullage.ground.parsing import show_value

T = TypeVar("T")
Read = Callable[[Any], Any]
_MISSING: Final = object()
_ATOMS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:  # noqa: ANN401 - a record, or what one of its fields holds
    """The value in dictionaries, lists, texts, numbers, booleans and None alone; a record with a
    SCHEMA is a document. A number that is not finite is None, a named tuple a list.

    Raises:
        TypeError: it has something else in it.
    """
    if type(value) in _ATOMS:
        return None if type(value) is float and not math.isfinite(value) else value
    if isinstance(value, tuple | list):
        return [plain(member) for member in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {plain(name): plain(member) for name, member in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # a number or a column of numpy's
        return plain(value.tolist())
    return document_of(value)


def document_of(record: object) -> dict[str, Any]:
    """The fields and figures of a record, as `plain` writes them."""
    kind: Any = type(record)
    document: dict[str, Any] = {"schema": kind.SCHEMA} if hasattr(kind, "SCHEMA") else {}
    for name, key, marks in _members_of(kind):
        member = getattr(record, name)
        for only in (mark for mark in marks if isinstance(mark, Only)):
            member = only.of(member)
        if Mark.NAMED in marks and isinstance(member, Mapping):
            member = {name: document_of(each) for name, each in member.items()}
        elif Mark.NAMED in marks and member is not None:
            member = document_of(member)
        if Mark.FLAT in marks and member is not None:
            document |= (plain if isinstance(member, Mapping) else document_of)(member)
        elif Mark.FLAT in marks:
            continue
        elif Mark.NULL in marks and not member:
            document[key] = None
        else:
            document[key] = plain(dict(member) if Mark.PAIRS in marks else member)
    return document


@cache
def _members_of(kind: Any) -> tuple[tuple[str, str, tuple[Any, ...]], ...]:  # noqa: ANN401 - a record
    """The fields and figures of a record that are written: name, key, and what is annotated."""
    names = [*_required(kind)]
    if not names and not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} cannot be written; expected a record or a plain value")
    members = {}
    for base in reversed(kind.__mro__):
        figures = {name: each for name, each in vars(base).items() if isinstance(each, figure)}
        kinds = {name: each.fget.__annotations__["return"] for name, each in figures.items()}
        for name, text in (inspect.get_annotations(base) | kinds).items():
            members[name] = _marks_of(text, base.__module__)
    names += [name for name in members if isinstance(getattr(kind, name, None), figure)]
    return tuple(
        (name, next((mark.name for mark in marks if isinstance(mark, As)), name), marks)
        for name, marks in ((name, members[name]) for name in names)
        if not any(mark in marks for mark in (Mark.NAME, Mark.NO_KEY, Mark.UNWRITTEN))
    )


def _marks_of(kind: Any, module: str) -> tuple[Any, ...]:  # noqa: ANN401 - a type
    """The annotations. The type itself is not evaluated: type checkers alone may import it."""
    kind = getattr(kind, "__forward_arg__", kind)  # as a named tuple has it
    if isinstance(kind, str) and (kind.isidentifier() or kind.startswith("Annotated[")):
        kind = eval(kind, {}, _Names(vars(sys.modules[module])))
    marks: tuple[Any, ...] = getattr(kind, "__metadata__", ())
    return marks


class _Names(dict[str, Any]):
    """The names of a module; one that it has for type checkers alone is any type."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - a type
        return getattr(builtins, name, Any)


class Misfit(ValueError):
    """A value is not what its type says.

    Attributes:
        problem: what was found, and what was expected; it follows the value's name.
        keys: where the value is, from the outermost on; a number is a place in a list.
        inner: the key in the value that is meant, where the sentence names the value around it.
    """

    def __init__(self, problem: str, *keys: str | int, inner: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.keys = keys
        self.inner = inner

    def say(self, whole: str = "") -> str:
        """The sentence; `whole` is the name of the outermost value."""
        name = whole
        for key in self.keys:
            name += f"[{key}]" if isinstance(key, int) else f".{key}" if name else key
        return f"{name}{'' if self.problem.startswith(':') else ' '}{self.problem}"

    def of_file(self, name: str) -> str:
        """The sentence, of a file of this name."""
        return f"{name}: {self.say()}" if self.keys else self.say(name)


def misfit_of(error: Exception, keys: Container[str]) -> Misfit:
    """The misfit of the key that its sentence begins with, where that is one of these."""
    key, _, problem = str(error).partition(": ")
    return Misfit(f": {problem}", key) if key in keys else Misfit(f": {error}")


@dataclass(frozen=True, slots=True)
class From:
    """The file has another type; a function that is annotated too makes the field's value of it."""

    kind: Any


@dataclass(frozen=True, slots=True)
class As:
    """The file has another name for the field."""

    name: str


@dataclass(frozen=True, slots=True)
class Example:
    """A value as in a file, for the error where it is missing or empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Only:
    """This attribute alone is written, of the record in the field or of each of several."""

    name: str

    def of(self, member: Any) -> Any:  # noqa: ANN401 - a record or a tuple of records
        """The attribute; a dot leads to an attribute of it."""
        if isinstance(member, tuple):
            return [self.of(each) for each in member]
        return None if member is None else attrgetter(self.name)(member)


class Mark(enum.Enum):
    """Where the value of a field comes from, if not from a key of its own."""

    FLAT = "a record whose keys are in the table around it; None: none of them is"
    NAME = "the key under which the record is found"
    NO_KEY = "in no file"
    UNWRITTEN = "read, and not written"
    NAMED = "a named tuple, or a mapping to some, written with the names"
    NULL = "null where it is empty or zero"
    PAIRS = "pairs of a key and a value, which are written as an object"


if TYPE_CHECKING:
    figure = property
else:

    class figure(property):
        """A property that is written as a field is."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a record: its keys in a table (of a flat record several), and what reads them."""

    name: str
    keys: tuple[Any, ...]
    read: Read
    is_required: bool
    example: str
    marks: tuple[Any, ...]

    def remedy(self, what: str) -> str:
        """The remedy where there is no value."""
        return f"; {what}, for example: {self.keys[0]} = {self.example}" if self.example else ""


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Reads values by their types.

    Attributes:
        names: how errors call the types str, int, float, bool, list and dict.
        checks: what is checked, or converted, of each value of these types.
        synonyms: types that are read as another.
        is_strict: whether an unknown key is an error; else a newer program may have written it.
        is_none_missing: whether None stands for a field's default.
        has_rows: whether any record may be the list of its fields.
        refusal: what a record raises that refuses its fields, such as "batch: found 0, ...".
    """

    names: Mapping[type, str]
    checks: Mapping[type, Read] = dataclasses.field(default_factory=dict)
    synonyms: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    _: KW_ONLY
    is_strict: bool = False
    is_none_missing: bool = False
    has_rows: bool = False
    refusal: type[Exception] | tuple[()] = ()
    # What reads a type, and the fields of a record, each found once.
    _reads: dict[Any, Read] = dataclasses.field(default_factory=dict, init=False)
    _fields: dict[Any, tuple[_Field, ...]] = dataclasses.field(default_factory=dict, init=False)

    def read(self, kind: type[T], value: object, /, **given: object) -> T:
        """The value as this type; `given` are fields of a record that are not in the value.

        Raises:
            Misfit: it is something else.
        """
        read = partial(self._record, kind, given=given) if given else self._reader(kind)
        result: T = read(value)
        return result

    def _reader(self, kind: Any) -> Read:  # noqa: ANN401 - a type
        if kind not in self._reads:
            self._reads[kind] = self._make(kind)
        return self._reads[kind]

    def _make(self, kind: Any) -> Read:  # noqa: ANN401 - a type
        origin, members = typing.get_origin(kind), typing.get_args(kind)
        if kind in self.synonyms:
            return self._reader(self.synonyms[kind])
        if kind in (Any, object):
            return lambda value: value
        if kind in (str, int, float, bool):
            return self._atom(kind)
        if origin is Annotated:
            return self._converted(kind.__origin__, kind.__metadata__)
        if origin in (typing.Union, types.UnionType):
            return self._union(members)
        if origin is tuple and members[-1] is not Ellipsis:
            reads = {number: self._reader(member) for number, member in enumerate(members)}
            return lambda value: tuple(self._row(reads, value, f"{len(reads)} values"))
        if origin in (tuple, frozenset, Sequence):
            collect = tuple if origin is Sequence else origin
            return self._list(collect, self._reader(members[0]))
        if origin is Literal:
            return partial(choose, choices={member: member for member in members})
        if origin is Mapping:
            return self._mapping(*members)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return partial(choose, choices={member.value: member for member in kind})
        return partial(self._record, kind)

    def _atom(self, kind: type) -> Read:
        check = self.checks.get(kind)

        def read_atom(value: Any) -> object:  # noqa: ANN401 - a plain value
            if type(value) is not kind:
                if kind is not float or type(value) is not int:
                    raise Misfit(f"is {show(value)}; expected {self.names[kind]}")
                value = float(value)
            return value if check is None else check(value)

        return read_atom

    def _converted(self, kind: Any, marks: Sequence[Any]) -> Read:  # noqa: ANN401 - a type
        """Reads the type, or that which `From` names, then does what is annotated, in order."""
        read = self._reader(_source(kind, marks))
        steps = [mark for mark in marks if callable(mark)]

        def read_and_convert(value: object) -> object:
            value = read(value)
            for step in steps:
                value = step(value)
            return value

        return read_and_convert if steps else read

    def _union(self, members: Sequence[Any]) -> Read:
        """The one of several atoms that has the value's type; else the one type, or None."""
        kinds = [member for member in members if member is not types.NoneType]
        if len(kinds) == 1:
            read = self._reader(kinds[0])
            return lambda value: None if value is None else read(value)
        reads = {kind: self._reader(kind) for kind in kinds}
        if len(kinds) < len(members):
            reads[types.NoneType] = lambda value: value
        if float in reads:
            reads.setdefault(int, reads[float])
        names = " or ".join(self.names[kind] for kind in kinds)

        def read_any(value: object) -> object:
            if type(value) not in reads:
                raise Misfit(f"is {show(value)}; expected {names}")
            return reads[type(value)](value)

        return read_any

    def _list(self, collect: Callable[[Iterable[Any]], Any], read: Read) -> Read:
        def read_list(value: object) -> object:
            if not isinstance(value, list | tuple):
                raise Misfit(f"is {show(value)}; expected {self.names[list]}")
            return collect(read_at(number, read, each) for number, each in enumerate(value))

        return read_list

    def _mapping(self, key_kind: Any, kind: Any) -> Read:  # noqa: ANN401 - types
        read_key = None if key_kind is str else self._reader(key_kind)
        read = self._reader(kind)
        # A record may have the key under which it is found.
        is_named = any(Mark.NAME in field.keys for field in self.fields_of(kind))

        def read_mapping(value: object) -> dict[Any, Any]:
            entries = {}
            for key, member in self._table(value).items():
                name = key if read_key is None else read_at(key, read_key, key)
                if is_named:
                    member = {**read_at(key, self._table, member), Mark.NAME: name}
                entries[name] = read_at(key, read, member)
            return entries

        return read_mapping

    def _table(self, value: object) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise Misfit(f"is {show(value)}; expected {self.names[dict]}")
        return value

    def _row(self, reads: Mapping[Any, Read], value: object, what: str) -> list[object]:
        if not isinstance(value, list | tuple) or len(value) != len(reads):
            raise Misfit(f"is {show(value)}; expected a list of {what}")
        pairs = zip(reads.items(), value, strict=True)
        return [read_at(name, read, member) for (name, read), member in pairs]

    def _record(
        self,
        kind: Any,  # noqa: ANN401 - a record
        value: object,
        given: Mapping[str, object] = MappingProxyType({}),
    ) -> Any:  # noqa: ANN401 - a record
        is_row = self.has_rows and isinstance(value, list | tuple)
        if is_row or (hasattr(kind, "_fields") and not isinstance(value, Mapping)):
            reads = {field.name: field.read for field in self.fields_of(kind)}
            return kind(*self._row(reads, value, ", ".join(reads)))
        table = self._table(value)
        fields = [field for field in self.fields_of(kind) if field.name not in given]
        if self.is_strict:
            known = [*itertools.chain(*(field.keys for field in fields))]
            for key in (key for key in table if key not in known):
                names = [name for name in known if name is not Mark.NAME]
                close = get_close_matches(key, names, n=1)
                meant = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(names)}"
                raise Misfit(f"has no key {key!r}; {meant}", inner=key)
        arguments = {**given}
        for field in fields:
            if Mark.FLAT in field.marks:
                part = {key: table[key] for key in field.keys if key in table}
                if part or field.is_required:
                    arguments[field.name] = field.read(part)
                continue
            key = field.keys[0]
            value = table.get(key, _MISSING)
            if self.is_none_missing and (value is None or value is _MISSING):
                value = None if field.is_required else _MISSING
            if value is _MISSING and field.is_required:
                raise Misfit(f"is missing{field.remedy('add it')}", key)
            if value is not _MISSING:
                try:
                    arguments[field.name] = read_at(key, field.read, value)
                except Misfit as misfit:
                    if misfit.problem == EMPTY:
                        misfit.problem += field.remedy("give a value")
                    raise
        try:
            return kind(**arguments)
        except self.refusal as error:
            raise misfit_of(error, arguments) from None

    def fields_of(self, kind: Any) -> tuple[_Field, ...]:  # noqa: ANN401 - a type
        """The fields of a record that a file may have; of what is not a record none."""
        if kind not in self._fields:
            required = _required(kind)
            kinds = typing.get_type_hints(kind, include_extras=True) if required else {}
            self._fields[kind] = tuple(
                self._field(name, kinds[name], is_required=required[name])
                for name in required
                if Mark.NO_KEY not in getattr(kinds[name], "__metadata__", ())
            )
        return self._fields[kind]

    def _field(self, name: str, kind: Any, *, is_required: bool) -> _Field:  # noqa: ANN401 - a type
        marks: tuple[Any, ...] = getattr(kind, "__metadata__", ())
        keys: tuple[Any, ...] = tuple(mark.name for mark in marks if isinstance(mark, As))
        keys = (Mark.NAME,) if Mark.NAME in marks else keys or (name,)
        if Mark.FLAT in marks:
            source = _source(kind.__origin__, marks)
            parts = (source, *typing.get_args(source))
            keys = tuple(
                key for part in parts for each in self.fields_of(part) for key in each.keys
            )
        example = "".join(mark.text for mark in marks if isinstance(mark, Example))
        return _Field(name, keys, self._reader(kind), is_required, example, marks)


def _source(kind: Any, marks: Sequence[Any]) -> Any:  # noqa: ANN401 - types
    """The form of an annotated type in a file."""
    return next((mark.kind for mark in marks if isinstance(mark, From)), kind)


def _required(kind: Any) -> dict[str, bool]:  # noqa: ANN401 - a type
    """Which fields of a dataclass or a named tuple have no default; of another type none."""
    if dataclasses.is_dataclass(kind):
        return {
            field.name: field.default is field.default_factory is dataclasses.MISSING
            for field in dataclasses.fields(kind)
        }
    names = getattr(kind, "_fields", ())
    return {name: name not in kind._field_defaults for name in names}


def read_at(key: str | int, read: Read, value: object) -> Any:  # noqa: ANN401 - what it reads
    """Reads a part of a value; an error says where it is."""
    try:
        return read(value)
    except Misfit as misfit:
        misfit.keys = (key, *misfit.keys)
        raise


EMPTY: Final = "is empty"


def show(value: object) -> str:
    """A value as errors show it."""
    return str(value).lower() if isinstance(value, bool) else show_value(value)


def choose(value: object, choices: Mapping[Any, T]) -> T:
    """The choice of a name; raises a Misfit where there is none."""
    if isinstance(value, str | int) and value in choices and not isinstance(value, bool):
        return choices[value]
    close = get_close_matches(value, choices, n=1) if isinstance(value, str) else []
    if close:
        raise Misfit(f"is {show(value)}; did you mean {close[0]!r}?")
    few = len(choices) < 3
    expected = " or ".join(map(str, choices)) if few else f"one of {', '.join(map(str, choices))}"
    raise Misfit(f"is {show(value)}; expected {expected}")


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Refuses smaller and larger numbers; where it is open, the least too."""

    least: int
    most: int | None = None
    is_open: bool = False

    def __call__(self, value: Any) -> Any:  # noqa: ANN401 - a number
        """The number; raises a Misfit."""
        if value < self.least or (self.is_open and value == self.least):
            expected = f"more than {self.least}" if self.is_open else f"{self.least} or more"
            raise Misfit(f"is {value}; expected {expected}")
        if self.most is not None and value > self.most:
            raise Misfit(f"is {value}; expected {self.most} at most")
        return value


def at_least(least: int) -> NumberRange:
    """Refuses smaller numbers."""
    return NumberRange(least)


_OF_JSON: Final = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false",
    list: "a list", dict: "an object",
}  # fmt: skip
JSON: Final = Reader(_OF_JSON, synonyms={Path: Annotated[str, Path]})
STRICT_JSON: Final = Reader(_OF_JSON, is_strict=True)


def restore(kind: type[T], value: object, name: str) -> T:
    """The record that `plain` has converted; raises ValueError, which names the value so, where a
    field is missing or not of its type.
    """
    try:
        return JSON.read(kind, value)
    except Misfit as misfit:
        raise ValueError(misfit.say(name)) from None

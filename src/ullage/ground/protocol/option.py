"""An option is written once: as a field of a verb's record.

    GPU = HelpSection("GPU")

    @dataclass(frozen=True, slots=True)
    class RunOptions:
        program: Command                    # a place before KW_ONLY: an argument
        _: KW_ONLY
        memory: str | None = GPU("Total memory of the GPU, for example 24GiB.", "SIZE")
        on_progress: Listener = None        # without a section: of the Python function alone

The field's type says how its text is read (ground/protocol/plain.py), its default what holds
without it, the call of its section what `--help` says. The command line
(verbs/command_line/command.py), the section of ullage.toml and its schema, and the signature of the
Python function (`takes`) follow.
"""

from __future__ import annotations

import inspect
import numbers
import os
import shlex
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import JSON, From, Mark, Misfit, NumberRange, at_least

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
T_contra = TypeVar("T_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Option:
    """The text of a field in `--help`.

    Attributes:
        section: the title under which it is listed.
        help: one sentence.
        metavar: stands for the value; None: its choices, or its type.
        flags: the spellings; empty: `--` and the field's name.
        bare: the text that holds where the flag has no value; None: it needs one.
        complete: whose names a shell completes; None: nobody's.
        is_required: whether the command needs it.
    """

    section: str
    help: str
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    bare: str | None = None
    complete: Literal["gpus", "models"] | None = None
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class HelpSection:
    """A section of `--help`; calling it makes a field. It returns Any, so that a type checker takes
    the field's annotation for its type.
    """

    title: str

    def __call__(
        self, help: str, metavar: str | None = None, *flags: str, default: Any = ...,
        **more: Any,
    ) -> Any:  # fmt: skip
        """A field; `more` is as of `Option`."""
        if default is ...:
            default = None if self.title else MISSING
        option = Option(self.title, help, metavar, flags, **more)
        return field(default=default, metadata={"option": option}, kw_only=bool(self.title))

    def switch(self, help: str, *flags: str) -> Any:
        """A field that is False where its flag is not given."""
        return self(help, None, *flags, default=False)


ARGUMENT, OPTIONS = HelpSection(""), HelpSection("Options")
# Of the section in ullage.toml and of the Python function, not of the command line.
SETTINGS = HelpSection("Settings")
_NUMBERS: Mapping[Any, type] = {int: numbers.Integral, float: numbers.Real}
_KNOWN: dict[Any, Mapping[str, tuple[Any, Any, Option | None]]] = {}


def _split_names(text: str) -> tuple[str, ...]:
    return (*filter(None, (name.strip() for name in text.split(","))),)


def _split_words(text: str) -> tuple[str, ...]:
    """The words in a text, as a shell reads them."""
    try:
        return (*shlex.split(text),)
    except ValueError as error:
        raise Misfit(f"is {text!r}: {error}") from None


# The words of a program, as they would follow `ullage run --`.
Command: TypeAlias = Annotated[Sequence[str], Mark.NO_KEY]
# Called with a line of text.
Listener: TypeAlias = Annotated[Callable[[str], None] | None, Mark.NO_KEY]
# A program: one without a / is looked for on PATH.
Program = NewType("Program", str)
Python: TypeAlias = Annotated[str | os.PathLike[str], From(Program)]
File: TypeAlias = Annotated[str | os.PathLike[str], From(Path)]
Count: TypeAlias = Annotated[int, at_least(1)]
Port: TypeAlias = Annotated[int, NumberRange(0, 65535)]
# Bytes, or a text such as "24GiB".
Size: TypeAlias = str | int
Names: TypeAlias = Annotated[Sequence[str], From(str), _split_names]
Words: TypeAlias = Annotated[Sequence[str], From(str), _split_words]


def options_of(record: Any) -> Mapping[str, tuple[Any, Any, Option | None]]:
    """The fields of a record: the type without None, the default, and what --help says."""
    if record not in _KNOWN:
        hints = typing.get_type_hints(record, include_extras=True)
        _KNOWN[record] = {
            each.name: (
                without_none(hints[each.name]),
                each.default,
                each.metadata.get("option") or (None if each.kw_only else Option("", "")),
            )
            for each in fields(record)
        }
    return _KNOWN[record]


def flag_of(name: str, option: Option | None) -> str:
    """How an option is spelled: "--try-remedies"; of an argument, "FILE"."""
    if option is None or not option.section:
        return name.upper()
    return option.flags[-1] if option.flags else f"--{name.replace('_', '-')}"


def without_none(kind: Any) -> Any:
    """`int | None` as int: on a command line, and in TOML, None is what is not there."""
    members = typing.get_args(kind)
    if types.NoneType not in members:
        return kind
    return typing.Union[tuple(each for each in members if each is not types.NoneType)]  # noqa: UP007


def written(kind: Any) -> Any:
    """The type that a file or a command line has in place of an annotated one."""
    for mark in getattr(kind, "__metadata__", ()):
        if isinstance(mark, From):
            return written(mark.kind)
    return written(kind.__origin__) if typing.get_origin(kind) is Annotated else kind


def share(kind: Callable[..., T], options: object, **given: object) -> T:
    """A record with another's fields of the same names, and with what is given."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type] # a record
    same = {each.name: getattr(options, each.name) for each in fields(options)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in same.items() if name in names} | given)


def _check_numbers(options: object) -> None:
    # What the command line and a file give has been read by its type; a caller may give a text.
    for name, (kind, _, _) in options_of(type(options)).items():
        expected = _NUMBERS.get(written(kind))
        value = getattr(options, name)
        if expected is None or value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, expected):
            what = JSON.names[written(kind)]
            raise SpecError(f"{name}={value!r} is not {what}; expected {what}, without quotes")


class Takes(Protocol[P, T_contra, A_co]):
    """A function that is called with the fields of a record."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> A_co:
        """The result that the function returns for these fields."""

    def act(self, options: T_contra, /) -> A_co:
        """The same for a record."""


def takes(record: Callable[P, T]) -> Callable[[Callable[[T], A]], Takes[P, T, A]]:
    """Has a function of a record called with the record's fields; its help names them."""

    def wrap(act: Callable[[T], A]) -> Takes[P, T, A]:
        def call(*args: P.args, **kwargs: P.kwargs) -> A:
            options = record(*args, **kwargs)
            _check_numbers(options)
            return act(options)

        kind, function = cast("type", record), cast("Any", call)
        lines = [
            f"    {name}: {option.help}"
            for name, (_, _, option) in options_of(kind).items()
            if option is not None and option.help
        ]
        for name in ("__name__", "__qualname__", "__module__"):
            setattr(call, name, getattr(act, name))
        function.__doc__ = "\n".join((inspect.getdoc(act) or "", "", "Options:", *lines))
        function.__signature__ = inspect.signature(record).replace(
            return_annotation=act.__annotations__.get("return")
        )
        function.act = act
        return cast("Takes[P, T, A]", call)

    return wrap


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a field's value in ullage.toml."""
    kind = written(without_none(kind))
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return {"enum": [*members]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(member) for member in members]}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": schema_of(members[0])}
    names = {int: "integer", float: "number", bool: "boolean"}
    return {"type": names.get(kind, "string")}


def table_schema(record: type) -> dict[str, Any]:
    """The JSON schemas of a record's options by name, by which an editor completes them."""
    return {
        name: schema_of(kind) | {"description": option.help}
        for name, (kind, _, option) in options_of(record).items()
        if option is not None and option.section
    }

"""The command line of a verb, made of its records of options.

@command(most_used=("gpu",), outputs=("as_json",))
def run_command(options: RunOptions, output: Output) -> int:
    '''Run a program on a simulated GPU.'''

What the command line does not give is taken from the verb's section of ullage.toml.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeVar

import click
from click.core import ParameterSource

from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import (
    SETTINGS,
    Command,
    Option,
    Program,
    flag_of,
    options_of,
    written,
)
from ullage.ground.protocol.plain import Mark, Misfit, NumberRange, Reader
from ullage.verbs import SECTIONS
from ullage.verbs.command_line.output import Output

R = TypeVar("R")
_NAMES: Final = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
    dict: "a table",
}  # fmt: skip
READER: Final = Reader(_NAMES, {}, {Path: Annotated[str, Path], Program: str})
ALL: Final = ("output", "force", "as_json", "full")


class Verb(click.Command):
    """A command that is made of records of options, in whose sections --help lists them."""

    records: Sequence[type[Any]]
    sections: Mapping[str, Sequence[str]]
    settings: Sequence[str]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options by section; what has none comes last."""
        params = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = {param.name: param.get_help_record(ctx) for param in params}
        parts = {
            title: [rows.pop(name) for name in names] for title, names in self.sections.items()
        }
        parts.setdefault("Options" if "Options" in parts else "Other", []).extend(rows.values())
        for title, records in parts.items():
            with formatter.section(title):
                formatter.write_dl([row for row in records if row is not None])
        if self.settings:
            with formatter.section(f"Also in [{self.name}] of ullage.toml"):
                formatter.write_text(", ".join(self.settings))

    def read(self, context: click.Context) -> list[Any]:
        """The records of a command line, and of the verb's section in ullage.toml."""
        source = context.get_parameter_source
        texts = {
            name: value
            for name, value in context.params.items()
            if source(name) is ParameterSource.COMMANDLINE
        }
        more: dict[str, Any] = {}
        if self.name in SECTIONS:
            from ullage.verbs.command_line.section import read_section

            names = [each.name for each in self.params if isinstance(each, click.Option)]
            names += self.settings
            more = read_section(str(self.name), self.records, [*filter(None, names)])
        return [_read(record, context.params, texts, more) for record in self.records]


def command(
    *, most_used: Sequence[str] = (), outputs: Sequence[str] = ("output", "as_json"),
    says: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[..., int | None]], Verb]:  # fmt: skip
    """Makes a command of a function of records: its parameters' types are the records.

    Args:
        most_used: the options that --help lists first.
        outputs: the fields of `Output` that the command has.
        says: what --help says of an option in place of its own sentence.
    """

    def wrap(act: Callable[..., int | None]) -> Verb:
        hints = typing.get_type_hints(act)
        records = [kind for name, kind in hints.items() if name != "return"]
        params: dict[str, click.Argument | click.Option] = {}
        sections, settings = {"Most used": [*most_used]}, []
        for record in records:
            # What writes no file overwrites none.
            shown = {*outputs, "force"} if "output" in outputs else {*outputs}
            hidden = {*ALL} - shown if issubclass(record, Output) else set()
            for name, (kind, default, option) in options_of(record).items():
                if option is None:
                    continue
                if not option.section:
                    needed = default is MISSING and kind is not Command
                    is_needed = needed and (name not in params or params[name].required)
                    params[name] = _argument(name, kind, option, is_needed=is_needed)
                elif option.section == SETTINGS.title:
                    settings.append(name)
                elif name not in params and name not in hidden:
                    option = replace(option, help=says.get(name, option.help))
                    params[name] = _option(name, kind, default, option)
                    if name not in most_used:
                        sections.setdefault(option.section, []).append(name)
        name = act.__name__.removesuffix("_command").replace("_", "-")
        verb: Verb = Verb(
            name, help=act.__doc__, params=[*params.values()],
            callback=click.pass_context(lambda context, /, **_: act(*verb.read(context))),
            context_settings={"allow_interspersed_args": "program" not in params},
        )  # fmt: skip
        verb.records, verb.settings = records, settings
        verb.sections = {title: names for title, names in sections.items() if names}
        return verb

    return wrap


def _read(
    record: type[R], values: Mapping[str, Any], texts: Mapping[str, Any], more: Mapping[str, Any]
) -> R:
    """A record of what the command line gives, and of the file's values for the rest."""
    options = options_of(record)
    read: dict[str, Any] = {}
    unread: dict[str, Any] = {}
    for name, (kind, default, _) in options.items():
        if Mark.NO_KEY in getattr(kind, "__metadata__", ()):
            unread |= {name: values[name]} if name in values else {}
        elif name in texts:
            read[name] = texts[name]
        elif name in more:
            unread[name] = more[name]
        elif default is MISSING:
            unread[name] = None
    try:
        return READER.read(record, read, **unread)
    except Misfit as misfit:
        name = str(misfit.keys[0])
        raise SpecError(f"{flag_of(name, options[name][2])} {misfit.problem}") from None


def _argument(name: str, kind: Any, option: Option, *, is_needed: bool) -> click.Argument:
    is_program = kind is Command
    metavar = option.metavar or ("-- PROGRAM [ARGUMENTS]" if is_program else None)
    is_many = is_program or typing.get_origin(written(kind)) in (tuple, Sequence)
    return click.Argument(
        [name], metavar=metavar, nargs=-1 if is_many else 1, required=is_needed,
        type=click.UNPROCESSED if is_program else _click_type(kind),
    )  # fmt: skip


def _option(name: str, kind: Any, default: object, option: Option) -> click.Option:
    flags = option.flags or (f"--{name.replace('_', '-')}",)
    more: dict[str, Any] = {"metavar": option.metavar, "required": option.is_required}
    if default is False or any("/" in flag for flag in flags):
        more = {"is_flag": True}
    elif default is True:
        more |= {"type": click.Choice(("on", "off")), "callback": _read_switch}
    else:
        is_many = typing.get_origin(written(kind)) in (tuple, Sequence)
        more |= {"type": _click_type(kind), "multiple": is_many}
        if option.complete is not None:
            more["shell_complete"] = partial(_complete, option.complete)
        if option.bare is not None:
            more |= {"is_flag": False, "flag_value": option.bare}
    return click.Option([*flags, name], help=option.help, **more)


def _read_switch(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> bool | None:
    return None if value is None else value == "on"


def _click_type(kind: Any) -> click.ParamType[Any] | type:
    bounds = [mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, NumberRange)]
    kind = written(kind)
    if bounds and kind is int:
        return click.IntRange(bounds[0].least, bounds[0].most)
    if bounds:
        return click.FloatRange(bounds[0].least, min_open=bounds[0].is_open)
    if typing.get_origin(kind) in (tuple, Sequence):
        kind = written(typing.get_args(kind)[0])
    if typing.get_origin(kind) is Literal:
        return click.Choice(typing.get_args(kind))
    if kind is Path:
        return click.Path()
    return kind if kind in (int, float) else str


def _complete(
    what: str, _context: click.Context, _option: click.Parameter, typed: str
) -> list[str]:
    """The names of the catalogue that begin so; of several with commas, the last one."""
    if what == "models":
        from ullage.facts.families.builtin import load_models

        names = [model.name for model in load_models().values()]
    else:
        from ullage.facts.gpus import load_catalog

        names = [gpu.slug for gpu in load_catalog()]
    before, comma, last = typed.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

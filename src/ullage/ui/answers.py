"""Answers the queries of the page's controls with estimates.

answer({"model": "llama-3.1-8b", "gpu": "h100-80gb", "recipe": {"batch": 4}})        # training
answer({"model": "llama-3.1-8b", "gpu": "h100-80gb", "serve": {"context": 8192}})    # serving

A query is checked field by field, as whoever has the token can send any; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final, TypeVar

from ullage.errors import SpecError
from ullage.estimate.serving.serving import ServingEstimate, ServingPlan, estimate_serving
from ullage.estimate.training.answer import Answer
from ullage.estimate.training.estimate import estimate_training
from ullage.estimate.training.layout import ALONE, Layout
from ullage.estimate.training.recipe import Lora, Recipe
from ullage.estimate.training.totals import list_parts
from ullage.gpus import Gpu, find_gpu
from ullage.models.builtin import find_model
from ullage.models.config import Config
from ullage.models.find import Found
from ullage.report.document.estimate import estimate_document
from ullage.report.document.serving import serving_document
from ullage.ui.shape import read_shape, reshape

T = TypeVar("T")

_FIELDS: Final = {"model", "config", "depth", "width", "gpu", "recipe", "serve"}
_OWN: Final = "config.json"
_RECORDS: Final[Mapping[str, type]] = {"Lora": Lora, "Layout": Layout}
# What JSON has for a field of a record, by how the record declares it.
_KINDS: Final[Mapping[str, type]] = {
    "int": int, "str": str, "bool": bool, "float": float, "None": type(None),
    "tuple[str, ...]": list, "Lora": dict, "Layout": dict,
}  # fmt: skip
_NAMES: Final[Mapping[type, str]] = {
    int: "a whole number", str: "a text", bool: "true or false", float: "a number",
    dict: "an object", list: "a list of texts", type(None): "null",
}  # fmt: skip


# What the program that is run for a check does not have.
_UNCHECKED: Final = ("library", "loss", "packed", "compiled", "zeroes_late", "torch")


class BadQuery(SpecError):
    """A query that the page cannot make: with an unknown field, or one of a wrong type."""


def answer(query: object) -> dict[str, Any]:
    """The estimate for a query.

    Raises:
        BadQuery: the query is not one.
        SpecError: what it asks for cannot be.
    """
    fields = read_object(query, "the query")
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        raise BadQuery(f"the query: found {unknown[0]!r}, expected {', '.join(sorted(_FIELDS))}")
    model = read_model(fields)
    if "serve" in fields:
        document = serving_document(read_serving(fields)[1], model.source)
    else:
        training = estimate_training(model.config, read_recipe(fields), read_gpu(fields))
        document = estimate_document(Answer(training, model.source))
        document["timeline"] = [part._asdict() for part in list_parts(training.log)]
    return {"shape": asdict(read_shape(model.config)), "document": document}


def read_gpu(fields: Mapping[str, Any]) -> Gpu:
    """The GPU that a query names.

    Raises:
        SpecError: there is no such GPU.
    """
    return find_gpu(_read(fields, "gpu", "str"))


def read_serving(fields: Mapping[str, Any]) -> tuple[Config, ServingEstimate]:
    """The model of a query, and the estimate of serving it.

    Raises:
        BadQuery: a field is not one of a plan, or of another type.
        SpecError: its values cannot be.
    """
    config = read_model(fields).config
    plan = _read_record(fields["serve"], "serve", ServingPlan)
    return config, estimate_serving(config, replace(plan, gpu=read_gpu(fields)))


def read_loop(query: Mapping[str, Any]) -> dict[str, Any]:
    """The training loop that a query describes, as ui/check_child.py reads it.

    Raises:
        SpecError: it is of several ranks or trains QLoRA, or cannot be.
    """
    recipe = read_recipe(query)
    if recipe.layout != ALONE:
        raise SpecError(
            "a job of several ranks is not checked here; run your own program with "
            "`ullage run --world-size`"
        )
    if recipe.lora is not None and recipe.lora.is_quantized:
        raise SpecError("QLoRA is not checked here; run your own program with `ullage run`")
    fields = dict(read_model(query).config.fields)
    plain = Recipe()
    for name in _UNCHECKED:
        if getattr(recipe, name) != getattr(plain, name):
            raise SpecError(
                f"{name} {getattr(recipe, name)} is not checked here; run your own program with "
                "`ullage run`"
            )
    if recipe.has_masters or recipe.checkpointing == "alternate":
        raise SpecError("such a loop is not checked here; run your own program with `ullage run`")
    return {"config": fields, "recipe": asdict(recipe), "gpu": read_gpu(query).slug}


def read_model(fields: Mapping[str, Any]) -> Found:
    """The model that a query names or brings, in the depth and width it asks for.

    Raises:
        BadQuery: the query's fields are of wrong types.
        SpecError: there is no such model, or it cannot have that shape.
    """
    if "config" not in fields:
        known = find_model(_read(fields, "model", "str"))
        config, source = known.config, known.source
    elif isinstance(fields["config"], dict):
        config, source = Config(_OWN, fields["config"]), ""
    else:
        raise SpecError(f"{_OWN}: found {type(fields['config']).__name__}, expected an object")
    depth, width = (
        _read(fields, name, "int") if name in fields else None for name in ("depth", "width")
    )
    return Found(reshape(config, depth=depth, width=width), source)


def read_recipe(fields: Mapping[str, Any]) -> Recipe:
    """How the model of a query is trained.

    Raises:
        BadQuery: a field is not one of a recipe, or of another type.
        SpecError: its values cannot be.
    """
    return _read_record(fields.get("recipe", {}), "recipe", Recipe)


def read_object(value: object, where: str) -> dict[str, Any]:
    """An object of JSON.

    Raises:
        BadQuery: it is something else.
    """
    if not isinstance(value, dict):
        raise BadQuery(f"{where}: found {type(value).__name__}, expected an object")
    return value


def _read_record(value: object, where: str, record: type[T]) -> T:
    """The record that an object describes; records within it likewise. Fields that JSON has nothing
    for, such as a GPU, are not taken.
    """
    declared = {field.name: str(field.type) for field in fields(record)}  # type: ignore[arg-type]
    known = {name: kind for name, kind in declared.items() if {*kind.split(" | ")} <= {*_KINDS}}
    values = {}
    for name, field_value in read_object(value, where).items():
        if name not in known:
            raise BadQuery(f"{where}: found {name!r}, expected {', '.join(known)}")
        inner = known[name].partition(" | ")[0]
        _check(f"{where} {name}", field_value, known[name])
        if isinstance(field_value, dict):
            field_value = _read_record(field_value, name, _RECORDS[inner])
        elif isinstance(field_value, list):
            field_value = tuple(_check(f"{where} {name}", word, "str") for word in field_value)
        values[name] = field_value
    return record(**values)


def _read(fields: Mapping[str, Any], name: str, declared: str) -> Any:  # noqa: ANN401
    if name not in fields:
        raise BadQuery(f"the query has no {name!r}")
    return _check(name, fields[name], declared)


def _check(where: str, value: object, declared: str) -> object:
    """A value that JSON has for such a declaration; true and false are no numbers."""
    kinds = [_KINDS[name] for name in declared.split(" | ")]
    if type(value) not in kinds and not (float in kinds and type(value) is int):
        expected = " or ".join(_NAMES[kind] for kind in kinds)
        raise BadQuery(f"{where}: found {value!r}, expected {expected}")
    return value

"""Answers the queries of the page's controls with estimates.

answer({"model": "llama-3.1-8b", "gpu": "h100-80gb", "recipe": {"batch": 4}})        # training
answer({"model": "llama-3.1-8b", "gpu": "h100-80gb", "serve": {"context": 8192}})    # serving

A query is checked field by field, as whoever has the token can send any; nothing is computed here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.facts.families.find import Found
from ullage.facts.gpus import Gpu, find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import STRICT_JSON, Misfit, document_of
from ullage.players.eager.serving.serving import ServingEstimate, ServingPlan, estimate_serving
from ullage.players.eager.training.answer import Answer
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.layout import ALONE
from ullage.players.eager.training.recipe import Recipe
from ullage.players.eager.training.totals import list_parts
from ullage.verbs.capacity.function import ServerCapacity
from ullage.verbs.ui.shape import read_shape, reshape

T = TypeVar("T")
_OWN: Final = "config.json"
_PLAIN: Final = Recipe()
# What the program that is run for a check does not have.
_UNCHECKED: Final = ("library", "loss", "packed", "compiled", "zeroes_late", "torch")


class BadQuery(SpecError):
    """A query that the page cannot make: with an unknown field, or one of a wrong type."""


@dataclass(frozen=True, slots=True)
class Query:
    """The state of the controls: a GPU, a model that is built in or brought, in a depth and width,
    and how it is trained, or served.
    """

    gpu: str
    model: str | None = None
    config: Any = None
    depth: int | None = None
    width: int | None = None
    recipe: Recipe = _PLAIN
    serve: ServingPlan | None = None

    def find_gpu(self) -> Gpu:
        """The GPU; raises SpecError where there is none of this name."""
        return find_gpu(self.gpu)

    def find_model(self) -> Found:
        """The model; raises SpecError where there is none, or where it cannot have that shape."""
        if self.config is not None:
            if not isinstance(self.config, dict):  # the user's own text, and no query of the page's
                raise SpecError(f"{_OWN}: found {type(self.config).__name__}, expected an object")
            config, source = Config(_OWN, self.config), ""
        elif self.model is not None:
            known = find_model(self.model)
            config, source = known.config, known.source
        else:
            raise BadQuery("the query has no 'model'")
        return Found(reshape(config, depth=self.depth, width=self.width), source)

    def estimate_serving(self) -> ServingEstimate:
        """The estimate of serving the model; raises SpecError where it cannot be."""
        plan = replace(self.serve or ServingPlan(), gpu=self.find_gpu())
        return estimate_serving(self.find_model().config, plan)


def answer(document: object) -> dict[str, Any]:
    """The estimate for a query.

    Raises:
        BadQuery: the query is not one.
        SpecError: what it asks for cannot be.
    """
    query = read(Query, document, "the query")
    model = query.find_model()
    if query.serve is not None:
        answered = document_of(ServerCapacity(query.estimate_serving(), model.source))
    else:
        training = estimate_training(model.config, query.recipe, query.find_gpu())
        answered = document_of(Answer(training, model.source))
        answered["timeline"] = [part._asdict() for part in list_parts(training.log)]
    return {"shape": asdict(read_shape(model.config)), "document": answered}


def make_loop(query: Query) -> dict[str, Any]:
    """The training loop that a query describes, as verbs/ui/check_child.py reads it.

    Raises:
        SpecError: it is of several ranks or trains QLoRA, or cannot be.
    """
    recipe = query.recipe
    if recipe.layout != ALONE:
        raise SpecError(
            "a job of several ranks is not checked here; run your own program with "
            "`ullage run --world-size`"
        )
    if recipe.lora is not None and recipe.lora.is_quantized:
        raise SpecError("QLoRA is not checked here; run your own program with `ullage run`")
    fields = dict(query.find_model().config.fields)
    for name in _UNCHECKED:
        if getattr(recipe, name) != getattr(_PLAIN, name):
            raise SpecError(
                f"{name} {getattr(recipe, name)} is not checked here; run your own program with "
                "`ullage run`"
            )
    if recipe.has_masters or recipe.checkpointing == "alternate":
        raise SpecError("such a loop is not checked here; run your own program with `ullage run`")
    return {"config": fields, "recipe": asdict(recipe), "gpu": query.find_gpu().slug}


def read(kind: type[T], document: object, name: str) -> T:
    """Reads what the page sent, as a record; raises BadQuery where it is something else."""
    try:
        return STRICT_JSON.read(kind, document)
    except Misfit as misfit:
        raise BadQuery(misfit.of_file(name)) from None

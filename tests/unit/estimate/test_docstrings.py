"""Every formula says what it counts, what it ignores, its error and its source."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.rows import each

from ullage.players.eager.serving.model_weights import FORMATS
from ullage.players.eager.training.eager.cudnn import convolution_scratch
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.eager.parallel.sharding import shard_numel
from ullage.players.eager.training.eager.reductions import scratch_of_columns
from ullage.players.eager.training.loop import play_training
from ullage.players.eager.training.optimizers import OPTIMIZERS
from ullage.players.eager.training.spread import Spread

# In these every public function that gives a size is a formula; elsewhere some are.
MODULES = (
    "serving.adapters", "serving.engines.transformers",
    "serving.engines.vllm", "serving.model_weights",
    "serving.serving", "serving.vllm_memory",
    "serving.drafts", "training.estimate",
    "training.totals", "workloads.diffusion", "workloads.index", "workloads.passes",
    "workloads.speech",
)  # fmt: skip
OTHERS: tuple[Callable[..., Any], ...] = (
    Machine.blas_workspace_bytes.fget, Spread.host_bytes, convolution_scratch, play_training,
    scratch_of_columns, shard_numel,
)  # type: ignore[assignment]  # fmt: skip
# What gives these looks something up, checks or chooses among what was given; one searches.
SEARCH = "find_longest"
NO_SIZE = {"None", "bool", "str", "Format", "Precision", "Stage", "vllm.Settings"}
NO_SIZE |= {"Offload", "tuple[Model, ServingPlan]", "tuple[Index, Tiers, int]"}
NO_SIZE |= {
    "tuple[Entry | None, Machine]",
    "Iterator[Stretch]",
    "Iterator[StepPart]",
    "Iterator[tuple[Stretch, Sequence[int]]]",
    "Play",
    "Recipe",
}
# A paper, a file of a library, a version of one, or the table or derivation that is there to read.
SOURCE = re.compile(
    r"arXiv:|doi:|\b\d{4}, |\w\.(py|cuh?|cpp|c|toml)\b|faiss, |derived here|`source`|that of \w"
)


def formulas() -> Iterator[Callable[..., Any]]:
    """All of them."""
    for name in (
        *(f"ullage.players.eager.{name}" for name in MODULES),
        "ullage.facts.families.kv_cache",
        "benchmarks.plans.closed_forms",
    ):
        module = importlib.import_module(name)
        for _, function in inspect.getmembers(module, inspect.isfunction):
            is_own = function.__module__ == module.__name__ and function.__name__[0] != "_"
            if is_own and function.__name__ != SEARCH:
                gives = inspect.signature(function).return_annotation
                yield from () if gives in NO_SIZE else (function,)
    yield from OTHERS


def name_of(formula: Callable[..., Any]) -> str:
    """How it is called in the name of a test."""
    return f"{formula.__module__}.{formula.__qualname__}"


@each("formula", formulas(), name=name_of)
def test_a_formula_says_what_it_counts_what_it_ignores_its_error_and_its_source(
    formula: Callable[..., Any],
) -> None:
    text = inspect.getdoc(formula) or ""
    parts = re.split(r"\b(Counts|Ignores|Error|Source|Args|Raises): ", " ".join(text.split()))
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(sections)[:4] == ["Counts", "Ignores", "Error", "Source"]
    assert all(len(sections[name].strip(" .")) > 2 for name in ("Counts", "Ignores", "Error"))
    assert SOURCE.search(sections["Source"]), sections["Source"]


def test_the_formulas_are_found() -> None:
    names = {formula.__name__ for formula in formulas()}
    assert {"token_bytes", "weight_bytes", "sqrt_peak", "count_totals"} <= names
    assert len(names) > 40


@each("name", OPTIMIZERS)
def test_an_optimizer_names_the_file_that_it_follows(name: str) -> None:
    assert re.search(r"\w/\w+\.py$", OPTIMIZERS[name].source)


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.bits < 16])
def test_a_format_of_weights_has_a_source(name: str) -> None:
    assert FORMATS[name].source

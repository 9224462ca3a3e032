"""Advice on other choices, computed in a process of its own, so that the page stays responsive.

    answered = await ask({"about": "gpus", "query": {...}})     # what the page's controls say

- gpus: the catalogue, ranked by how many it takes.
- largest: the largest batch, length, image, depth and model that fit the GPU.
- knobs: changes that save memory, the best bargain first.

As a program it reads such an object from stdin and writes what was found, or {"problem": "..."}.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from ullage.facts.gpus import load_catalog
from ullage.ground.errors import SpecError, UllageError
from ullage.players.eager.serving.gpu_ranking import rank_for_serving
from ullage.players.eager.training.answer import (
    Largest,
    bisect,
    find_knobs,
    find_largest,
    rank_gpus,
)
from ullage.players.eager.training.estimate import estimate_training
from ullage.verbs.ui.answers import BadQuery, Query, read
from ullage.verbs.ui.shape import read_shape, reshape

_TIME_LIMIT_S: Final = 120.0
_DEEPEST: Final = 1024
_LATER: Final = 10  # niceness: the sliders' answers go first


async def ask(question: object) -> bytes:
    """The answer of `advise`, as JSON.

    Raises:
        BadQuery: it is not a question that the page has.
        SpecError: it takes too long.
    """
    _read_question(question)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ullage.verbs.ui.advice", stdin=PIPE, stdout=PIPE
    )
    try:
        answer, _ = await asyncio.wait_for(
            process.communicate(json.dumps(question).encode()), _TIME_LIMIT_S
        )
    except TimeoutError:
        raise SpecError(f"there was no answer after {_TIME_LIMIT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode or not answer:
        raise SpecError("the answer could not be computed; the terminal of `ullage ui` says why")
    return answer


def advise(document: object) -> dict[str, Any]:
    """The answer to a question about a query of the controls: {"rows": [...]}.

    Raises:
        BadQuery: it is not a question that the page has.
        SpecError: what the query asks for cannot be.
    """
    find, query = _read_question(document)
    return {"rows": [asdict(row) for row in find(query)]}


@dataclass(frozen=True, slots=True)
class _Question:
    """The question that the controls ask."""

    about: str
    query: Query


def _read_question(document: object) -> tuple[_Answer, Query]:
    question = read(_Question, document, "the question")
    answers = _OF_TRAINING if question.query.serve is None else _OF_A_SERVER
    if question.about not in answers:
        raise BadQuery(f"about: found {question.about!r}, expected {', '.join(answers)}")
    return answers[question.about], question.query


def _gpus(query: Query) -> Iterable[Any]:
    return rank_gpus(query.find_model().config, query.recipe, load_catalog())


def _knobs(query: Query) -> Iterable[Any]:
    return find_knobs(query.find_model().config, query.recipe, query.find_gpu())


def _largest(query: Query) -> Iterator[Largest]:
    config, recipe, gpu = query.find_model().config, query.recipe, query.find_gpu()
    shape = read_shape(config)
    yield find_largest(config, recipe, gpu, "batch")
    for knob in ("length", "image"):
        if getattr(recipe, knob) is not None:
            with suppress(SpecError):  # some models have one length or size alone
                yield find_largest(config, recipe, gpu, knob)

    least = recipe.layout.pipeline  # each stage has a layer

    def needs(depth: int) -> int:
        return estimate_training(reshape(config, depth=depth), recipe, gpu).high_bytes

    if shape.depth is not None:
        depth = bisect(lambda depth: depth < least or needs(depth) <= gpu.total_bytes, _DEEPEST)
        is_found = depth is not None and depth >= least
        yield Largest("depth", gpu.slug, depth if is_found else None, needs(max(depth or 1, least)))


def _server_gpus(query: Query) -> Iterable[Any]:
    plan = query.estimate_serving().plan
    return rank_for_serving(query.find_model().config, plan, load_catalog())


_Answer = Callable[[Query], Iterable[Any]]
_OF_TRAINING: Final[Mapping[str, _Answer]] = {"gpus": _gpus, "largest": _largest, "knobs": _knobs}
_OF_A_SERVER: Final[Mapping[str, _Answer]] = {"gpus": _server_gpus}


def main() -> None:
    """Answers the question on stdin."""
    os.nice(_LATER)
    try:
        answer = advise(json.load(sys.stdin))
    except UllageError as error:
        answer = {"problem": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

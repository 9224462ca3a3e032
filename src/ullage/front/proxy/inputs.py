"""Reads the body of a request to an encoder: for embeddings, or for scores of texts.

    order = read_inputs(body, limits, "/v1/embeddings")

Such a request has no answer in tokens and no stream: its cache is that of its inputs, and each
input is a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ullage.doors.refusal import Refusal
from ullage.front.proxy.prompt import Limits, Order, read_fields

_EMBEDDINGS: Final = "/v1/embeddings"
_RERANK: Final = "/v1/rerank"
_SCORE: Final = "/v1/score"
ENCODER_PATHS: Final = (_EMBEDDINGS, _RERANK, _SCORE)
_MAX_INPUTS: Final = 2048
_PAIR_TOKENS: Final = 4  # what is written around two texts

Texts = list[str | int]  # a number stands for so many tokens


def read_inputs(body: bytes, limits: Limits, path: str) -> Order:
    """Reads a body.

    Args:
        body: of the request.
        limits: that it is held against.
        path: one of ENCODER_PATHS.

    Raises:
        Refusal: it is not one that can be served.
    """
    fields, model = read_fields(body, limits, allowed=("documents",) if path == _RERANK else ())
    if fields.get("stream"):
        raise Refusal(400, "stream is true; an encoder has nothing to stream")
    read = {_EMBEDDINGS: _read_embeddings, _RERANK: _read_rerank, _SCORE: _read_score}[path]
    sequences = read(fields)
    if len(sequences) > _MAX_INPUTS:
        raise Refusal(400, f"{len(sequences)} inputs; expected {_MAX_INPUTS} or fewer")
    tokens = sum(max(1, _count(texts, limits, model)) for texts in sequences)
    return Order(
        model=model, fields={**fields, "model": model}, prompt_tokens=tokens, max_tokens=0,
        sequences=len(sequences), prefix=(), is_streamed=False,
    )  # fmt: skip


def _count(texts: Texts, limits: Limits, model: str) -> int:
    counts = (each if isinstance(each, int) else limits.count(model, each) for each in texts)
    return sum(counts) + _PAIR_TOKENS


def _read_embeddings(fields: Mapping[str, Any]) -> list[Texts]:
    given = fields.get("input")
    if isinstance(given, str):
        return [[given]]
    if isinstance(given, list) and given:
        if all(type(token) is int for token in given):
            return [[len(given)]]
        rows = [_text_or_tokens(each) for each in given]
        if None not in rows:
            return [row for row in rows if row is not None]
    raise Refusal(400, "input is neither a text, nor a list of texts, nor lists of tokens")


def _text_or_tokens(given: object) -> Texts | None:
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given and all(type(token) is int for token in given):
        return [len(given)]
    return None


def _read_rerank(fields: Mapping[str, Any]) -> list[Texts]:
    query, documents = fields.get("query"), _texts(fields.get("documents"))
    if not isinstance(query, str) or not documents:
        raise Refusal(400, "query is no text, or documents is no list of texts")
    return [[query, document] for document in documents]


def _read_score(fields: Mapping[str, Any]) -> list[Texts]:
    """Pairs: each of the first texts with the second of its place; one goes with all others."""
    first, second = _texts(fields.get("text_1")), _texts(fields.get("text_2"))
    if not first or not second or (len(first) != 1 and len(first) != len(second)):
        raise Refusal(
            400, "text_1 and text_2 are no texts, or no lists of texts of the same length"
        )
    if len(first) == 1:
        first *= len(second)
    return [list(pair) for pair in zip(first, second, strict=True)]


def _texts(given: object) -> list[str]:
    """A text, or a list of texts; empty where it is neither."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(text, str) for text in given):
        return list(given)
    return []

"""How much memory the keys and values of a request take, for a refusal that says what it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ullage.errors import SpecError
from ullage.estimate.serving.kv_cache import request_bytes
from ullage.models.architecture import read_model
from ullage.models.config import Config
from ullage.units import format_bytes

_STORED_BYTES = 2  # of an element, in "bf16"


@dataclass(frozen=True, slots=True)
class CacheNeed:
    """The cache of a request.

    Attributes:
        rows: sequences that are decoded at once, beams and returned sequences counted.
        prompt_tokens: tokens of the prompt, padding included.
        new_tokens: the most that may be generated.
        needed_bytes: of keys and values when all of them are there.
    """

    rows: int
    prompt_tokens: int
    new_tokens: int
    needed_bytes: int

    @property
    def text(self) -> str:
        """The need, as a sentence's end."""
        return (
            f"the cache of {self.rows} x ({self.prompt_tokens:,} + {self.new_tokens:,}) tokens "
            f"takes {format_bytes(self.needed_bytes)}"
        )


def find_cache_need(
    model: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> CacheNeed | None:
    """The cache of a request as `generate` gets it; None if it cannot be told.

    Counts: what the model's configuration says that each layer keeps of a token, in the dtype of
    the model, for the prompt and `max_new_tokens`, of each row, beam and returned sequence.
    Ignores: copies while a cache grows, and all that is not a cache.
    Source: ullage.estimate.serving.kv_cache; compared with a cache in tests/phantom.
    """
    shape = next((tensor.shape for tensor in _prompts(arguments, keywords)), None)
    new_tokens = None if shape is None else _new_tokens(model, keywords, shape[1])
    config: Any = getattr(model, "config", None)
    if shape is None or new_tokens is None or not hasattr(config, "to_dict"):
        return None
    each = _setting(model, keywords, "num_beams") or 1
    rows = shape[0] * max(each, _setting(model, keywords, "num_return_sequences") or 1)
    context = shape[1] + new_tokens
    try:
        layers = read_model(Config(type(model).__name__, config.to_dict())).layers
        row_bytes = sum(request_bytes(layer, context) for layer in layers)
    except SpecError:
        return None
    itemsize = next((each.element_size() for each in model.parameters()), _STORED_BYTES)
    needed_bytes = rows * row_bytes * itemsize // _STORED_BYTES
    return CacheNeed(rows, shape[1], new_tokens, needed_bytes)


def _prompts(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[Any]:
    """Tensors that may be a prompt: (rows, tokens), of whole numbers."""
    by_name = [keywords.get("input_ids"), keywords.get("inputs")]
    for value in [*by_name, *arguments]:
        candidate: Any = value.get("input_ids") if isinstance(value, Mapping) else value
        is_tensor = hasattr(candidate, "is_floating_point") and candidate.dim() == 2
        if is_tensor and not candidate.is_floating_point():
            yield candidate


def _new_tokens(model: Any, keywords: Mapping[str, Any], prompt: int) -> int | None:
    new_tokens = _setting(model, keywords, "max_new_tokens")
    if new_tokens is not None:
        return new_tokens
    length = _setting(model, keywords, "max_length")
    return None if length is None else max(0, length - prompt)


def _setting(model: Any, keywords: Mapping[str, Any], name: str) -> int | None:
    """A number of a request, else of the configuration that goes with it or with the model."""
    configurations = (keywords.get("generation_config"), getattr(model, "generation_config", None))
    values = [keywords.get(name), *(getattr(each, name, None) for each in configurations)]
    return next((value for value in values if isinstance(value, int)), None)

"""Each call of transformers' `generate()` is a request, with the tokens that it made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.patches import Patches
from ullage.players.inside.pressure.request_log import Request

_MODULE, _CLASS, _METHOD = "transformers.generation.utils", "GenerationMixin", "generate"
Open = Callable[[str], AbstractContextManager[Request]]


def watch_generation(patches: Patches, open_request: Open) -> None:
    """Stands in front of `generate()`, once transformers has it; undoing the patches ends that."""

    def replace(module: ModuleType) -> None:
        mixin = getattr(module, _CLASS, None)
        generate = None if mixin is None else vars(mixin).get(_METHOD)
        if callable(generate):
            patches.replace(mixin, _METHOD, _as_request(generate, open_request))

    patches.on_undo(on_import(_MODULE, replace))


def _as_request(generate: Callable[..., Any], open_request: Open) -> Callable[..., Any]:
    @functools.wraps(generate)
    def generate_as_request(model: Any, *arguments: Any, **kwargs: Any) -> Any:
        with open_request(_METHOD) as request:
            result = generate(model, *arguments, **kwargs)
            try:
                request.num_tokens = count_new_tokens(model, result, arguments, kwargs)
            except Exception:  # the result of a subclass of the program's: the tokens are not known
                request.num_tokens = None
            return result

    return generate_as_request


def count_new_tokens(
    model: Any, result: Any, arguments: Sequence[Any], kwargs: Mapping[str, Any]
) -> int | None:
    """The positions that were generated, of all sequences together, padding after the end of one
    counted; None: the result is not known.

    The result of a decoder begins with the prompt, that of an encoder and decoder with what the
    decoder was given, one token by default; a prompt of embeddings is not in it.
    """
    shape = getattr(getattr(result, "sequences", result), "shape", ())
    if len(shape) != 2:
        return None
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        prompt = kwargs.get("decoder_input_ids")
        num_given = 1
    else:
        given = (*arguments[:1], kwargs.get("inputs"), kwargs.get("input_ids"))
        prompt = next((ids for ids in given if ids is not None), None)
        num_given = 0 if kwargs.get("inputs_embeds") is not None else 1
    if prompt is not None:
        num_given = int(prompt.shape[1])
    num_sequences, length = (int(size) for size in shape)
    return num_sequences * max(0, length - num_given)
